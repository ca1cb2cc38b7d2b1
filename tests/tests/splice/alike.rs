//! Both legs of a pair have the same options: the server is asked for what its client has, and the next clients of a listener
//! are not offered what its server refused. Connections of other programs stay as they are.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use longsplice_lab::{Line, LineOptions, Namespace, not_run};
use longsplice_repair::tcp_info;
use longsplice_tests::{
    Bed, Config, Pair, Policy, SOON, accept, eventually, ip, nft, patient, soon, veth_line,
};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

const BYTES: u64 = 1 << 20;

fn set(namespace: &Namespace, option: &str, value: &str) {
    namespace.sysctl(&format!("net.ipv4.{option}"), value).unwrap();
}

fn bed(name: &str, change: impl Fn(&Line)) -> Bed {
    let net = veth_line(name, LineOptions::default());
    change(&net);
    Bed::on(net, Policy::DETACHED, |c| c)
}

/// Returns whether the flow of a pair is spliced, or relayed for this reason.
fn is_spliced(bed: &Bed, pair: &Pair, reason: &str) -> bool {
    let port = pair.client_port();
    eventually("a splice or a refusal", SOON, || {
        let flow = bed
            .daemon
            .flows()
            .into_iter()
            .find(|f| f.client.peer.port() == port)?;
        match flow.reason.as_deref() {
            Some(why) if why == reason => Some(false),
            _ => (flow.state == "detached").then_some(true),
        }
    })
}

/// Checks that the first connection is relayed for this reason, and a later one spliced: the listener is prepared by a task
/// of the daemon, a moment after the first one.
fn refused_once(bed: &Bed, reason: &str) {
    let mut first = bed.connect();
    assert!(!is_spliced(bed, &first, reason));
    first.exchange(BYTES);
    eventually("a connection that is spliced", SOON, || {
        let mut next = bed.connect();
        let spliced = is_spliced(bed, &next, reason);
        next.exchange(BYTES);
        next.close();
        spliced.then_some(())
    });
    // Established connections do not change.
    first.exchange(BYTES);
    first.close();
    let status = bed
        .daemon
        .wait_status("the end of the first", |s| s.relayed(reason) > 0);
    assert!(status.spliced_total > 0, "{status:?}");
}

#[test]
fn timestamps_that_a_server_refuses_are_not_offered_again() {
    let bed = bed("alike-ts", |net| set(&net.server, "tcp_timestamps", "0"));
    refused_once(&bed, "timestamps");
}

#[test]
fn ecn_that_a_server_refuses_is_not_offered_again() {
    let bed = bed("alike-ecn", |net| {
        set(&net.client, "tcp_ecn", "1");
        set(&net.server, "tcp_ecn", "0");
    });
    refused_once(&bed, "ecn");
}

#[test]
fn segments_that_a_server_does_not_take_are_not_asked_for_again() {
    let bed = bed("alike-mss", |net| {
        ip(&net.server, "route replace 198.18.2.2/32 dev s0 advmss 536");
    });
    refused_once(&bed, "mss");
}

/// The client's link takes longer segments than the route to the server: the first client is told so already.
#[test]
fn segments_that_the_route_to_an_upstream_does_not_take_are_not_asked_for() {
    let options = LineOptions {
        mtu_client: 9000,
        ..LineOptions::default()
    };
    let net = veth_line("alike-upstream", options);
    let listen = SocketAddr::from((net.family().unspecified(), 8080));
    let server = SocketAddr::from((net.server_addr, 7000));
    let lines = format!(
        "[[listener]]\nlisten = \"{listen}\"\nupstream = \"u\"\nsplice = \"now\"\ndetach = \"now\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"{server}\"]"
    );
    let bed = Bed::on(net, Policy::DETACHED, |_| Config::new().with(&lines));
    let mut pair = bed.connect();
    assert!(is_spliced(&bed, &pair, "mss"));
    pair.exchange(BYTES);
    pair.close();
}

/// Returns whether a client was offered timestamps, and segments of its link's length.
fn offered(pair: &Pair) -> (bool, bool) {
    let info = tcp_info(&pair.client.stream).unwrap();
    (info.timestamps(), info.snd_mss() > 1400)
}

/// Reloads a listener whose server is known to lack options: the policy decides whether its clients are offered them.
#[test]
fn nothing_is_withheld_where_connections_are_not_spliced() {
    let bed = bed("alike-never", |net| {
        set(&net.server, "tcp_timestamps", "0");
        ip(&net.server, "route replace 198.18.2.2/32 dev s0 advmss 536");
    });
    eventually("a client that is like the server", SOON, || {
        let mut pair = bed.connect();
        let offered = offered(&pair);
        pair.exchange(BYTES);
        pair.close();
        (offered == (false, false)).then_some(())
    });
    let listen = SocketAddr::from((bed.net.family().unspecified(), bed.front().port()));
    for (policy, all) in [("never", true), ("never", true), ("now", false)] {
        let next = Config::new().listener(listen, bed.target(), policy, "now");
        bed.daemon.change(&next).unwrap();
        let mut pair = bed.connect();
        assert_eq!(offered(&pair), (all, all), "{policy}");
        pair.exchange(BYTES);
        pair.close();
    }
}

