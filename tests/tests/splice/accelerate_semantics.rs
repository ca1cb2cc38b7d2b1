//! All that ends of a connection can say to each other passes the accelerator as it passes a router: half-closes, resets, urgent
//! data, keep-alives, errors about long packets; taken over, released, and taken over again, over IPv4 and IPv6.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use longsplice_lab::{Emulated, Family, Namespace};
use longsplice_tests::{Pair, SOON, accept, soon};
use nix::libc;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use crate::accelerate::{Behind, Node, long_path, passed_through, router, totals};

/// State of a connection in its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    TakenOver,
    Released,
    Again,
}

pub(crate) const DEPTHS: [Depth; 3] = [Depth::TakenOver, Depth::Released, Depth::Again];

impl Depth {
    /// Brings a connection there.
    pub(crate) fn reach(self, node: &Node<Emulated>, pair: &mut Pair) {
        pair.exchange_unevenly(1_000, 1_000);
        let port = pair.client_port();
        let flow = node.daemon.wait_state(port, &["relay"]);
        if self == Depth::TakenOver {
            return;
        }
        soon("a release", || node.daemon.splice(flow.id).is_ok());
        node.daemon.wait_state(port, &["dormant", "detached"]);
        if self == Depth::Again {
            node.daemon.unsplice(flow.id).unwrap();
            node.daemon.wait_state(port, &["relay"]);
        }
    }
}

/// Runs a test with a new connection for each family and state.
fn each(name: &str, test: impl Fn(&Node<Emulated>, Pair)) {
    for family in [Family::V4, Family::V6] {
        let link = || "rtt20".parse().unwrap();
        let node = Node::new(Emulated::of(family, name, link(), link()).unwrap(), &[]);
        for depth in DEPTHS {
            println!("{family:?} {depth:?}");
            let mut pair = node.connect();
            depth.reach(&node, &mut pair);
            test(&node, pair);
        }
    }
}

/// The end of one direction comes behind its last byte, while the other direction goes on.
#[test]
fn a_half_close_follows_its_data_and_the_other_half_goes_on() {
    each("acc-half", |_, mut pair| {
        thread::scope(|scope| {
            let client = &mut pair.client;
            scope.spawn(|| {
                client.send(300_000);
                client.finish();
            });
            pair.server.receive(300_000);
            pair.server.expect_end();
        });
        pair.exchange_unevenly(0, 500_000);
        pair.server.finish();
        pair.client.expect_end();
    });
}

#[test]
fn a_reset_reaches_the_other_end() {
    each("acc-reset-c", |_, pair| {
        let Pair { client, mut server } = pair;
        client.reset();
        server.expect_reset(SOON);
    });
    each("acc-reset-s", |_, pair| {
        let Pair { mut client, server } = pair;
        server.reset();
        client.expect_reset(SOON);
    });
}

fn say(mut from: &TcpStream, to: &mut &TcpStream) {
    SockRef::from(*to).set_out_of_band_inline(true).unwrap();
    from.write_all(b"ab").unwrap();
    SockRef::from(from).send_out_of_band(b"c").unwrap();
    from.write_all(b"de").unwrap();
    let mut read = [0; 5];
    to.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"abcde");
}

#[test]
fn urgent_bytes_keep_their_place() {
    each("acc-urgent", |_, pair| {
        let (client, server) = (&pair.client.stream, &pair.server.stream);
        say(client, &mut &*server);
        say(server, &mut &*client);
    });
}

/// Returns the number of keep-alive probes that a namespace has sent.
fn probes(namespace: &Namespace) -> u64 {
    let out = namespace
        .command("cat")
        .arg("/proc/net/netstat")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split(' ').zip(values.split(' '));
    both.find(|(name, _)| *name == "TCPKeepAlive")
        .unwrap()
        .1
        .parse()
        .unwrap()
}

/// Idle connections of ends that probe each other live on.
#[test]
fn keep_alives_are_answered() {
    const PROBES: u64 = 2;
    let node = Node::new(long_path("acc-alive"), &[]);
    let before = [&node.net.client, &node.net.server].map(probes);
    let mut pairs = DEPTHS.map(|depth| {
        let mut pair = node.connect();
        depth.reach(&node, &mut pair);
        let second = Duration::from_secs(1);
        let often = TcpKeepalive::new()
            .with_time(second)
            .with_interval(second)
            .with_retries(2);
        for end in [&pair.client, &pair.server] {
            SockRef::from(&end.stream).set_tcp_keepalive(&often).unwrap();
        }
        pair
    });
    soon("probes of all ends", || {
        let now = [&node.net.client, &node.net.server].map(probes);
        now.iter()
            .zip(before)
            .all(|(now, before)| now - before >= PROBES * 3)
    });
    for pair in &mut pairs {
        pair.exchange(100_000);
        pair.close();
    }
}

