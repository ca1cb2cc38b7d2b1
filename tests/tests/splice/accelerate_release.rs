//! Connections that the accelerator keeps or releases, by what it measures while they carry a stream.

use std::{
    cell::Cell,
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use longsplice_lab::{Emulated, Family};
use longsplice_tests::{Flow, Pair, Raise, SOON, Status, emulated, eventually, soon};

use crate::accelerate::{Node, long_path, router, totals, totals_by_path};

/// Sets up a node before a bottleneck whose queue holds 50 ms, between ends that are guided by losses.
fn before_a_bottleneck(name: &str) -> Node<Emulated> {
    let slow = "rtt=20ms,10Mbit,queue=64KiB".parse().unwrap();
    let net = emulated(name, "rtt20".parse().unwrap(), slow);
    for space in [&net.client, &net.forwarder, &net.server] {
        space.sysctl("net.ipv4.tcp_congestion_control", "cubic").unwrap();
    }
    Node::new(net, &[])
}

/// Largest number of runs until a node has processors.
const RUNS: usize = 5;

/// Repeats a run, each time on another node, until none of its connections is released for the node's own buffers: a node
/// without a processor is itself what limits a stream. Returns the status of that run.
fn with_processors(run: impl Fn() -> Status) -> Status {
    let own = |status: &Status| status.accelerator.as_ref().unwrap().released_by_reason["own_buffers"];
    let mut runs = (0..RUNS).map(|_| run());
    runs.find(|status| own(status) == 0)
        .expect("a run that is not released for the node's own buffers")
}

/// A node without a processor is itself what limits a stream, and releases it for its own buffers. No property of this path
/// is a reason.
#[test]
fn a_bulk_stream_over_two_long_legs_stays_taken_over() {
    for family in [Family::V4, Family::V6] {
        let link = || "rtt20".parse().unwrap();
        let net = Emulated::of(family, "acc-long", link(), link()).unwrap();
        // It may fill the queue of a link.
        let node = Node::new(net, &["--standing-queue", "keep"]);
        let mut pair = node.connect();
        let mut seen = Vec::new();
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                pair.exchange(16 << 20);
                pair.close();
            });
            while !busy.is_finished() {
                thread::sleep(Duration::from_millis(50));
                let status = node.daemon.status();
                // A stream at its end is not bulk any more, and may be released.
                if status.relay_bytes_total > 8 << 20 {
                    continue;
                }
                seen.push(totals_by_path(&status));
            }
        });
        assert!(seen.len() > 1, "{seen:?}");
        assert!(seen.iter().all(|totals| *totals == (1, 0)), "{seen:?}");
        node.wait_status("the end", |s| s.accelerator.as_ref().unwrap().open == 0);
    }
}

/// A leg of 2 ms beside one of 60 adds nothing to the path; a congestion control of its own may gain all the same.
#[test]
fn a_leg_with_a_congestion_control_of_its_own_keeps_a_connection() {
    for (more, keeps) in [(&["--outside-congestion", "reno"][..], true), (&[], false)] {
        let link = |text: &str| text.parse().unwrap();
        let net = emulated("acc-own", link("rtt=2ms,100Mbit"), link("rtt=60ms,100Mbit"));
        let node = Node::new(net, more);
        let mut pair = node.connect();
        let port = pair.client_port();
        soon("a decision", || {
            pair.exchange(2_000);
            let flows = node.daemon.flows();
            let flow = flows.iter().find(|flow| flow.client.peer.port() == port);
            flow.is_some_and(|flow| match keeps {
                true => flow.reason.as_deref() == Some("advised_congestion"),
                false => flow.state == "detached",
            })
        });
        let status = node.daemon.status();
        assert_eq!(totals(&status), (1, u64::from(!keeps)));
        if !keeps {
            assert_eq!(
                status.accelerator.unwrap().released_by_reason["negligible_leg"],
                1
            );
        }
        pair.close();
    }
}

