//! The transparent accelerator: connections between two other hosts are taken over at their handshake, relayed where two
//! control loops are better than one, released where they are not, and never changed for their ends.

use std::{io::ErrorKind, net::TcpListener, net::TcpStream, thread, time::Duration};

use longsplice_lab::{
    ConnectionSpec, Emulated, Family, Traffic, TrafficServer, TrafficSpec, topology::Nodes,
};
use longsplice_tests::{
    Config, Daemon, Pair, SOON, Status, assert_all_ok, capture, curl, emulated, library::target, rng, three,
};

/// Node of an accelerator: its daemon, and a server behind it.
struct Node<N> {
    // Fields are dropped in this order: the daemon ends before its namespace.
    daemon: Daemon,
    listener: TcpListener,
    _captures: Vec<longsplice_lab::Process>,
    net: N,
}

impl<N: std::ops::Deref<Target = Nodes>> Node<N> {
    fn new(net: N, more: &[&str]) -> Node<N> {
        let mut daemon = Daemon::new(&["accelerate", "--inside", "f0", "--outside", "f1"]);
        daemon.add_args(more);
        Node::with(net, daemon)
    }

    fn with(net: N, mut daemon: Daemon) -> Node<N> {
        daemon.start(&net.forwarder);
        Node {
            daemon,
            listener: target(&net),
            _captures: capture(&net),
            net,
        }
    }

    /// Connects the client to the server, as if there was no node.
    fn connect(&self) -> Pair {
        let pair = Pair::connect(
            &self.net.client,
            self.listener.local_addr().unwrap(),
            &self.listener,
        );
        let (client, server) = (&pair.client.stream, &pair.server.stream);
        assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
        pair
    }

    fn wait_status(&self, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
        self.daemon.wait_status(what, condition)
    }
}

fn long_path(name: &str) -> Emulated {
    emulated(name, "rtt20".parse().unwrap(), "rtt20".parse().unwrap())
}

fn router(name: &str) -> longsplice_lab::Three {
    three(
        name,
        longsplice_lab::ThreeOptions {
            router: true,
            ..Default::default()
        },
    )
}

fn totals(status: &Status) -> (u64, u64) {
    let a = status.accelerator.as_ref().unwrap();
    (a.taken_over_total, a.released_total)
}

#[test]
fn a_bulk_stream_over_two_long_legs_stays_taken_over() {
    for family in [Family::V4, Family::V6] {
        let link = || "rtt20".parse().unwrap();
        let node = Node::new(Emulated::of(family, "acc-long", link(), link()).unwrap(), &[]);
        let mut pair = node.connect();
        let mut seen = Vec::new();
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                pair.exchange(16 << 20);
                pair.close();
            });
            while !busy.is_finished() {
                thread::sleep(Duration::from_millis(50));
                seen.push(totals(&node.daemon.status()));
            }
        });
        // A stream at its end is not bulk any more, and may be released.
        let bulk = &seen[..seen.len().saturating_sub(10)];
        assert!(bulk.len() > 10, "{seen:?}");
        assert!(bulk.iter().all(|totals| *totals == (1, 0)), "{seen:?}");
        node.wait_status("the end", |s| s.accelerator.as_ref().unwrap().open == 0);
    }
}

#[test]
fn a_short_path_is_released_and_its_ends_notice_nothing() {
    let node = Node::new(router("acc-short"), &[]);
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    let flow = node.daemon.wait_state(pair.client_port(), &["detached"]);
    assert!(flow.to_server.identity && flow.to_client.identity, "{flow:?}");
    assert_eq!(totals(&node.daemon.status()), (1, 1));
    pair.exchange(8 << 20);
    pair.close();
}

#[test]
fn a_released_connection_is_taken_over_again_by_command() {
    let node = Node::new(router("acc-again"), &[]);
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    let flow = node.daemon.wait_state(pair.client_port(), &["detached"]);
    node.daemon.unsplice(flow.id).unwrap();
    node.daemon.wait_state(pair.client_port(), &["relay"]);
    pair.exchange(1 << 20);
    assert_eq!(totals(&node.daemon.status()), (2, 1));
    node.daemon.splice(flow.id).unwrap();
    node.daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(1 << 20);
    pair.close();
}

#[test]
fn who_is_refused_without_the_node_is_refused_with_it() {
    let node = Node::new(router("acc-refused"), &[]);
    let nowhere = (node.net.server_addr, 7001).into();
    let refused = node
        .net
        .client
        .run(|| TcpStream::connect_timeout(&nowhere, SOON))
        .unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(totals(&node.daemon.status()), (0, 0));
}

#[test]
fn busy_connections_live_on_when_the_daemon_is_stopped() {
    let mut node = Node::new(long_path("acc-stop"), &[]);
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    assert_eq!(totals(&node.daemon.status()), (1, 0));
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            pair.exchange(16 << 20);
            pair.close();
        });
        thread::sleep(Duration::from_millis(300));
        assert!(!busy.is_finished(), "it ended before the daemon did");
        node.daemon.terminate();
        assert_eq!(node.daemon.join(), Some(0), "{}", node.daemon.log());
        busy.join().unwrap();
    });
}

#[test]
fn a_killed_daemon_leaves_released_connections_and_no_routing() {
    let mut node = Node::new(router("acc-kill"), &[]);
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    node.daemon.wait_state(pair.client_port(), &["detached"]);
    node.daemon.kill();
    pair.exchange(4 << 20);
    // New connections pass through without a daemon.
    let mut plain = node.connect();
    plain.exchange(100_000);
    node.daemon.start(&node.net.forwarder);
    let mut next = node.connect();
    for pair in [&mut pair, &mut plain, &mut next] {
        pair.exchange(1 << 20);
        pair.close();
    }
    node.wait_status("a connection", |s| totals(s).0 == 1);
    node.daemon.terminate();
    assert_eq!(node.daemon.join(), Some(0));
    let rules = node.net.forwarder.command("ip").arg("rule").output().unwrap();
    let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
    assert!(!rules.contains("4c0"), "{rules}");
}

