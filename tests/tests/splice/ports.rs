//! A port that carries a spliced flow is never given to another connection to the same target: neither by the daemon,
//! which has few ports here, nor to another program.

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::Duration,
};

use longsplice_lab::Namespace;
use longsplice_tests::{
    Bed, Config, Daemon, Pair, Policy, SOON, addr, binary, connect_from, expect_refused_at_once, family,
    other_layout, soon, veth_line,
};

const PORTS: std::ops::RangeInclusive<u16> = 20_000..=20_007;
const SOME: u64 = 200_000;

fn few_ports(config: Config) -> Config {
    config.set(&format!("source_ports = \"{}-{}\"", PORTS.start(), PORTS.end()))
}

fn bed(name: &str, policy: Policy<'_>) -> Bed {
    Bed::with(name, Default::default(), policy, few_ports)
}

/// Connects a client, and expects the daemon to accept and reset it.
fn expect_refusal(client: &Namespace, front: SocketAddr) {
    let mut client = client.run(|| TcpStream::connect(front)).unwrap().unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    let answer = client.read(&mut [0]);
    assert!(
        answer
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
        "{answer:?}"
    );
}

fn exhaustion(name: &str, policy: Policy<'_>, state: &str) {
    let other_target = |bed: &Bed| SocketAddr::from((bed.net.server_addr, 7001));
    let bed = Bed::with(name, Default::default(), policy, |config| {
        few_ports(config).listener(
            (family().unspecified(), 8081).into(),
            (addr("198.18.2.1"), 7001).into(),
            policy.splice,
            policy.detach,
        )
    });
    let mut pairs: Vec<Pair> = PORTS.map(|_| bed.connect_spliced(state)).collect();
    let used: BTreeSet<u16> = pairs.iter().map(Pair::source_port).collect();
    assert_eq!(used, PORTS.collect(), "each of them once");

    // One more is refused, and the log names the remedy.
    expect_refusal(&bed.net.client, bed.front());
    bed.daemon
        .wait_status("the refusal", |s| s.listeners[0].refused_total == 1);
    let target = bed.target();
    let says = format!("all source ports 20000-20007 toward {target} are in use: widen source_ports");
    soon(&says, || bed.daemon.log().contains(&says));

    // Toward another target the same ports are free.
    let listener = bed
        .net
        .server
        .run(|| TcpListener::bind(other_target(&bed)))
        .unwrap()
        .unwrap();
    let other_front = SocketAddr::from((bed.net.forwarder_client_addr, 8081));
    let mut other = Pair::connect(&bed.net.client, other_front, &listener);
    bed.daemon.wait_state(other.client_port(), &[state]);
    assert!(used.contains(&other.source_port()));
    other.exchange(SOME);

    // The first ones are all unharmed.
    for pair in &mut pairs {
        pair.exchange(SOME);
    }

    // After the end of one of them, and the linger time of its record, its port is free again.
    let mut ended = pairs.pop().unwrap();
    let port = ended.source_port();
    // The server closes last: there is no TIME-WAIT at its end to keep the tuple.
    ended.close();
    let ended_at = ended.client_port();
    drop(ended);
    longsplice_tests::soon("the record to be reaped", || {
        bed.daemon
            .flows()
            .iter()
            .all(|f| f.client.peer.port() != ended_at)
    });
    let mut again = bed.connect_spliced(state);
    assert_eq!(again.source_port(), port);
    again.exchange(SOME);
    for pair in &mut pairs {
        pair.exchange(SOME);
    }
}

#[test]
fn a_small_range_is_used_up_by_detached_flows() {
    exhaustion("ports-detached", Policy::DETACHED, "detached");
}

#[test]
fn a_small_range_is_used_up_by_dormant_flows() {
    exhaustion("ports-dormant", Policy::DORMANT, "dormant");
}

/// Flows come and go beside some that stay. A connection waits for the port of one that was closed.
#[test]
fn ports_of_living_flows_are_never_reused() {
    let bed = bed("ports-churn", Policy::DETACHED);
    let mut living: Vec<Pair> = (0..5).map(|_| bed.connect_spliced("detached")).collect();
    let taken: BTreeSet<u16> = living.iter().map(Pair::source_port).collect();
    for _ in 0..3 {
        for _ in 0..=PORTS.len() - living.len() {
            let mut pair = bed.connect_spliced("detached");
            assert!(!taken.contains(&pair.source_port()));
            pair.exchange(SOME);
            pair.close();
        }
        longsplice_tests::soon("the closed ones to be reaped", || {
            bed.daemon.flows().len() == living.len()
        });
    }
    let status = bed.daemon.status();
    assert_eq!(status.listeners[0].refused_total, 0, "{status:?}");
    for pair in &mut living {
        pair.exchange(SOME);
    }
}

/// Another program on the forwarder's host takes the port, which is free for the kernel, and connects to the same
/// target.
#[test]
fn another_programs_connect_onto_a_live_tuple_is_refused() {
    let bed = bed("ports-other", Policy::DETACHED);
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(SOME);
    let source = SocketAddr::from((bed.net.forwarder_server_addr, pair.source_port()));
    for n in 1..=3 {
        expect_refused_at_once(&bed.net.forwarder, source, bed.target());
        assert_eq!(bed.daemon.status().segments("syn_refused"), n);
        pair.exchange(SOME);
    }
    pair.close();
    bed.daemon.wait_reaped();
    // Without the record it is a port like any other.
    connect_from(&bed.net.forwarder, source, bed.target()).unwrap();
}

