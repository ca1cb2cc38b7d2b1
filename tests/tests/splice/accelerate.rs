//! The transparent accelerator: connections between two other hosts are taken over at their handshake, relayed where two
//! control loops are better than one, released where they are not, and never changed for their ends.
//!
//! `LONGSPLICE_CYCLES` sets the number of releases in mid-transfer, `LONGSPLICE_CONNECTIONS` that of connections over lossy
//! links.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use longsplice_lab::{
    ConnectionSpec, Emulated, Namespace, Traffic, TrafficServer, TrafficSpec, topology::Nodes,
};
use longsplice_tests::{
    Config, Daemon, Flow, Pair, SOON, Status, addr, assert_all_ok, capture, curl, emulated, ip,
    library::target, nodad, rng, soon, times, veth_line,
};

/// Node of an accelerator: its daemon, and a server behind it.
pub(crate) struct Node<N> {
    // Fields are dropped in this order: the daemon ends before its namespace.
    pub(crate) daemon: Daemon,
    pub(crate) listener: TcpListener,
    pub(crate) captures: Vec<longsplice_lab::Process>,
    pub(crate) net: N,
}

impl<N: std::ops::Deref<Target = Nodes>> Node<N> {
    pub(crate) fn new(net: N, more: &[&str]) -> Node<N> {
        let mut daemon = Daemon::new(&["accelerate", "--inside", "f0", "--outside", "f1"]);
        daemon.add_args(more);
        Node::with(net, daemon)
    }

    pub(crate) fn with(net: N, mut daemon: Daemon) -> Node<N> {
        daemon.start(&net.forwarder);
        Node {
            daemon,
            listener: target(&net),
            captures: capture(&net),
            net,
        }
    }

    /// Connects the client to the server, as if there was no node.
    pub(crate) fn connect(&self) -> Pair {
        connect(&self.net.client, &self.listener)
    }

    /// Releases a busy connection by command, and returns its number.
    pub(crate) fn release(&self, client_port: u16) -> u32 {
        let is_it = |flow: &Flow| flow.client.peer.port() == client_port;
        let id = self.daemon.wait_flow("the connection", is_it).id;
        let is_released = || {
            let flow = self.daemon.flows().into_iter().find(is_it);
            flow.is_some_and(|flow| matches!(flow.state.as_str(), "dormant" | "detached"))
        };
        // A leg that repairs losses refuses for a moment.
        soon("a release", || {
            is_released() || self.daemon.splice(id).is_ok() && is_released()
        });
        id
    }

    pub(crate) fn wait_status(&self, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
        self.daemon.wait_status(what, condition)
    }
}

/// Connects a client to a listener; both ends see each other's address.
fn connect(client: &Namespace, listener: &TcpListener) -> Pair {
    let pair = Pair::connect(client, listener.local_addr().unwrap(), listener);
    let (client, server) = (&pair.client.stream, &pair.server.stream);
    assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
    pair
}

pub(crate) fn long_path(name: &str) -> Emulated {
    emulated(name, "rtt20".parse().unwrap(), "rtt20".parse().unwrap())
}

pub(crate) fn router(name: &str) -> longsplice_lab::Line {
    veth_line(name, longsplice_lab::LineOptions::router())
}

pub(crate) fn totals(status: &Status) -> (u64, u64) {
    let a = status.accelerator.as_ref().unwrap();
    (a.taken_over_total, a.released_total)
}

/// Returns the number of connections that were taken over, and that of the releases for a property of the path: a node without
/// a processor is itself what limits a stream, and releases it for its own buffers.
pub(crate) fn totals_by_path(status: &Status) -> (u64, u64) {
    let a = status.accelerator.as_ref().unwrap();
    let own: u64 = a.released_by_reason["own_buffers"];
    (a.taken_over_total, a.released_total - own)
}

/// Returns the number of connections that were passed through for this reason.
pub(crate) fn passed_through(status: &Status, reason: &str) -> u64 {
    status.accelerator.as_ref().unwrap().passed_through_total[reason]
}