#[test]
fn a_killed_daemon_resets_what_was_taken_over() {
    let mut node = Node::new(long_path("acc-cut"), &[]);
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    assert_eq!(totals(&node.daemon.status()), (1, 0));
    node.daemon.kill();
    pair.client.expect_reset(SOON);
    pair.server.expect_reset(SOON);
}

/// Every connection completes with the right content, though each link loses 5 % in each direction.
#[test]
fn connections_complete_over_lossy_links() {
    let mut rng = rng();
    let link = |seed: u64| {
        format!("10ms,50Mbit,queue=256KiB,loss=5%,seed={seed}")
            .parse()
            .unwrap()
    };
    let net = emulated("acc-loss", link(rng.u64(1..1 << 32)), link(rng.u64(1..1 << 32)));
    let node = Node::new(net, &[]);
    let server = TrafficServer::start(&node.net.server, (node.net.server_addr, 7100).into()).unwrap();
    let mut spec = TrafficSpec::same(60, ConnectionSpec::both_ways(20_000));
    spec.seed = rng.u64(..);
    for connection in &mut spec.connections {
        connection.stall = 3 * SOON;
    }
    let outcome = Traffic::run(&node.net.client, server.addr(), &spec).unwrap();
    assert_all_ok(&outcome);
    let (taken, _) = totals(&node.daemon.status());
    assert_eq!(taken, 60);
}

/// The queue inside the node stays short in front of a slow leg.
#[test]
fn the_queue_in_front_of_a_slow_leg_is_bounded() {
    let fast = "5ms,100Mbit,queue=1MiB".parse().unwrap();
    let slow = "5ms,20Mbit,queue=256KiB".parse().unwrap();
    let node = Node::new(
        emulated("acc-queue", fast, slow),
        &["--min-rtt", "1ms", "--min-gain", "1.01"],
    );
    let mut pair = node.connect();
    let mut most = 0;
    thread::scope(|scope| {
        let port = pair.client_port();
        let busy = scope.spawn(|| {
            pair.exchange_unevenly(16 << 20, 0);
            pair.close();
        });
        thread::sleep(Duration::from_secs(2));
        while !busy.is_finished() {
            most = most.max(queued(&node.net, port));
            thread::sleep(Duration::from_millis(20));
        }
    });
    let limit = 20_000_000 / 8 * 150 / 1000;
    assert!(
        (1..limit).contains(&most),
        "{most} bytes waited, of at most {limit}"
    );
}

/// Returns the bytes that wait in the node's sockets: unread, and not yet sent.
fn queued(net: &Nodes, client_port: u16) -> u64 {
    let out = net.forwarder.command("ss").args(["-tnHi"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut queued = 0;
    let mut lines = text.lines();
    while let (Some(socket), Some(info)) = (lines.next(), lines.next()) {
        let fields: Vec<_> = socket.split_whitespace().collect();
        if socket.contains(&format!(":{client_port} "))
            || socket.trim_end().ends_with(&format!(":{client_port}"))
        {
            queued += fields.get(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            let unsent = info
                .split_whitespace()
                .find_map(|word| word.strip_prefix("notsent:"));
            queued += unsent.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    queued
}

/// Drops what connection tracking finds invalid.
const FIREWALL: &str = "
table inet firewall {
    chain in { type filter hook input priority 0
        ct state invalid drop
    }
    chain out { type filter hook output priority 0
        ct state invalid drop
    }
}";

/// Takes a connection over behind a firewall and strict validation of sources, marks included.
#[test]
fn a_firewall_and_validated_sources_are_passed() {
    let net = router("acc-wall");
    let exempt = include_str!("../../../examples/accelerate.nft");
    for rules in [exempt.replace("eth", "f"), FIREWALL.to_owned()] {
        let done = net.forwarder.command("nft").args([rules]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    for name in ["rp_filter", "src_valid_mark"] {
        let name = format!("net.ipv4.conf.all.{name}");
        net.forwarder.sysctl(&name, "1").unwrap();
    }
    let node = Node::new(net, &[]);
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    let flow = node.daemon.wait_state(pair.client_port(), &["detached"]);
    node.daemon.unsplice(flow.id).unwrap();
    node.daemon.wait_state(pair.client_port(), &["relay"]);
    pair.exchange(1 << 20);
    assert_eq!(totals(&node.daemon.status()), (2, 1));
    pair.close();
}

/// Writes its counters into the metrics; `[accelerate]` in a file does what the command does.
#[test]
fn its_counters_are_metrics() {
    let config = Config::new()
        .set("[accelerate]\ninside = \"f0\"\noutside = \"f1\"")
        .set("[metrics]\nlisten = \"127.0.0.1:9090\"");
    let node = Node::with(router("acc-metrics"), Daemon::of(&config));
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    node.daemon.wait_state(pair.client_port(), &["detached"]);
    node.wait_status("the release", |s| totals(s) == (1, 1));
    let out = curl(&node.net.forwarder, &["-f", "http://127.0.0.1:9090/metrics"]);
    let text = String::from_utf8_lossy(&out);
    for sample in [
        "taken_over_total 1",
        "released_total 1",
        "passed_through_total{reason=\"options\"} 0",
    ] {
        let line = format!("longsplice_accelerator_{sample}");
        assert!(text.lines().any(|l| l == line), "{line} in {text}");
    }
    assert!(text.contains("\nlongsplice_accelerator_open "), "{text}");
    pair.close();
}