/// The node neither probes idle ends nor resets them: it releases them.
#[test]
fn an_idle_connection_is_released_unprobed() {
    let node = Node::new(long_path("acc-idle"), &["--idle-timeout", "3s"]);
    let mut pair = node.connect();
    pair.exchange(100_000);
    let is_probed = || {
        let probed = node.net.forwarder.run(|| {
            let sockets = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
            let timer = |line: &str| line.split_whitespace().nth(5).unwrap().starts_with("02:");
            sockets.lines().any(timer)
        });
        probed.unwrap()
    };
    soon("its release", || {
        assert!(!is_probed(), "a socket of the node has a keep-alive timer");
        totals(&node.daemon.status()) == (1, 1)
    });
    let released = node.daemon.status().accelerator.unwrap().released_by_reason;
    assert_eq!(released["idle"], 1, "{released:?}");
    pair.exchange(100_000);
    pair.close();
}

/// Returns the number of packets that a router would have had to fragment, and must not.
fn refused(router: &Namespace) -> i64 {
    let counters = router.snmp().unwrap();
    counters.get("Ip.FragFails") + counters.get("Ip6.FragFails")
}

/// A router behind the node tells who sends that packets are too long: the client, or the node. A node that knows the path
/// does not release a connection whose legs differ by that, so each state has a node of its own.
#[test]
fn a_narrow_path_to_the_server_is_found_in_each_state() {
    for depth in DEPTHS {
        println!("{depth:?}");
        let node = Node::new(long_path("acc-narrow"), &[]);
        let behind = Behind::new("acc-narrow", &node.net, 1300);
        let mut pair = behind.connect(&node.net.client);
        depth.reach(&node, &mut pair);
        pair.exchange_unevenly(500_000, 1_000);
        assert!(refused(&node.net.server) > 0, "{depth:?}: no packet was too long");
        pair.close();
    }
}

/// A router before the node tells the server, or the node in its name, about packets to the client.
#[test]
fn a_narrow_path_to_the_client_is_found_in_each_state() {
    for depth in DEPTHS {
        println!("{depth:?}");
        let node = Node::new(long_path("acc-narrow-back"), &[]);
        let behind = Behind::client("acc-narrow-back", &node.net, 1300);
        let mut pair = behind.connect_to(&node.listener);
        depth.reach(&node, &mut pair);
        pair.exchange_unevenly(1_000, 500_000);
        assert!(refused(&node.net.client) > 0, "{depth:?}: no packet was too long");
        pair.close();
    }
}

/// Payload in a SYN reaches the server without the node: the client that asks for a cookie passes through, and so does the one
/// that has it.
#[test]
fn fast_open_passes_through() {
    let net = router("acc-fast-open");
    // Let clients have it, and servers without asking.
    for end in [&net.client, &net.server] {
        end.sysctl("net/ipv4/tcp_fastopen", "1027").unwrap();
    }
    let node = Node::new(net, &[]);
    let target = node.listener.local_addr().unwrap();
    for _ in 0..2 {
        let open = || {
            let socket = Socket::new(Domain::for_address(target), Type::STREAM, None).unwrap();
            let sent = socket.send_to_with_flags(b"early", &target.into(), libc::MSG_FASTOPEN);
            assert_eq!(sent.unwrap(), 5);
            socket
        };
        let client = node.net.client.run(open).unwrap();
        let mut server = accept(&node.listener);
        let mut read = [0; 5];
        server.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"early");
        drop(client);
        assert_eq!(server.read(&mut read).unwrap(), 0);
    }
    let with_payload = node.net.client.snmp().unwrap().get("TcpExt.TCPFastOpenActive");
    assert_eq!(with_payload, 1);
    let status = node.daemon.status();
    let passed = |reason| passed_through(&status, reason);
    assert_eq!(
        (passed("options"), passed("asymmetric"), totals(&status).0),
        (2, 0, 0)
    );
}