/// Sockets that are built for a connection which comes back have the congestion control that the configuration names.
#[test]
fn a_connection_that_is_taken_over_again_has_its_congestion_control() {
    let net = long_path("acc-own-again");
    net.forwarder
        .sysctl("net.ipv4.tcp_congestion_control", "cubic")
        .unwrap();
    let node = Node::new(net, &["--outside-congestion", "reno"]);
    let mut pair = node.connect();
    pair.exchange(1_000);
    let port = pair.client_port();
    let flow = node
        .daemon
        .wait_flow("the connection", |f| f.client.peer.port() == port);
    let server = node.listener.local_addr().unwrap().port();
    let toward = |port: u16| {
        let filter = format!("dport = :{port}");
        let out = node
            .net
            .forwarder
            .command("ss")
            .args(["-tnHi", &filter])
            .output()
            .unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        ["reno", "cubic"].map(|name| text.split_whitespace().any(|word| word == name))
    };
    let (reno, cubic) = ([true, false], [false, true]);
    assert_eq!((toward(server), toward(port)), (reno, cubic));
    node.daemon.splice(flow.id).unwrap();
    node.daemon.wait_state(port, &["detached"]);
    node.daemon.unsplice(flow.id).unwrap();
    node.daemon.wait_state(port, &["relay"]);
    assert_eq!((toward(server), toward(port)), (reno, cubic));
    pair.exchange(100_000);
    pair.close();
}

/// A handshake that met a full queue makes its leg look longer than it is. The connection is not released for it.
#[test]
fn a_handshake_behind_a_full_queue_is_no_reason_for_a_release() {
    let slow = "rtt=20ms,10Mbit,queue=1MiB".parse().unwrap();
    let net = emulated("acc-late-answer", "rtt20".parse().unwrap(), slow);
    let node = Node::new(net, &[]);
    let burst = || {
        let socket = UdpSocket::bind((node.net.server_addr, 0)).unwrap();
        for _ in 0..400 {
            socket.send_to(&[0; 1_200], (node.net.client_addr, 9)).unwrap();
        }
    };
    let mut attempts = 0;
    // A client without a processor may come only when the queue is empty again.
    let mut pair = eventually("a handshake that meets the queue", SOON, || {
        node.net.server.run(burst).unwrap();
        let began = Instant::now();
        let pair = node.connect();
        attempts += 1;
        (began.elapsed() > Duration::from_millis(250)).then_some(pair)
    });
    for _ in 0..30 {
        pair.exchange(100);
    }
    let totals = totals(&node.daemon.status());
    assert_eq!(totals, (attempts, 0), "taken over and released");
    pair.close();
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

/// A sender that is guided by losses fills the queue of its bottleneck, and would do so without the node. Beside another
/// connection, which has less than it, it leaves that one room, and is released.
#[test]
fn a_connection_that_fills_a_shared_bottleneck_leaves_room_and_is_released() {
    let yields = Cell::new(false);
    let status = with_processors(|| {
        let node = before_a_bottleneck("acc-queue");
        let mut plain = node.connect();
        node.daemon.splice_to(plain.client_port(), "detached");
        let mut pair = node.connect();
        let port = pair.client_port();
        let yielding =
            |flow: &Flow| flow.client.peer.port() == port && flow.reason.as_deref() == Some("advised_yield");
        let is_over = AtomicBool::new(false);
        let exchange = |pair: &mut Pair, bytes| {
            while !is_over.load(Ordering::Relaxed) {
                pair.exchange_unevenly(bytes, 0);
            }
        };
        yields.set(false);
        let status = thread::scope(|scope| {
            scope.spawn(|| exchange(&mut pair, 2 << 20));
            scope.spawn(|| exchange(&mut plain, 10_000));
            let _over = Raise(&is_over);
            node.wait_status("the release", |status| {
                yields.set(yields.get() || node.daemon.flows().iter().any(yielding));
                totals(status) == (2, 2)
            })
        });
        pair.close();
        plain.close();
        status
    });
    let released = status.accelerator.unwrap().released_by_reason;
    assert_eq!(released["standing_queue"], 1, "{released:?}");
    assert!(yields.get(), "it has left room first");
}

/// The last bytes of a piece tell of the queue that it has filled. That queue does not stand while nothing follows them.
#[test]
fn a_connection_that_rests_between_pieces_stays_taken_over() {
    // Time for which a queue must stand.
    const STANDS: Duration = Duration::from_millis(400);
    let status = eventually("pieces that pass sooner than a queue stands", 6 * SOON, || {
        let node = before_a_bottleneck("acc-rest");
        let mut plain = node.connect();
        node.daemon.splice_to(plain.client_port(), "detached");
        let mut pair = node.connect();
        let (is_over, mut longest) = (AtomicBool::new(false), Duration::ZERO);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    plain.exchange_unevenly(6_000, 0);
                }
            });
            let _over = Raise(&is_over);
            for _ in 0..4 {
                let began = Instant::now();
                pair.exchange_unevenly(150_000, 0);
                longest = longest.max(began.elapsed());
                thread::sleep(2 * STANDS);
            }
        });
        let status = node.daemon.status();
        pair.close();
        plain.close();
        (longest < STANDS).then_some(status)
    });
    let released = status.accelerator.unwrap().released_by_reason;
    assert_eq!(released["standing_queue"], 0, "{released:?}");
}