/// Starts a second daemon of a build in the same namespace, with the same target and the same few ports.
fn second(bed: &Bed, build: &Path) -> (Daemon, SocketAddr) {
    let front = SocketAddr::from((bed.net.forwarder_client_addr, 8081));
    let config = few_ports(Config::new()).listener(front, bed.target(), "now", "now");
    let mut daemon = Daemon::of(&config);
    daemon.use_binary(build);
    daemon.start(&bed.net.forwarder);
    (daemon, front)
}

/// Ports of another instance's detached flows are as occupied as those of a daemon's own.
#[test]
fn ports_of_another_instances_flows_are_left_alone() {
    let bed = bed("ports-two", Policy::DETACHED);
    let mut first: Vec<Pair> = (0..5).map(|_| bed.connect_spliced("detached")).collect();
    let (daemon, front) = second(&bed, binary());
    let mut others = Vec::new();
    for _ in first.len()..PORTS.len() {
        let pair = Pair::connect(&bed.net.client, front, &bed.listener);
        daemon.wait_state(pair.client_port(), &["detached"]);
        others.push(pair);
    }
    let used: BTreeSet<u16> = first.iter().chain(&others).map(Pair::source_port).collect();
    assert_eq!(used, PORTS.collect(), "each of them once");
    expect_refusal(&bed.net.client, front);
    // The log blames the ports, not the target.
    let says = "all source ports 20000-20007 toward";
    longsplice_tests::soon("the log to say why", || daemon.log().contains(says));
    for pair in first.iter_mut().chain(&mut others) {
        pair.exchange(SOME);
    }
    // A port that one instance gives back is free for the other one.
    let mut ended = first.pop().unwrap();
    let port = ended.source_port();
    ended.close();
    drop(ended);
    longsplice_tests::soon("the record to be reaped", || {
        bed.daemon.flows().len() == first.len()
    });
    // A search that found no port counts for half a second.
    thread::sleep(Duration::from_millis(500));
    let mut again = Pair::connect(&bed.net.client, front, &bed.listener);
    assert_eq!(again.source_port(), port);
    again.exchange(SOME);
    assert_eq!(
        bed.daemon.status().segments("syn_refused"),
        0,
        "no SYN was wasted"
    );
}

/// Has a second instance of a build take most of the ports, and expects the first one to find the others.
fn comes_later(name: &str, build: &Path) {
    let bed = bed(name, Policy::DETACHED);
    let (daemon, front) = second(&bed, build);
    let mut later: Vec<Pair> = (0..5)
        .map(|_| {
            let pair = Pair::connect(&bed.net.client, front, &bed.listener);
            daemon.wait_state(pair.client_port(), &["detached"]);
            pair
        })
        .collect();
    // A look is valid for a tenth of a second.
    thread::sleep(Duration::from_millis(100));
    // It looks at the pins each second, and until then takes another port for each one that is refused.
    let mut first: Vec<Pair> = (later.len()..PORTS.len())
        .map(|_| bed.connect_spliced("detached"))
        .collect();
    for pair in first.iter_mut().chain(&mut later) {
        pair.exchange(SOME);
    }
}

/// A daemon also notices an instance that starts later.
#[test]
fn an_instance_that_comes_later_is_known_soon() {
    comes_later("ports-later", binary());
}

/// A daemon knows the ports of flows in a table of another layout: their refusals are not the target's.
#[test]
fn an_instance_of_another_layout_is_known_soon() {
    comes_later("ports-layout", other_layout());
}

/// Target on this host where no program listens.
const SILENT: &str = "127.0.0.1:30000";

/// A connection from the target's own port would be its own peer, and return what the client sends.
#[test]
fn a_target_that_does_not_listen_is_not_connected_to_itself() {
    let net = veth_line("ports-itself", Default::default());
    let front = SocketAddr::from((net.forwarder_client_addr, 8080));
    let config = Config::new().listener(front, SILENT.parse().unwrap(), "now", "now");
    // A search tries no more than three ports that are refused.
    let mut daemon = Daemon::of(&config.set("source_ports = \"29999-30001\""));
    daemon.start(&net.forwarder);
    expect_refusal(&net.client, front);
    let says = "Connection refused";
    soon(says, || daemon.log().contains(says));
}

/// A check connects from a port that the kernel chooses: here there is one alone, the target's.
#[test]
fn a_server_that_does_not_listen_is_not_checked_by_itself() {
    let net = veth_line("ports-checked", Default::default());
    net.forwarder
        .sysctl("net/ipv4/ip_local_port_range", "30000 30000")
        .unwrap();
    let front = SocketAddr::from((net.forwarder_client_addr, 8080));
    let config = Config::new()
        .listener(front, (net.server_addr, 7000).into(), "never", "never")
        .with(&format!(
            "[[upstream]]\nname = \"checked\"\nservers = [\"{SILENT}\"]\nhealth = {{ tcp = true }}"
        ));
    let mut daemon = Daemon::of(&config);
    daemon.start(&net.forwarder);
    let says = "cannot connect: Connection refused";
    soon(says, || daemon.log().contains(says));
}
