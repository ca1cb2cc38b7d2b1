//! Legs over devices of kinds that routers and hosts of containers have: a bridge, macvlan, VLAN, a bond, tunnels; both legs over
//! one interface.

use std::net::{IpAddr, SocketAddr, TcpListener};

use longsplice_lab::{Family, Line, LineOptions, Namespace, not_run};
use longsplice_tests::{Bed, Config, Daemon, Pair, Policy, family, ip, ip_in, nodad, soon, veth_line};

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

/// Makes a device on a node; returns false if the kernel has none of its kind.
fn make(namespace: &Namespace, device: &str) -> bool {
    let words = format!("link add {device}");
    let made = namespace.command("ip").args(words.split_whitespace()).output();
    let made = made.unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    let is_unknown = said.contains("Unknown device type") || said.contains("not supported");
    assert!(made.status.success() || is_unknown, "{device}: {said}");
    made.status.success()
}

/// Splices a leg over a device `t0` that the client and the forwarder have between them, at both depths, and comes back.
fn over_a_link_between(name: &str, kind: &str, of_client: &str, of_forwarder: &str, addresses: [IpAddr; 2]) {
    // The outer headers are those of IPv4.
    if family() == Family::V6 {
        return;
    }
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let net = net(name);
        let ends = [(&net.client, of_client), (&net.forwarder, of_forwarder)];
        for ((node, options), address) in ends.into_iter().zip(addresses) {
            if !make(node, options) {
                return not_run(&format!("this kernel has no device of kind {kind}"));
            }
            let (length, family) = match address {
                IpAddr::V4(_) => (24, Family::V4),
                IpAddr::V6(_) => (64, Family::V6),
            };
            if family == Family::V6 {
                node.sysctl("net.ipv6.conf.t0.disable_ipv6", "0").unwrap();
            }
            let added = format!("addr add {address}/{length} dev t0 {}", nodad(family));
            ip_in(family, node, &added);
            ip(node, "link set t0 up");
        }
        let bed = Bed::on(net, policy, |config| {
            let target = SocketAddr::from(([198, 18, 2, 1], 7000));
            let front = SocketAddr::from(([0_u16; 8], 8080));
            config.listener(front, target, policy.splice, policy.detach)
        });
        let front = SocketAddr::from((addresses[1], 8080));
        let mut pair = Pair::connect(&bed.net.client, front, &bed.listener);
        to_and_fro(&bed.daemon, &mut pair, state);
    }
}

/// Returns the addresses of a link of IPv4.
fn of_v4() -> [IpAddr; 2] {
    [1, 2].map(|host| IpAddr::from([198, 18, 9, host]))
}

/// Splices a leg over a tunnel between the addresses of both nodes.
fn over_a_tunnel(kind: &str, addresses: [IpAddr; 2]) {
    let [of_client, of_forwarder] = [(1, 2), (2, 1)]
        .map(|(local, remote)| format!("t0 type {kind} local 198.18.1.{local} remote 198.18.1.{remote}"));
    over_a_link_between(&format!("dev-{kind}"), kind, &of_client, &of_forwarder, addresses);
}

#[test]
fn a_leg_over_a_vlan() {
    let [of_client, of_forwarder] =
        ["c0", "f0"].map(|carrier| format!("link {carrier} name t0 type vlan id 7"));
    over_a_link_between("dev-vlan", "vlan", &of_client, &of_forwarder, of_v4());
}

#[test]
fn a_leg_over_ipip() {
    over_a_tunnel("ipip", of_v4());
}

#[test]
fn a_leg_over_gre() {
    over_a_tunnel("gre", of_v4());
}

/// Carries IPv6 in IPv4: the legs are of different versions.
#[test]
fn a_leg_over_sit() {
    let addresses = [1, 2].map(|host| IpAddr::from([0x2001, 0xdb8, 9, 0, 0, 0, 0, host]));
    over_a_tunnel("sit", addresses);
}

#[test]
fn a_leg_over_a_bond() {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let net = net("dev-bond");
        if !make(&net.forwarder, "t0 type bond mode active-backup") {
            return not_run("this kernel has no bonds");
        }
        for words in ["link set f0 down", "link set f0 master t0", "link set f0 up"] {
            ip(&net.forwarder, words);
        }
        move_address(&net, "t0");
        let bed = Bed::on(net, policy, |c| c);
        let mut pair = bed.connect();
        to_and_fro(&bed.daemon, &mut pair, state);
    }
}

/// An ipvlan has the MAC address of its carrier, and its packets pass both.
#[test]
fn a_leg_over_ipvlan_is_relayed() {
    let net = net("dev-ipvlan");
    if !make(&net.forwarder, "t0 link f0 type ipvlan mode l2") {
        return not_run("this kernel has no ipvlan");
    }
    move_address(&net, "t0");
    let bed = Bed::on(net, Policy::DETACHED, |c| c);
    let mut pair = bed.connect();
    let flow = bed
        .daemon
        .wait_flow("the refusal", |f| f.reason.as_deref() == Some("interface"));
    assert_eq!(flow.state, "relay");
    pair.exchange(BYTES);
    pair.close();
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
