//! Connections of an accelerator that make room for those of an earlier class.
//!
//! `min_gain` is 1.0 here: an emulator without a processor makes one leg seem nearly all of the path, and the node would pass
//! through or release what a test has it keep.

use std::{
    io::ErrorKind,
    net::{IpAddr, TcpStream},
    thread,
    time::Duration,
};

use longsplice_lab::Emulated;
use longsplice_tests::{Config, Daemon, Pair, SOON, addr, connect_from, emulated, ip, line, nodad, soon};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::accelerate::{Node, long_path, passed_through, totals};

/// A node that has little room, between a server and a client that has the addresses of two customers.
struct Crowded {
    node: Node<Emulated>,
    other: IpAddr,
}

impl Crowded {
    fn new(name: &str, max_connections: &str) -> Crowded {
        let preferred = line("198.18.1.1/32");
        let more = [
            "--min-gain",
            "1.0",
            "--max-connections",
            max_connections,
            "--prefer",
            &preferred,
            "--verbose",
        ];
        Crowded::of(Node::new(long_path(name), &more))
    }

    fn of(node: Node<Emulated>) -> Crowded {
        let nodad = nodad(node.net.family());
        let other = format!("addr add 198.18.1.9/24 dev c0 {nodad}");
        ip(&node.net.client, &other);
        Crowded {
            node,
            other: addr("198.18.1.9"),
        }
    }

    fn connect_from(&self, address: IpAddr) -> Pair {
        let target = self.node.listener.local_addr().unwrap();
        let client = connect_from(&self.node.net.client, (address, 0).into(), target);
        Pair::accept(client.unwrap(), &self.node.listener)
    }

    /// Connects the customer of the first class.
    fn preferred(&self) -> Pair {
        self.connect_from(self.node.net.client_addr)
    }

    /// Connects the customer of no class.
    fn other(&self) -> Pair {
        self.connect_from(self.other)
    }

    /// Fills a connection of no class whose client does not read. Returns the number of bytes that wait, too.
    fn stopped(&self) -> (Pair, u64) {
        let mut pair = self.other();
        pair.exchange(1_000);
        let waiting = pair.server.fill();
        (pair, waiting)
    }

    fn wait_refusal(&self) {
        let log = || self.node.daemon.log();
        soon("a refusal", || log().contains("it was to make room, and stays"));
    }

    fn is_released(&self, pair: &Pair) -> bool {
        let flows = self.node.daemon.flows();
        let flow = flows
            .iter()
            .find(|flow| flow.client.peer.port() == pair.client_port());
        flow.is_some_and(|flow| matches!(flow.state.as_str(), "dormant" | "detached"))
    }
}

/// The SYNs of many connections come before the first answer. Each answer finds its place, or none.
#[test]
fn connections_that_open_at_once_keep_to_the_limit() {
    const CONNECTIONS: usize = 100;
    const MOST: u64 = 10;
    let link = || "rtt=300ms,100Mbit".parse().unwrap();
    let net = emulated("acc-at-once", link(), link());
    let node = Node::new(net, &["--max-connections", "10", "--min-gain", "1.0"]);
    let target = node.listener.local_addr().unwrap();
    let connect = || {
        let connected = TcpStream::connect_timeout(&target, SOON);
        connected.unwrap()
    };
    let all = || -> Vec<TcpStream> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(connect)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    let connected = node.net.client.run(all).unwrap();
    let status = node.wait_status("a decision about each", |s| {
        let passed = &s.accelerator.as_ref().unwrap().passed_through_total;
        totals(s).0 + passed.values().sum::<u64>() >= CONNECTIONS as u64
    });
    let (taken_over, released) = totals(&status);
    let held = taken_over - released;
    assert!((1..=MOST).contains(&held), "{:?}", status.accelerator);
    drop(connected);
}

/// A connection is not released for a SYN that no server answers.
#[test]
fn a_server_that_does_not_answer_takes_no_room() {
    let crowded = Crowded::new("acc-silent", "1");
    let mut other = crowded.other();
    other.exchange(100_000);
    let net = &crowded.node.net;
    let silent = addr("198.18.9.9");
    ip(
        &net.forwarder,
        &format!("route add {}/24 via {}", addr("198.18.9.0"), net.server_addr),
    );
    ip(&net.server, &format!("route add blackhole {silent}"));
    let connect = || TcpStream::connect_timeout(&(silent, 7_000).into(), Duration::from_millis(1_500));
    let timed_out = net.client.run(connect).unwrap().unwrap_err();
    assert_eq!(timed_out.kind(), ErrorKind::TimedOut);
    assert!(!crowded.is_released(&other));
    // A server that answers does.
    let mut preferred = crowded.preferred();
    preferred.exchange(1_000);
    soon("the release", || crowded.is_released(&other));
    for pair in [&mut other, &mut preferred] {
        pair.exchange(1_000);
        pair.close();
    }
}

