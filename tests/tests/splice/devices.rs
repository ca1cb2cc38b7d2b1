//! Legs over devices of kinds that hosts of containers have: a bridge, macvlan; both legs over one interface.

use std::net::{SocketAddr, TcpListener};

use longsplice_lab::{Family, Line, LineOptions, Namespace};
use longsplice_tests::{Bed, Config, Daemon, Pair, Policy, family, ip, nodad, soon, veth_line};

const BYTES: u64 = 1 << 20;
fn net(name: &str) -> Line {
    veth_line(name, LineOptions::default())
}

/// Moves the forwarder's address on the client's side to another device over `f0`.
fn move_address(net: &Line, device: &str) {
    ip(&net.forwarder, "addr del 198.18.1.2/24 dev f0");
    let nodad = nodad(net.family());
    ip(
        &net.forwarder,
        &format!("addr add 198.18.1.2/24 dev {device} {nodad}"),
    );
    ip(&net.forwarder, &format!("link set {device} up"));
}

/// Puts the bridge `br0` over `f0`.
fn bridge(net: &Line) {
    ip(&net.forwarder, "link add br0 type bridge");
    ip(&net.forwarder, "link set f0 master br0");
    move_address(net, "br0");
}

/// Returns the MAC address of a device.
fn mac_of(namespace: &Namespace, device: &str) -> String {
    let line = ip(namespace, &format!("-br link show dev {device}"));
    line.split_whitespace().nth(2).expect(device).to_owned()
}

/// Splices and comes back, twice.
fn to_and_fro(daemon: &Daemon, pair: &mut Pair, state: &str) {
    let port = pair.client_port();
    for _ in 0..2 {
        pair.exchange(BYTES);
        daemon.splice_to(port, state);
        pair.exchange(BYTES);
        daemon.take_back(port, state);
    }
    pair.exchange(BYTES);
    pair.close();
    let status = daemon.wait_status("all returns", |s| s.resumed_total == 2);
    assert!(status.segments("forwarded") > 0, "{status:?}");
}

/// The port has an address of its own, as one that was forgotten there: its segments are the bridge's all the same.
#[test]
fn a_leg_over_a_bridge() {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let net = net("dev-bridge");
        bridge(&net);
        ip(&net.forwarder, "addr add 198.18.8.1/24 dev f0");
        let bed = Bed::on(net, policy, |c| c);
        let mut pair = bed.connect();
        to_and_fro(&bed.daemon, &mut pair, state);
    }
}

/// A rule without an interface is for the bridge, not for its port, where segments of a spliced flow would meet it.
/// It stays on an interface that goes down.
#[test]
fn rules_are_for_a_bridge_and_not_for_its_port() {
    let (policy, state) = Policy::BOTH_ON_DEMAND[1];
    let net = net("dev-rules");
    bridge(&net);
    ip(&net.forwarder, "link add other type veth peer name other1");
    ip(&net.forwarder, "link set other up");
    let bed = Bed::on(net, policy, |c| c);
    let mut pair = bed.connect();
    pair.exchange(BYTES);
    bed.daemon.splice_to(pair.client_port(), state);
    let rules = "[[rule]]\nname = \"all\"\nflags = \"any\"\naction = \"count\"\n";
    let loaded = bed.daemon.load_rules(rules);
    assert!(loaded.status.success(), "{loaded:?}");
    pair.exchange(BYTES);
    let info = bed.daemon.rules();
    assert!(info.rules[0].bytes < BYTES / 2, "{info:?}");
    assert!(!info.interfaces.contains(&"f0".to_owned()), "{info:?}");
    assert!(info.interfaces.contains(&"other".to_owned()), "{info:?}");
    let forwarder = &bed.net.forwarder;
    ip(forwarder, "link set other down");
    ip(forwarder, "link add late type veth peer name late1");
    ip(forwarder, "link set late up");
    let follows = |name: &str| bed.daemon.rules().interfaces.contains(&name.to_owned());
    soon("the rules to follow", || follows("late"));
    assert!(follows("br0") && follows("other"), "{:?}", bed.daemon.rules());
    pair.close();
}

/// Frames may come to the MAC address of either device: the kernel answers ARP on both, but no neighbor solicitation.
#[test]
fn a_leg_over_macvlan() {
    for ((policy, state), device) in Policy::BOTH_ON_DEMAND.into_iter().zip(["f0", "mv0"]) {
        if (family(), device) == (Family::V6, "f0") {
            continue;
        }
        let net = net("dev-macvlan");
        ip(&net.forwarder, "link add mv0 link f0 type macvlan mode bridge");
        move_address(&net, "mv0");
        let mac = mac_of(&net.forwarder, device);
        ip(
            &net.client,
            &format!("neigh replace 198.18.1.2 lladdr {mac} nud permanent dev c0"),
        );
        let bed = Bed::on(net, policy, |c| c);
        let mut pair = bed.connect();
        to_and_fro(&bed.daemon, &mut pair, state);
    }
}

/// The server is where the client is: segments leave by the interface by which they came.
#[test]
fn both_legs_over_one_interface() {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let net = net("dev-same");
        let target = SocketAddr::from((net.client_addr, 7000));
        let listener = net.client.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let front = SocketAddr::from((net.forwarder_client_addr, 8080));
        let config = Config::new().listener(front, target, policy.splice, policy.detach);
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        let mut pair = Pair::connect(&net.client, front, &listener);
        to_and_fro(&daemon, &mut pair, state);
    }
}