#[test]
fn a_released_connection_is_taken_over_again_by_command() {
    let node = Node::new(router("acc-again"), &[]);
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    let flow = node.daemon.wait_state(pair.client_port(), &["detached"]);
    node.daemon.unsplice(flow.id).unwrap();
    let back = node.daemon.wait_state(pair.client_port(), &["relay"]);
    assert_eq!(back.reason.as_deref(), Some("by_command"));
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

/// End one hop further, with a listener: the node that was the server, or the client, is a router to it.
pub(crate) struct Behind {
    listener: TcpListener,
    namespace: Namespace,
}

impl Behind {
    /// Lays a further link behind the server; the router sends packets of at most `mtu` bytes over it.
    pub(crate) fn new(name: &str, net: &Nodes, mtu: u16) -> Behind {
        Behind::router(name, net, (&net.server, net.server_addr), mtu)
    }

    /// Lays a further link before the client, like [`Behind::new`].
    pub(crate) fn client(name: &str, net: &Nodes, mtu: u16) -> Behind {
        Behind::router(name, net, (&net.client, net.client_addr), mtu)
    }

    fn router(name: &str, net: &Nodes, (router, address): (&Namespace, IpAddr), mtu: u16) -> Behind {
        let namespace = Namespace::new(&format!("{name}-behind")).unwrap();
        ip(
            router,
            &format!("link add b0 type veth peer name b1 netns {}", namespace.name()),
        );
        let nodad = nodad(net.family());
        for (node, device, host) in [(router, "b0", 1), (&namespace, "b1", 2)] {
            ip(node, &format!("addr add 198.18.3.{host}/24 dev {device} {nodad}"));
            ip(node, &format!("link set {device} up"));
        }
        ip(router, &format!("link set b0 mtu {mtu}"));
        router.sysctl("net/ipv4/ip_forward", "1").unwrap();
        router.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        ip(&namespace, "route add default via 198.18.3.1");
        ip(&net.forwarder, &format!("route add 198.18.3.0/24 via {address}"));
        let at = SocketAddr::from((addr("198.18.3.2"), 7000));
        let listener = namespace.run(|| TcpListener::bind(at)).unwrap().unwrap();
        Behind { listener, namespace }
    }

    /// Connects a client to this end.
    pub(crate) fn connect(&self, client: &Namespace) -> Pair {
        connect(client, &self.listener)
    }

    /// Connects this end to a server.
    pub(crate) fn connect_to(&self, listener: &TcpListener) -> Pair {
        connect(&self.namespace, listener)
    }
}

/// Starts a second node on the path to an end behind the first one's server, which is the second one's namespace.
fn second_node(net: &Nodes) -> Daemon {
    let mut second = Daemon::new(&[
        "accelerate",
        "--inside",
        "s0",
        "--outside",
        "b0",
        "--min-rtt",
        "1ms",
    ]);
    second.start(&net.server);
    second
}

/// Two nodes on one path take a connection over, each for itself; one of them is stopped while the other one carries.
#[test]
fn two_nodes_on_one_path_work_side_by_side() {
    let near = Node::new(long_path("acc-two"), &[]);
    let behind = Behind::new("acc-two", &near.net, 1500);
    let mut second = second_node(&near.net);
    let mut pair = behind.connect(&near.net.client);
    pair.exchange(2 << 20);
    for daemon in [&near.daemon, &second] {
        assert_eq!(totals(&daemon.status()).0, 1);
    }
    second.terminate();
    assert_eq!(second.join(), Some(0));
    pair.exchange(2 << 20);
    second.start(&near.net.server);
    let mut next = behind.connect(&near.net.client);
    for pair in [&mut pair, &mut next] {
        pair.exchange(1 << 20);
        pair.close();
    }
}

/// The second node decides for itself about a connection that the first one lets pass by.
#[test]
fn what_the_first_of_two_nodes_lets_pass_comes_to_the_second() {
    let near = Node::new(router("acc-two-minds"), &["--max-connections", "1"]);
    let behind = Behind::new("acc-two-minds", &near.net, 1500);
    let second = second_node(&near.net);
    let mut pairs = [(); 2].map(|()| {
        let mut pair = behind.connect(&near.net.client);
        pair.exchange(1 << 20);
        pair
    });
    let (first, second) = (near.daemon.status(), second.status());
    assert_eq!(totals(&first).0, 1, "{first:?}");
    // It has seen both SYNs: it takes the first one over, and the path proves too short for the other one.
    let decided = totals(&second).0 + passed_through(&second, "short_path");
    let blind = passed_through(&second, "asymmetric");
    assert_eq!((decided, blind), (2, 0), "{second:?}");
    pairs.iter_mut().for_each(Pair::close);
}

/// A router behind the node tells the client, in whose name the node sends, that packets are too long.
#[test]
fn errors_about_a_taken_over_leg_reach_the_node() {
    let node = Node::new(long_path("acc-icmp"), &[]);
    let behind = Behind::new("acc-icmp", &node.net, 1300);
    let mut pair = behind.connect(&node.net.client);
    // The way back stays short: a veth device drops what is longer than its peer's MTU.
    pair.exchange_unevenly(1 << 20, 1_000);
    assert_eq!(totals_by_path(&node.daemon.status()), (1, 0));
    pair.close();
}

/// Releases a connection over a path that takes less than its ends agreed on: they are told as without the node.
#[test]
fn a_connection_over_a_narrow_path_is_released() {
    let mut node = Node::new(long_path("acc-narrow"), &[]);
    let behind = Behind::new("acc-narrow", &node.net, 1300);
    let mut pair = behind.connect(&node.net.client);
    pair.exchange_unevenly(1 << 20, 1_000);
    let flow = node.daemon.wait_state(pair.client_port(), &["relay"]);
    node.daemon.splice(flow.id).unwrap();
    node.daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange_unevenly(1 << 20, 1_000);
    // A node that stops releases another one, which is carried.
    let mut other = behind.connect(&node.net.client);
    other.exchange_unevenly(1 << 20, 1_000);
    node.daemon.wait_state(other.client_port(), &["relay"]);
    node.daemon.terminate();
    assert_eq!(node.daemon.join(), Some(0), "{}", node.daemon.log());
    for mut pair in [pair, other] {
        pair.exchange_unevenly(1 << 20, 1_000);
        pair.close();
    }
}

/// Ends the traffic of a test when it is dropped, in a failed test, too.
pub(crate) struct Finish<'a>(pub(crate) &'a AtomicBool);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connections are released and taken over again by command, in mid-transfer.
#[test]
fn busy_connections_are_released_and_taken_over_again_and_again() {
    let cycles = times("LONGSPLICE_CYCLES", 6);
    let node = Node::new(long_path("acc-cycles"), &[]);
    let mut pairs: Vec<_> = (0..4).map(|_| node.connect()).collect();
    let ports: Vec<_> = pairs.iter().map(Pair::client_port).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy: Vec<_> = pairs
            .iter_mut()
            .map(|pair| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        pair.exchange(1 << 20);
                    }
                    pair.close();
                })
            })
            .collect();
        let finish = Finish(&done);
        for cycle in 0..cycles {
            let port = ports[cycle % ports.len()];
            let id = node.release(port);
            soon("a return", || node.daemon.unsplice(id).is_ok());
        }
        drop(finish);
        for busy in busy {
            busy.join().unwrap();
        }
    });
    let (taken, released) = totals(&node.daemon.status());
    assert!(
        taken >= 4 + cycles as u64 && released >= cycles as u64,
        "{taken} {released}"
    );
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
    // A handshake that was repeated, or waited for a processor, makes a leg look six times as long: taken over all the same.
    let node = Node::new(net, &["--min-gain", "1.01"]);
    let server = TrafficServer::start(&node.net.server, (node.net.server_addr, 7100).into()).unwrap();
    let connections = times("LONGSPLICE_CONNECTIONS", 60);
    let mut spec = TrafficSpec::same(connections, ConnectionSpec::both_ways(20_000));
    spec.seed = rng.u64(..);
    for connection in &mut spec.connections {
        connection.stall = 3 * SOON;
    }
    let outcome = Traffic::run(&node.net.client, server.addr(), &spec).unwrap();
    assert_all_ok(&outcome);
    let (taken, _) = totals(&node.daemon.status());
    assert_eq!(taken, connections as u64);
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
    let port = pair.client_port();
    // What was taken over by command stays so. The policy releases a connection whose buffers on this host are the limit,
    // as they are where processors are busy.
    let flow = node
        .daemon
        .wait_flow("the connection", |f| f.client.peer.port() == port);
    node.daemon.splice(flow.id).unwrap();
    node.daemon.wait_state(port, &["detached"]);
    node.daemon.unsplice(flow.id).unwrap();
    node.daemon.wait_state(port, &["relay"]);
    let mut most = 0;
    thread::scope(|scope| {
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
