//! SYNs with a forged source: through the accelerator they get no further than without it.

use std::{fs, io::ErrorKind};

use longsplice_engine::Side;
use longsplice_lab::{Line, Namespace};
use longsplice_repair::tcp_info;
use longsplice_tests::{SOON, blind::Blind, eventually, rng, silent::Silent, soon};

use crate::accelerate::{Node, long_path, passed_through, router, totals};

/// States of `/proc/net/tcp`, and of `tcp6`.
const ESTABLISHED: &str = "01";
pub(crate) const SYN_RECEIVED: &str = "03";
pub(crate) const TIME_WAIT: &str = "06";

/// Number of forged SYNs.
const SYNS: u16 = 3;

/// Returns the number of sockets of a namespace that are in this state.
pub(crate) fn in_state(namespace: &Namespace, state: &str) -> usize {
    let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
    let lists = namespace.run(|| ["tcp", "tcp6"].map(read)).unwrap();
    let has_state = |line: &&str| line.split_whitespace().nth(3) == Some(state);
    lists
        .iter()
        .flat_map(|list| list.lines())
        .filter(has_state)
        .count()
}

/// Sends forged SYNs through a node, until the server has answered and the node has sockets for each of them.
fn forged(node: &Node<Line>) -> Silent {
    let mut forger = Silent::new(&node.net, node.listener.local_addr().unwrap());
    forger.knock(SYNS);
    soon("the sockets of the node", || {
        in_state(&node.net.forwarder, ESTABLISHED) == 2 * usize::from(SYNS)
    });
    assert_eq!(in_state(&node.net.server, SYN_RECEIVED), usize::from(SYNS));
    forger
}

/// Asserts that the server has no connection of a forged client.
fn assert_none_accepted(node: &Node<Line>) {
    node.listener.set_nonblocking(true).unwrap();
    assert_eq!(node.listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    node.listener.set_nonblocking(false).unwrap();
}

#[test]
fn a_silent_source_gets_no_connection_and_gives_its_place_back() {
    let node = Node::new(router("acc-forged"), &[]);
    let _forger = forged(&node);
    assert_none_accepted(&node);
    let mut pair = node.connect();
    pair.exchange(100_000);
    pair.close();
    eventually("the end of its time", 3 * SOON, || {
        (passed_through(&node.daemon.status(), "unconfirmed") == u64::from(SYNS)).then_some(())
    });
    assert_none_accepted(&node);
    assert_eq!(totals(&node.daemon.status()).0, 1);
    soon("its sockets to be gone", || {
        in_state(&node.net.forwarder, ESTABLISHED) == 0
    });
}

/// The reset of a host that has sent no SYN frees the server at once.
#[test]
fn a_source_that_refuses_ends_it() {
    let node = Node::new(router("acc-refuses"), &[]);
    let mut forger = forged(&node);
    forger.refuse();
    soon("its end", || {
        in_state(&node.net.forwarder, ESTABLISHED) + in_state(&node.net.server, SYN_RECEIVED) == 0
    });
    assert_none_accepted(&node);
    assert_eq!(totals(&node.daemon.status()).0, 0);
}

/// A source that sends other SYNs before it acknowledges the answer takes no more than a few segments of the node.
#[test]
fn a_source_that_opens_again_stops_nothing() {
    const FEW: i64 = 100;
    let mut node = Node::new(router("acc-opens-again"), &[]);
    let mut forger = forged(&node);
    let came = || node.net.forwarder.snmp().unwrap().get("Tcp.InSegs");
    let before = came();
    forger.open_again();
    let mut pair = node.connect();
    pair.exchange(100_000);
    pair.close();
    assert_eq!(totals(&node.daemon.status()).0, 1);
    let segments = came() - before;
    assert!(segments < FEW, "{segments} segments");
    node.daemon.terminate();
    assert_eq!(node.daemon.join(), Some(0), "{}", node.daemon.log());
}

/// A node that stops leaves handshakes to their ends.
#[test]
fn a_client_may_acknowledge_after_the_end_of_the_node() {
    let mut node = Node::new(router("acc-unconfirmed-stop"), &[]);
    let _forger = forged(&node);
    node.daemon.terminate();
    assert_eq!(node.daemon.join(), Some(0), "{}", node.daemon.log());
    assert_none_accepted(&node);
    assert_eq!(
        in_state(&node.net.server, SYN_RECEIVED),
        usize::from(SYNS),
        "no reset has come"
    );
}

/// Forged SYNs on a taken-over connection are answered by its socket, as without the node: the sender that they name keeps its
/// window, and hears of few of them.
#[test]
fn a_forged_syn_takes_no_window_away() {
    const SYNS: u64 = 100;
    const FEW: i64 = 10;
    let net = long_path("acc-forged-syn");
    // Time in which a socket answers once, in milliseconds.
    net.forwarder
        .sysctl("net/ipv4/tcp_invalid_ratelimit", "600000")
        .unwrap();
    let node = Node::new(net, &["--min-gain", "1.0"]);
    let mut pair = node.connect();
    pair.exchange(100_000);
    node.daemon.wait_state(pair.client_port(), &["relay"]);
    let mut rng = rng();
    for side in Side::BOTH {
        let namespace = match side {
            Side::Client => &node.net.client,
            Side::Server => &node.net.server,
        };
        let counted = |namespace: &Namespace, name| namespace.snmp().unwrap().get(name);
        let came = || counted(namespace, "Tcp.InSegs");
        let challenged = || counted(&node.net.forwarder, "TcpExt.TCPSYNChallenge");
        let (came_before, challenged_before) = (came(), challenged());
        let stream = &pair.ends(side)[0].stream;
        let (from, to) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let mut blind = Blind::new(namespace, rng.fork(), from, to);
        (0..SYNS).for_each(|_| blind.guess_syn());
        soon("an answer", || came() > came_before);
        let window = tcp_info(stream).unwrap().snd_wnd();
        assert!(window > Some(0), "{side:?}: {window:?}");
        soon("all to be challenged", || {
            challenged() - challenged_before == SYNS as i64
        });
        pair.exchange(1_000);
        let answers = came() - came_before;
        assert!(answers < FEW, "{side:?}: {answers} segments");
    }
    node.daemon.wait_state(pair.client_port(), &["relay"]);
    pair.close();
}