/// A connection that has its bottleneck for itself would only lose by a release.
#[test]
fn a_connection_alone_on_its_bottleneck_stays_taken_over() {
    let status = with_processors(|| {
        let node = before_a_bottleneck("acc-alone");
        let mut pair = node.connect();
        pair.exchange_unevenly(3 << 20, 0);
        let status = node.daemon.status();
        pair.close();
        status
    });
    assert_eq!(
        totals(&status),
        (1, 0),
        "{:?}",
        status.accelerator.unwrap().released_by_reason
    );
}

/// Sends less than its window allows: the node gains nothing. The end of a stream shows no rate.
#[test]
fn a_connection_slower_than_its_window_is_released() {
    let status = with_processors(|| {
        let link = || "rtt=20ms,100Mbit".parse().unwrap();
        let node = Node::new(
            emulated("acc-slower", link(), link()),
            &["--standing-queue", "keep"],
        );
        let mut pair = node.connect();
        pair.exchange_unevenly(4 << 20, 0);
        let status = node.daemon.status();
        assert_eq!(totals_by_path(&status), (1, 0), "it ended");
        let status = eventually("the release", SOON, || {
            // Each piece takes half of a round trip.
            for _ in 0..5 {
                pair.exchange_unevenly(24_000, 0);
            }
            let status = node.daemon.status();
            let (taken, released) = totals(&status);
            assert_eq!(taken, 1);
            (released == 1).then_some(status)
        });
        pair.exchange(1 << 20);
        pair.close();
        status
    });
    let released = status.accelerator.unwrap().released_by_reason;
    assert_eq!(released["keeps_its_rate"], 1, "{released:?}");
}

/// A node that may hold less than half of what the ends offer would slow them down wherever it stood.
#[test]
fn a_node_with_small_buffers_leaves_connections_alone() {
    let net = long_path("acc-buffers");
    net.forwarder
        .sysctl("net.ipv4.tcp_wmem", "4096 16384 20480")
        .unwrap();
    let node = Node::new(net, &[]);
    let mut pair = node.connect();
    pair.exchange(1 << 20);
    let accelerator = node.daemon.status().accelerator.unwrap();
    assert_eq!(accelerator.passed_through_total["buffers"], 1, "{accelerator:?}");
    assert_eq!(accelerator.taken_over_total, 0);
    node.net
        .forwarder
        .sysctl("net.ipv4.tcp_wmem", "4096 16384 4194304")
        .unwrap();
    pair.close();
}

/// A node may have buffers that are large enough at first, and turn out to be the limit.
#[test]
fn a_connection_that_the_nodes_buffers_slow_down_is_released() {
    let near = "rtt=4ms,100Mbit,queue=256KiB".parse().unwrap();
    let net = emulated(
        "acc-slowed",
        near,
        "rtt=24ms,100Mbit,queue=256KiB".parse().unwrap(),
    );
    net.forwarder
        .sysctl("net.ipv4.tcp_wmem", "4096 16384 45000")
        .unwrap();
    let node = Node::new(net, &["--min-gain", "1.01"]);
    let mut pair = node.connect();
    pair.exchange(8 << 20);
    let status = node.wait_status("the release", |s| totals(s) == (1, 1));
    let released = status.accelerator.unwrap().released_by_reason;
    assert_eq!(released["own_buffers"], 1, "{released:?}");
    pair.close();
}
