//! Each leg has the congestion control that the configuration names, before a splice and after it.

use std::net::{SocketAddr, TcpStream};

use longsplice_lab::topology::Nodes;
use longsplice_tests::{Bed, Config, Pair, Policy, veth_line};

/// Relays until told to splice.
const POLICY: Policy<'static> = Policy {
    splice: "after=1h",
    detach: "now",
};

/// Adds congestion controls for the clients' legs and the servers' to a configuration.
fn with(config: Config, target: SocketAddr, clients: &str, servers: &str) -> Config {
    config
        .set(&format!(
            "[[upstream]]\nname = \"far\"\nservers = \"{target}\"\ncongestion = \"{servers}\""
        ))
        .with(&format!(
            "congestion = \"{clients}\"\n[[listener.route]]\nupstream = \"far\""
        ))
}

fn bed(name: &str, clients: &str, servers: &str, more: &str) -> Bed {
    let net = veth_line(name, Default::default());
    let target = (net.server_addr, 7000).into();
    Bed::on(net, POLICY, |c| with(c.with(more), target, clients, servers))
}

/// Returns what `ss` says of the legs of a connection: to the client, and to the server.
fn legs(net: &Nodes, pair: &Pair) -> [String; 2] {
    let out = net.forwarder.command("ss").args(["-tnHi"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let of = |end: &TcpStream| {
        let ends = [end.peer_addr(), end.local_addr()].map(|end| end.unwrap().to_string());
        let is_it = |socket: &str| socket.split_whitespace().skip(3).take(2).eq(&ends);
        let found = lines.windows(2).find(|two| is_it(two[0]));
        found.unwrap_or_else(|| panic!("{ends:?} in {text}"))[1].to_owned()
    };
    [of(&pair.client.stream), of(&pair.server.stream)]
}

fn expect(bed: &Bed, pair: &Pair, names: [&str; 2]) {
    let found = legs(&bed.net, pair);
    for (name, leg) in names.into_iter().zip(found) {
        assert!(leg.split_whitespace().any(|word| word == name), "{name} in {leg}");
    }
}

#[test]
fn both_legs_have_theirs_and_keep_them_over_a_splice() {
    let bed = bed("congestion-legs", "reno", "cubic", "unsplice = \"idle=1h\"");
    let mut pair = bed.connect();
    pair.exchange(100_000);
    expect(&bed, &pair, ["reno", "cubic"]);
    let flow = bed.daemon.wait_state(pair.client_port(), &["relay"]);
    for _ in 0..2 {
        bed.daemon.splice(flow.id).unwrap();
        bed.daemon.wait_state(pair.client_port(), &["detached"]);
        bed.daemon.unsplice(flow.id).unwrap();
        bed.daemon.wait_state(pair.client_port(), &["relay"]);
        pair.exchange(100_000);
        expect(&bed, &pair, ["reno", "cubic"]);
    }
    pair.close();
}

#[test]
fn a_reload_counts_for_new_connections() {
    let bed = bed("congestion-reload", "reno", "cubic", "");
    let mut old = bed.connect();
    old.exchange(100_000);
    let listen = SocketAddr::from((bed.net.family().unspecified(), bed.front().port()));
    let next = Config::new().listener(listen, bed.target(), "never", "now");
    let next = with(next, bed.target(), "cubic", "reno");
    bed.daemon.change(&next).unwrap();
    let mut new = bed.connect();
    new.exchange(100_000);
    expect(&bed, &old, ["reno", "cubic"]);
    expect(&bed, &new, ["cubic", "reno"]);
    for pair in [&mut old, &mut new] {
        pair.exchange(100_000);
        pair.close();
    }
}

#[test]
fn a_name_that_the_kernel_lacks_is_told_once_and_harms_no_connection() {
    let bed = bed("congestion-none", "nosuchcontrol", "nosuchcontrol", "");
    for _ in 0..3 {
        let mut pair = bed.connect();
        pair.exchange(100_000);
        pair.close();
    }
    let log = bed.daemon.log();
    let told = log.lines().filter(|line| line.contains("nosuchcontrol")).count();
    assert_eq!(told, 1, "{log}");
    assert!(log.contains("modprobe"), "{log}");
}