/// Releases idle connections before what the sockets of taken-over connections hold in the kernel is too much.
#[test]
fn idle_connections_are_released_when_memory_runs_short() {
    const THREADS: usize = 20;
    const EACH: usize = 35;
    /// Memory that the sockets of a connection count with.
    const SOCKETS: u64 = 8 << 10;
    /// Smallest limit of memory.
    const LEAST: u64 = 16 << 20;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let most = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, most).unwrap();
    let config = |memory: &str| {
        Config::new()
            .set(&format!("memory = \"{memory}\""))
            .set("[accelerate]\ninside = \"f0\"\noutside = \"f1\"\nmin_gain = 1.0")
    };
    let node = Node::with(long_path("acc-memory"), Daemon::of(&config("none")));
    let target = node.listener.local_addr().unwrap();
    let connect = || -> Vec<TcpStream> {
        let one = |_| TcpStream::connect_timeout(&target, SOON).unwrap();
        (0..EACH).map(one).collect()
    };
    let all = || -> Vec<TcpStream> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(connect)).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        })
    };
    let accept = || -> Vec<_> {
        (0..THREADS * EACH)
            .map(|_| node.listener.accept().unwrap())
            .collect()
    };
    let (connected, accepted) = thread::scope(|scope| {
        let accepted = scope.spawn(accept);
        (node.net.client.run(all).unwrap(), accepted.join().unwrap())
    });
    let opened = (THREADS * EACH) as u64;
    node.wait_status("all to be taken over", |s| totals(s).0 == opened);
    // Three quarters of the limit lie above the process's own memory, and below that with the sockets.
    let own = node.daemon.memory_kib("RssAnon") << 10;
    let limit = ((own + opened * SOCKETS / 2) * 4 / 3).max(LEAST);
    let threshold = limit / 4 * 3;
    assert!((own..own + opened * SOCKETS).contains(&threshold), "{own} bytes");
    node.daemon.change(&config(&format!("{limit}B"))).unwrap();
    let status = node.wait_status("a release", |s| totals(s).1 > 0);
    assert_eq!(passed_through(&status, "memory"), 0);
    drop((connected, accepted));
}

/// A connection whose reader has stopped is the first to be asked when memory runs short, and cannot be released. Others are.
#[test]
fn a_stopped_reader_holds_no_release_up() {
    /// Length of a name that gives the process a size from which connections are released.
    const NAME: usize = 8 << 20;
    let (name, preferred) = ("x".repeat(NAME), line("198.18.1.1/32"));
    let config = |memory: &str| {
        let class = format!("[[accelerate.class]]\nname = \"{name}\"\nnetworks = \"{preferred}\"");
        Config::new()
            .set(&format!("memory = \"{memory}\""))
            .set("[accelerate]\ninside = \"f0\"\noutside = \"f1\"\nmin_gain = 1.0")
            .set(&class)
    };
    let crowded = Crowded::of(Node::with(long_path("acc-stopped"), Daemon::of(&config("none"))));
    let node = &crowded.node;
    let (mut stopped, waiting) = crowded.stopped();
    let mut others = [(); 3].map(|()| {
        let mut pair = crowded.preferred();
        pair.exchange(1_000);
        pair
    });
    let limit = (node.daemon.memory_kib("RssAnon") << 10) / 4 * 5;
    node.daemon.change(&config(&format!("{limit}B"))).unwrap();
    node.wait_status("the release of all but one", |s| totals(s).1 == 3);
    assert!(!crowded.is_released(&stopped));
    stopped.client.receive(waiting);
    soon("its release", || crowded.is_released(&stopped));
    for pair in others.iter_mut().chain([&mut stopped]) {
        pair.exchange(1_000);
        pair.close();
    }
}

#[test]
fn an_earlier_class_finds_room() {
    let mut crowded = Crowded::new("acc-class", "1");
    let mut other = crowded.other();
    other.exchange(100_000);
    let mut preferred = crowded.preferred();
    preferred.exchange(100_000);
    soon("the release", || crowded.is_released(&other));
    let mut third = crowded.other();
    third.exchange(100_000);
    let node = &mut crowded.node;
    let status = node.wait_status("one passed through", |s| passed_through(s, "limit") == 1);
    assert_eq!(totals(&status), (2, 1));
    for pair in [&mut other, &mut preferred, &mut third] {
        pair.exchange(100_000);
        pair.close();
    }
    node.daemon.terminate();
    node.daemon.join();
}

/// A connection whose reader has stopped cannot be released. It makes room as soon as the reader reads.
#[test]
fn a_connection_that_could_not_make_room_does_so_later() {
    let crowded = Crowded::new("acc-room", "1");
    let (mut other, waiting) = crowded.stopped();
    let mut preferred = crowded.preferred();
    preferred.exchange(100_000);
    crowded.wait_refusal();
    assert!(!crowded.is_released(&other));
    preferred.close();
    other.client.receive(waiting);
    soon("the release", || {
        let mut preferred = crowded.preferred();
        preferred.exchange(1_000);
        preferred.close();
        crowded.is_released(&other)
    });
    other.exchange(100_000);
    other.close();
}

#[test]
fn the_next_one_makes_room_where_the_oldest_one_cannot() {
    let crowded = Crowded::new("acc-next", "2");
    let (mut oldest, waiting) = crowded.stopped();
    let mut next = crowded.other();
    next.exchange(100_000);
    let mut preferred = crowded.preferred();
    crowded.wait_refusal();
    soon("the release", || crowded.is_released(&next));
    assert!(!crowded.is_released(&oldest));
    oldest.client.receive(waiting);
    for pair in [&mut oldest, &mut next, &mut preferred] {
        pair.exchange(100_000);
        pair.close();
    }
}
