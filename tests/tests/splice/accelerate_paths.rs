//! Connections whose path decides: the accelerator measures it in the handshake, passes near and half-seen ones through with
//! a reason, and takes a released one over again whose path loses segments.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    ops::Range,
    thread,
    time::Duration,
};

use longsplice_lab::{Emulated, Family, Namespace};
use longsplice_tests::{Flow, Pair, SOON, Status, emulated, eventually, ip, nft, nodad, rng, soon};

use crate::accelerate::{Node, long_path, passed_through, router, totals};

/// Returns the round-trip times of a flow's legs, in milliseconds, if both are known.
fn round_trips(flow: &Flow) -> Option<(f64, f64)> {
    let ms = |micros: u64| micros as f64 / 1e3;
    Some((ms(flow.client_round_trip_us?), ms(flow.server_round_trip_us?)))
}

/// Both round trips are known before any byte has passed.
#[test]
fn handshakes_measure_both_legs() {
    let node = Node::new(long_path("acc-measured"), &[]);
    // A machine without a processor measures longer times: the next handshake is measured anew.
    soon("two measured legs", || {
        let before = totals(&node.daemon.status());
        let mut pair = node.connect();
        let flow = node.daemon.wait_flow("both round trips", |f| {
            f.client.peer.port() == pair.client_port() && round_trips(f).is_some()
        });
        let (client, server) = round_trips(&flow).unwrap();
        assert!(client >= 19.9 && server >= 19.9, "{client} ms and {server} ms");
        let is_measured = client < 60.0 && server < 60.0;
        if is_measured {
            assert_eq!(totals(&node.daemon.status()), (before.0 + 1, before.1));
        }
        close(&node, &mut pair);
        is_measured
    });
}

/// The first connection tells that the path is short, and is released as soon as the client's acknowledgement has come. The
/// next ones are not taken over at all.
#[test]
fn connections_over_a_short_path_pass_by() {
    // A machine without a processor may measure a long path: another node measures it anew.
    let is_late = |flow: &Flow| round_trips(flow).is_some_and(|(client, server)| client + server > 10.0);
    let (node, mut first) = eventually("a release for the short path", SOON, || {
        let node = Node::new(router("acc-near"), &[]);
        let first = node.connect();
        node.daemon.wait_flow("the release", |f| {
            f.client.peer.port() == first.client_port() && (f.state == "detached" || is_late(f))
        });
        let released = node.daemon.status().accelerator.unwrap().released_by_reason;
        (released["short_path"] == 1).then_some((node, first))
    });
    assert_eq!(totals(&node.daemon.status()), (1, 1));
    let mut second = node.connect();
    let listed = (second.client_port(), "short_path".to_owned());
    soon("the second one in the list", || {
        node.daemon.passed_through().contains(&listed)
    });
    let shown = String::from_utf8(node.daemon.cli(&["flows"]).stdout).unwrap();
    let line = shown
        .lines()
        .find(|line| line.contains("passed through"))
        .unwrap();
    assert!(line.trim_end().ends_with("short_path"), "{shown}");
    let status = node.daemon.status();
    assert_eq!(
        (totals(&status), passed_through(&status, "short_path")),
        ((1, 1), 1)
    );
    for pair in [&mut first, &mut second] {
        pair.exchange(1 << 20);
        pair.close();
    }
    // Handshakes that pass by measure the server's leg on.
    let status = node.daemon.status();
    assert_eq!(
        (totals(&status), passed_through(&status, "asymmetric")),
        ((1, 1), 0)
    );
}

/// Lays a second way between client and server, which passes the node by, and lets one of them send over it.
fn bypass(net: &longsplice_lab::topology::Nodes, from: &Namespace, to: SocketAddr) {
    let (client, server) = (&net.client, &net.server);
    ip(
        client,
        &format!(
            "link add direct type veth peer name direct netns {}",
            server.name()
        ),
    );
    let nodad = nodad(net.family());
    for (namespace, host) in [(client, 1), (server, 2)] {
        ip(
            namespace,
            &format!("addr add 198.18.9.{host}/24 dev direct {nodad}"),
        );
        ip(namespace, "link set direct up");
        for device in ["all", "direct", "c0", "s0"] {
            // A namespace has only its own devices.
            let _ = namespace.sysctl(&format!("net.ipv4.conf.{device}.rp_filter"), "0");
        }
    }
    let (via, own) = match from.name() == client.name() {
        true => (2, net.client_addr),
        false => (1, net.server_addr),
    };
    let to = to.ip();
    ip(
        from,
        &format!("route replace {to}/32 via 198.18.9.{via} src {own}"),
    );
}

