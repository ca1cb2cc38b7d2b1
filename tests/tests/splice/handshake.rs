//! The identity case (papers' section III-F): a handshake passes through, both sockets have the numbers of the far
//! ends, and a spliced segment keeps all but its time to live.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use longsplice_engine::{
    FlowInfo, Pair as Near, Side, Until,
    handshake::{Admission, Handshakes, Taken, rules},
    intercept::{Owner, Routing},
    policy::SplicePolicy,
    rules::{Family, RulePacket},
};
use longsplice_lab::{Line, LineOptions, Namespace};
use longsplice_repair::close_silently;
use longsplice_tests::{
    Pair, SOON, accept, capture, connect_again, eventually, family,
    library::{Depth, Library, at_once, target, trap_of},
    soon, veth_line,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Router in the middle through which handshakes pass.
struct Lab {
    // Fields are dropped in this order: the library and its routing end before their namespace.
    routing: Option<Routing>,
    made: UnboundedReceiver<Near>,
    library: Library,
    listener: TcpListener,
    _captures: Vec<longsplice_lab::Process>,
    net: Line,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let routing = self.routing.take();
        self.net.forwarder.run(|| drop(routing)).unwrap();
    }
}

impl Lab {
    /// Sets up the laboratory; `lost` selects packets, by their number, that get lost on their way in.
    fn new(name: &str, lost: fn(usize) -> bool) -> Lab {
        let net = veth_line(name, LineOptions::router());
        let captures = capture(&net);
        let library = Library::open(&net.forwarder);
        let listener = target(&net);
        let families = match family() {
            longsplice_lab::Family::V4 => [Family::V4],
            longsplice_lab::Family::V6 => [Family::V6],
        };
        let interfaces = ["f0".to_owned(), "f1".to_owned()];
        let routing = net
            .forwarder
            .run(|| Routing::set("test-handshake", &interfaces, &families, Owner::Us))
            .unwrap()
            .unwrap();
        let splicer = library.splicer().clone();
        let (sender, made) = unbounded_channel();
        let work = async move {
            let wanted = rules("f0", "f1", &[], &["7000-7001".parse().unwrap()]);
            splicer.set_rules(wanted).await.unwrap();
            let mut packets = splicer.rule_packets().unwrap();
            let mut handshakes = Handshakes::new(&splicer);
            let mut seen = 0;
            tokio::spawn(async move {
                let opened = |taken| {
                    if let Taken::Opened(opened) = taken {
                        sender.send(opened.pair).unwrap();
                    }
                };
                loop {
                    let some = tokio::select! {
                        next = packets.next() => match next {
                            Ok(some) => some,
                            Err(_) => break,
                        },
                        () = handshakes.due() => Vec::new(),
                    };
                    for packet in some {
                        seen += 1;
                        if !lost(seen) {
                            take(&mut handshakes, &packet).into_iter().for_each(opened);
                        }
                    }
                    handshakes.look().into_iter().for_each(opened);
                }
            });
        };
        library.run(library.spawn(work)).unwrap();
        Lab {
            routing: Some(routing),
            made,
            library,
            listener,
            _captures: captures,
            net,
        }
    }

    /// Connects the client to the server; returns the far ends and the near ones.
    fn connect(&mut self) -> (Pair, Near) {
        let client = connect_to(&self.net.client, self.listener.local_addr().unwrap());
        let far = Pair::of(client, accept(&self.listener));
        let near = eventually("the pair", SOON, || self.made.try_recv().ok());
        (far, near)
    }
}

fn take(handshakes: &mut Handshakes, packet: &RulePacket) -> Option<Taken> {
    handshakes.take(packet, |_| Admission::TakeOver).unwrap()
}

fn connect_to(client: &Namespace, server: SocketAddr) -> TcpStream {
    let connected = client.run(|| TcpStream::connect_timeout(&server, SOON)).unwrap();
    connected.unwrap_or_else(|e| panic!("cannot connect to {server}: {e}"))
}

fn flow_of(lab: &Lab, pair: &Pair, depth: Depth) -> FlowInfo {
    lab.library.wait_state(pair.client_port(), &[depth.state()])
}

#[test]
fn a_connection_is_spliced_without_a_change() {
    for depth in Depth::BOTH {
        let mut lab = Lab::new("hs-identity", |_| false);
        for speaks_first in Side::BOTH {
            let (mut pair, near) = lab.connect();
            assert_eq!(
                pair.server.stream.peer_addr().unwrap(),
                pair.client.stream.local_addr().unwrap(),
                "each sees the other"
            );
            let call = lab.library.splice(at_once(near, depth), Until::closed());
            let [first, second] = pair.ends(speaks_first);
            first.send(100_000);
            second.receive(100_000);
            pair.exchange(1 << 20);
            let port = pair.client_port();
            let flow = flow_of(&lab, &pair, depth);
            soon("the record to say so", || {
                let mut flows = lab.library.splicer().flows();
                flows.any(|f| f.id == flow.id && f.is_identity())
            });
            pair.exchange(8 << 20);
            assert_eq!(pair.client_port(), port);
            pair.close();
            drop(call);
        }
        lab.library.wait_reaped();
        for node in [&lab.net.client, &lab.net.forwarder, &lab.net.server] {
            let counters = node.snmp().unwrap();
            let refused =
                ["TcpExt.PAWSEstab", "TcpExt.PAWSActive", "Tcp.OutRsts"].map(|name| counters.get(name));
            assert_eq!(refused, [0; 3], "nothing was refused");
        }
    }
}