/// The client takes shorter segments than its path: the server is told so, and the client may send longer ones.
#[test]
fn a_client_that_takes_only_short_segments_is_spliced_at_once() {
    let bed = bed("alike-mss-c", |net| {
        ip(&net.client, "route replace 198.18.1.2/32 dev c0 advmss 1000");
    });
    for _ in 0..2 {
        let mut pair = bed.connect();
        assert!(is_spliced(&bed, &pair, "mss"));
        pair.exchange(BYTES);
        let [client, server] = [&pair.client, &pair.server].map(|end| tcp_info(&end.stream).unwrap());
        assert!(client.snd_mss() > 1400, "{client:?}");
        assert!(server.snd_mss() <= 1000, "{server:?}");
        pair.close();
    }
}

/// Returns the near end's view of a connection that was made without Longsplice.
fn has_timestamps(from: &Namespace, to: &Namespace, at: SocketAddr) -> bool {
    let listener = to.run(|| TcpListener::bind(at)).unwrap().unwrap();
    let connected = from.run(|| TcpStream::connect_timeout(&at, patient(SOON)));
    let far = connected.unwrap().unwrap();
    let near = accept(&listener);
    assert_eq!(
        tcp_info(&far).unwrap().timestamps(),
        tcp_info(&near).unwrap().timestamps()
    );
    tcp_info(&near).unwrap().timestamps()
}

#[test]
fn other_programs_keep_their_options() {
    let bed = bed("alike-others", |net| set(&net.server, "tcp_timestamps", "0"));
    refused_once(&bed, "timestamps");
    let (net, port) = (&bed.net, 9000);
    assert!(has_timestamps(
        &net.client,
        &net.forwarder,
        (net.forwarder_client_addr, port).into()
    ));
    set(&net.server, "tcp_timestamps", "1");
    assert!(has_timestamps(
        &net.forwarder,
        &net.server,
        (net.server_addr, port).into()
    ));
    let pair = bed.connect();
    assert!(!tcp_info(&pair.client.stream).unwrap().timestamps());
}

/// The first SYN of leg B gets lost: the second one asks for the same.
#[test]
fn a_syn_that_is_sent_again_asks_for_the_same() {
    let bed = bed("alike-again", |net| {
        set(&net.client, "tcp_timestamps", "0");
        nft(
            &net.server,
            "add table inet lose; add chain inet lose in { type filter hook input priority 0; }; \
             add rule inet lose in tcp flags & (syn | ack) == syn counter drop",
        );
    });
    let mut pair = thread::scope(|scope| {
        let pair = scope.spawn(|| bed.connect());
        soon("a SYN to be lost", || {
            !nft(&bed.net.server, "list table inet lose").contains("packets 0 ")
        });
        nft(&bed.net.server, "delete table inet lose");
        pair.join().unwrap()
    });
    assert!(is_spliced(&bed, &pair, "timestamps"));
    let server = tcp_info(&pair.server.stream).unwrap();
    assert!(!server.timestamps(), "{server:?}");
    pair.exchange(BYTES);
    pair.close();
}

/// Checks that a connection of the client is spliced: the server receives this word, then bytes pass each way.
fn spliced_with(bed: &Bed, far: Socket, word: &[u8]) {
    let mut far = TcpStream::from(far);
    let mut server = accept(&bed.listener);
    let port = far.local_addr().unwrap().port();
    bed.daemon.wait_state(port, &["detached"]);
    for stream in [&far, &server] {
        stream.set_read_timeout(Some(patient(SOON))).unwrap();
    }
    let mut got = vec![0; word.len()];
    server.read_exact(&mut got).unwrap();
    assert_eq!(got, word);
    for n in 0..50_u8 {
        let sent = vec![n; 20_000];
        let mut got = vec![0; sent.len()];
        far.write_all(&sent).unwrap();
        server.read_exact(&mut got).unwrap();
        assert!(got == sent);
        server.write_all(&sent).unwrap();
        far.read_exact(&mut got).unwrap();
        assert!(got == sent);
    }
}

/// Fast Open (RFC 7413): the SYN has payload, and the listener takes it.
#[test]
fn payload_in_a_syn_passes() {
    const MSG_FASTOPEN: i32 = 0x2000_0000;
    let bed = bed("alike-tfo", |net| {
        // Without cookies, at every listener.
        set(&net.client, "tcp_fastopen", "5");
        set(&net.forwarder, "tcp_fastopen", "1538");
    });
    let front = bed.front();
    let far = bed
        .net
        .client
        .run(|| {
            let far = Socket::new(Domain::for_address(front), Type::STREAM, None).unwrap();
            let sent = far
                .send_to_with_flags(b"early", &front.into(), MSG_FASTOPEN)
                .unwrap();
            assert_eq!(sent, 5);
            far
        })
        .unwrap();
    spliced_with(&bed, far, b"early");
}

/// Multipath TCP (RFC 8684): the listener does not agree to it, and the client goes on with TCP.
#[test]
fn a_client_of_multipath_tcp_is_spliced_as_one_of_tcp() {
    const MPTCP: i32 = 262;
    let bed = bed("alike-mptcp", |_| {});
    let front = bed.front();
    let connect = || {
        let protocol = Protocol::from(MPTCP);
        let socket = Socket::new(Domain::for_address(front), Type::STREAM, Some(protocol));
        socket.inspect(|far| far.connect(&front.into()).unwrap())
    };
    match bed.net.client.run(connect).unwrap() {
        Ok(far) => spliced_with(&bed, far, b""),
        Err(error) => {
            let lacks = [Errno::PROTONOSUPPORT, Errno::NOPROTOOPT].map(|e| Some(e.raw_os_error()));
            assert!(lacks.contains(&error.raw_os_error()), "{error}");
            not_run(&format!("this kernel has no MPTCP: {error}"));
        }
    }
}