fn connect(node: &Node<longsplice_lab::Line>) -> (TcpStream, TcpStream) {
    let server = node.listener.local_addr().unwrap();
    let client = node.net.client.run(|| TcpStream::connect_timeout(&server, SOON));
    let client = client.unwrap().unwrap();
    let accepted = TcpListener::accept(&node.listener).unwrap().0;
    (client, accepted)
}

/// The answer passes the node, its SYN has not.
#[test]
fn an_answer_without_its_syn_is_counted() {
    let node = Node::new(router("acc-half-answer"), &[]);
    let server = node.listener.local_addr().unwrap();
    bypass(&node.net, &node.net.client, server);
    let (client, accepted) = connect(&node);
    node.wait_status("the half-seen connection", |s| {
        passed_through(s, "asymmetric") == 1
    });
    let mut pair = Pair::of(client, accepted);
    pair.exchange(100_000);
    let listed = [(pair.client_port(), "asymmetric".to_owned())];
    assert_eq!(node.daemon.passed_through(), listed);
    pair.close();
}

/// The SYN passes the node, its answer does not; the client goes on all the same.
#[test]
fn a_client_that_goes_on_without_an_answer_is_counted() {
    let node = Node::new(router("acc-half-syn"), &[]);
    bypass(
        &node.net,
        &node.net.server,
        SocketAddr::new(node.net.client_addr, 0),
    );
    let (client, accepted) = connect(&node);
    let mut pair = Pair::of(client, accepted);
    soon("the half-seen connection", || {
        pair.exchange_unevenly(1_000, 0);
        thread::sleep(Duration::from_millis(20));
        passed_through(&node.daemon.status(), "asymmetric") == 1
    });
    pair.exchange(100_000);
    let listed = [(pair.client_port(), "asymmetric".to_owned())];
    assert_eq!(node.daemon.passed_through(), listed);
    pair.close();
    assert_eq!(totals(&node.daemon.status()), (0, 0));
}