/// The handler reads and writes as it likes; a returned pair is an ordinary one.
#[test]
fn a_pair_comes_back_at_a_request() {
    for depth in Depth::BOTH {
        let mut lab = Lab::new("hs-back", |_| false);
        let (mut pair, near) = lab.connect();
        let mut next = at_once(near, depth);
        for round in 0..4 {
            let side = Side::BOTH[round % 2];
            let call = lab.library.splice(next, Until::bytes_from(side, 50_000));
            let [from, to] = pair.ends(side);
            from.send(50_001);
            to.receive(50_000);
            let mut returned = call.returned();
            assert_eq!(returned.why, trap_of(side));
            let socket = longsplice_tests::library::near(&mut returned, side);
            let rest = lab.library.read(socket, 1);
            to.vouch(&rest);
            // That byte was read here, and goes no further: from now on the numbers differ.
            next = at_once(returned, depth);
        }
    }
}

/// Concurrent handshakes do not mix.
#[test]
fn many_at_once() {
    const CONNECTIONS: usize = 60;
    let mut lab = Lab::new("hs-many", |_| false);
    let (client, server) = (&lab.net.client, lab.listener.local_addr().unwrap());
    let mut clients: Vec<TcpStream> = thread::scope(|scope| {
        let one = || scope.spawn(|| connect_to(client, server));
        let all: Vec<_> = (0..CONNECTIONS).map(|_| one()).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let mut calls = Vec::new();
    let mut pairs = Vec::new();
    for _ in 0..CONNECTIONS {
        let far = accept(&lab.listener);
        let of = far.peer_addr().unwrap();
        let at = clients.iter().position(|c| c.local_addr().unwrap() == of);
        pairs.push(Pair::of(clients.swap_remove(at.unwrap()), far));
        let near = eventually("a pair", SOON, || lab.made.try_recv().ok());
        calls.push(
            lab.library
                .splice(at_once(near, Depth::Detached), Until::closed()),
        );
    }
    for pair in &mut pairs {
        pair.exchange(50_000);
        flow_of(&lab, pair, Depth::Detached);
        pair.exchange(50_000);
        pair.close();
    }
    drop(calls);
    lab.library.wait_reaped();
}

/// A closed port of the server resets, and the reset goes on to the client, as through a router.
#[test]
fn a_refusal_reaches_the_client() {
    let lab = Lab::new("hs-refused", |_| false);
    let (net, closed) = (&lab.net, SocketAddr::new(lab.net.server_addr, 7_001));
    let refused = net
        .client
        .run(|| TcpStream::connect_timeout(&closed, SOON))
        .unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// A client that has forgotten a connection opens another one from its port: it is challenged, resets the old one, and
/// sends its SYN again.
#[test]
fn a_forgotten_connection_gives_way() {
    let mut lab = Lab::new("hs-forgotten", |_| false);
    let server = lab.listener.local_addr().unwrap();
    let (far, near) = lab.connect();
    let local = far.client.stream.local_addr().unwrap();
    let never = near.with_splice(SplicePolicy::Never);
    let call = lab.library.splice(never, Until::closed());
    let (old_client, mut old_server) = (far.client, far.server);
    close_silently(old_client.stream.into()).unwrap();
    let client = connect_again(&lab.net.client, local, server);
    old_server.expect_reset(SOON);
    assert!(call.closed().reset);
    let mut pair = Pair::of(client, accept(&lab.listener));
    let near = eventually("the pair", SOON, || lab.made.try_recv().ok());
    let call = lab
        .library
        .splice(at_once(near, Depth::Detached), Until::closed());
    pair.exchange(1 << 20);
    pair.close();
    drop(call);
}

/// A lost SYN, or SYN-ACK, is retransmitted by its sender, a second later.
#[test]
fn what_is_lost_is_said_again() {
    for lost in [|n| n == 1, |n| n == 2] as [fn(usize) -> bool; 2] {
        let mut lab = Lab::new("hs-lost", lost);
        let (mut pair, near) = lab.connect();
        let call = lab
            .library
            .splice(at_once(near, Depth::Detached), Until::closed());
        pair.exchange(1 << 20);
        pair.close();
        drop(call);
    }
}