/// Returns the values of `ss -i` that begin so, of all sockets of the node.
fn socket_values(net: &longsplice_lab::topology::Nodes, key: &str) -> Vec<f64> {
    let out = net.forwarder.command("ss").args(["-tnHi"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.split_whitespace()
        .filter_map(|word| word.strip_prefix(key)?.split('/').next()?.parse().ok())
        .collect()
}

/// Connects until both sockets of the node know times that fit two links of 20 ms. A machine without a processor measures longer
/// ones: the next handshake is timed anew.
fn connect_timed(node: &Node<Emulated>) -> Pair {
    let are = |key, range: Range<f64>| {
        let values = socket_values(&node.net, key);
        values.len() == 2 && values.iter().all(|ms| range.contains(ms))
    };
    eventually("two timed sockets", SOON, || {
        let mut pair = node.connect();
        let is_timed = (0..20).any(|_| {
            thread::sleep(Duration::from_millis(5));
            are("rtt:", 19.0..80.0) && are("rto:", 200.0..500.0)
        });
        if is_timed {
            return Some(pair);
        }
        close(node, &mut pair);
        None
    })
}

/// Closes a connection, and waits until its sockets are gone.
fn close(node: &Node<Emulated>, pair: &mut Pair) {
    pair.close();
    node.wait_status("its end", |s| s.accelerator.as_ref().unwrap().open == 0);
}

/// Both sockets of a taken-over connection know their round-trip time before any byte has passed, as sockets do that have
/// made the handshake themselves: so they repeat a lost segment soon.
#[test]
fn sockets_know_their_round_trip_time_from_the_handshake() {
    for family in [Family::V4, Family::V6] {
        let link = || "rtt20".parse().unwrap();
        let net = Emulated::of(family, "acc-timed", link(), link()).unwrap();
        let node = Node::new(net, &[]);
        let mut pair = connect_timed(&node);
        pair.exchange(100_000);
        close(&node, &mut pair);
    }
}

/// The first segment that the server is sent is lost: the node repeats it after a few round trips, not after a second.
#[test]
fn the_first_segment_that_is_lost_is_repeated_soon() {
    let node = Node::new(long_path("acc-first"), &[]);
    let drop_first = "table inet lose {
        set seen { type inet_service; flags dynamic; }
        chain in { type filter hook input priority 0
            tcp dport 7000 tcp flags & psh == psh tcp sport != @seen add @seen { tcp sport } drop
        }
    }";
    nft(&node.net.server, drop_first);
    let mut pair = connect_timed(&node);
    let began = std::time::Instant::now();
    pair.exchange_unevenly(100, 0);
    let took = began.elapsed();
    println!("the first segment arrived after {took:?}");
    assert!(took > Duration::from_millis(150), "{took:?}: nothing was lost");
    assert!(took < Duration::from_millis(800), "{took:?}");
    pair.close();
}

/// A released connection whose path loses segments is taken over again by itself, once, and stays so.
#[test]
fn a_released_connection_whose_path_loses_segments_is_taken_over_again() {
    let mut rng = rng();
    let mut link = || {
        let seed = rng.u64(1..1 << 32);
        format!("4ms,50Mbit,queue=256KiB,loss=2%,seed={seed}")
            .parse()
            .unwrap()
    };
    // A leg counts as nearly all of the path only if it is a hundred times as long as the other one: a machine without a
    // processor measures times that are ten times too long.
    let node = Node::new(emulated("acc-lossy", link(), link()), &["--min-gain", "1.01"]);
    let mut pair = node.connect();
    pair.exchange(10_000);
    let port = pair.client_port();
    let of_it = |f: &Flow| f.client.peer.port() == port;
    let flow = || node.daemon.flows().into_iter().find(of_it);
    soon("a release", || {
        flow().is_some_and(|f| node.daemon.splice(f.id).is_ok() || f.state == "detached")
    });
    node.daemon.wait_state(port, &["detached"]);
    let again = |status: &Status| {
        let again = &status.accelerator.as_ref().unwrap().taken_over_again_total;
        (again["losses"], again["command"])
    };
    assert_eq!(again(&node.daemon.status()), (0, 0));
    soon("a take-over", || {
        pair.exchange(100_000);
        again(&node.daemon.status()) == (1, 0)
    });
    let taken = node.daemon.wait_state(port, &["relay"]);
    assert_eq!(taken.reason.as_deref(), Some("advised_loss"));
    pair.exchange(1 << 20);
    assert_eq!(again(&node.daemon.status()), (1, 0));
    node.daemon.wait_state(port, &["relay"]);
    pair.close();
}

/// A host with more addresses than its rules could name takes connections over all the same, and leaves its own alone, in
/// both directions.
#[test]
fn a_router_with_130_addresses_accelerates() {
    let net = long_path("acc-own");
    for last in 1..=130 {
        ip(&net.forwarder, &format!("addr add 198.18.7.{last}/32 dev f0"));
    }
    ip(&net.client, "route add 198.18.7.0/24 via 198.18.1.2");
    let at = SocketAddr::from(([198, 18, 7, 130], 22));
    let own = net.forwarder.run(|| TcpListener::bind(at)).unwrap().unwrap();
    let node = Node::new(net, &[]);
    let mut through = node.connect();
    node.daemon.wait_state(through.client_port(), &["relay"]);
    let mut to_it = Pair::connect(&node.net.client, at, &own);
    let target = node.listener.local_addr().unwrap();
    let mut from_it = Pair::connect(&node.net.forwarder, target, &node.listener);
    for pair in [&mut through, &mut to_it, &mut from_it] {
        pair.exchange(100_000);
    }
    let status = node.wait_status("both to be known as its own", |s| {
        passed_through(s, "own_address") == 2
    });
    assert_eq!(
        (totals(&status), passed_through(&status, "asymmetric")),
        ((1, 0), 0)
    );
    let rules = node.daemon.rules().rules;
    assert!(
        !rules.iter().any(|info| info.rule.name.contains("to this host")),
        "{rules:?}"
    );
    // The user's rules have room beside the needed ones.
    let loaded = node
        .daemon
        .load_rules("[[rule]]\nname = \"mine\"\nto_ports = \"9\"\naction = \"count\"\n");
    assert!(loaded.status.success(), "{loaded:?}");
    assert_eq!(node.daemon.rules().rules.len(), rules.len() + 1);
    through.exchange(100_000);
    let log = node.daemon.log();
    assert_eq!(log.matches("too many addresses").count(), 1, "{log}");
}
