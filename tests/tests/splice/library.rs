//! Engine without the daemon, in a program that speaks a protocol of its own.

use std::{
    net::{Shutdown, SocketAddr},
    thread,
    time::Duration,
};

use longsplice_engine::{
    Ended, FlowState, OpenError, Pair as Near, PerSide, Side, Splicer, SplicerConfig, Trap, Until,
    policy::{DetachPolicy, SplicePolicy},
    reason::RelayReason,
};
use longsplice_lab::pattern::Pattern;
use longsplice_tests::{
    SOON,
    library::{Depth, Desk, at_once},
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Builder,
    sync::oneshot,
};

const BANNER: &[u8] = b"220 relay.example ready\r\n";
const GREETING: &[u8] = b"PROXY\r\n";
const BODY: u64 = 3_000_000;
const GOODBYE: &[u8] = b"QUIT\r\n";

/// Greets the client, sends a header to the server, passes a body of known length spliced, reads the line behind it,
/// answers it itself, and closes. This is a complete protocol handler.
async fn handle(
    splicer: Splicer,
    mut client: TcpStream,
    mut server: TcpStream,
    detach: DetachPolicy,
) -> std::io::Result<PerSide<u64>> {
    client.write_all(BANNER).await?;
    server.write_all(GREETING).await?;
    let pair = Near::new(client, server)
        .with_splice(SplicePolicy::Now)
        .with_detach(detach);
    let until = Until::bytes_from(Side::Client, BODY).or(Until::elapsed(Duration::from_secs(60)));
    let mut returned = match splicer.splice(pair, until).await? {
        Ended::Returned(returned) => returned,
        other => panic!("{other:?}"),
    };
    assert_eq!(returned.why, Trap::Client);
    let mut line = vec![0; GOODBYE.len()];
    returned.client.read_exact(&mut line).await?;
    assert_eq!(line, GOODBYE);
    returned.client.write_all(b"221 bye\r\n").await?;
    // Close in order: the protocol is at its end.
    returned.set_reset_on_close(false)?;
    Ok(returned.passed)
}

#[test]
fn a_handler_with_words_of_its_own() {
    for depth in Depth::BOTH {
        let desk = Desk::new("lib-banner");
        for _ in 0..5 {
            let (mut pair, near) = desk.connect();
            let splicer = desk.library.splicer().clone();
            let handler = desk
                .library
                .spawn(handle(splicer, near.client, near.server, depth.policy()));
            let mut client = pair.client.stream.try_clone().unwrap();
            let mut server = pair.server.stream.try_clone().unwrap();
            expect(&mut client, BANNER);
            expect(&mut server, GREETING);
            let port = pair.client_port();
            desk.library.wait_state(port, &[depth.state()]);
            // Both directions have offsets now, different ones: the banner is in one direction, the greeting in
            // the other.
            std::thread::scope(|scope| {
                let mut out = client.try_clone().unwrap();
                let (to_server, from_server) = (pair.client.split().0, pair.server.split().1);
                scope.spawn(move || {
                    to_server.send(BODY);
                    std::io::Write::write_all(&mut out, GOODBYE).unwrap();
                });
                from_server.receive(BODY);
            });
            expect(&mut client, b"221 bye\r\n");
            let passed = desk.library.run(handler).unwrap().unwrap();
            assert_eq!(passed, PerSide::new(BODY, 0));
            pair.client.expect_end();
            pair.server.expect_end();
        }
        let counters = desk.library.splicer().counters();
        assert_eq!(
            (counters.accepted_total, counters.unsplices_total["client"]),
            (5, 5),
            "{counters:?}"
        );
    }
}

fn expect(stream: &mut std::net::TcpStream, text: &[u8]) {
    let mut buffer = vec![0; text.len()];
    std::io::Read::read_exact(stream, &mut buffer).unwrap();
    assert_eq!(String::from_utf8_lossy(&buffer), String::from_utf8_lossy(text));
}

/// Bytes that the handler inserts or removes between two splices of the same pair take effect at the right position.
#[test]
fn bytes_are_inserted_and_removed_between_splices() {
    for depth in Depth::BOTH {
        let desk = Desk::new("lib-edit");
        let (pair, near) = desk.connect_for(depth);
        let (mut client, mut server) = (pair.client.stream, pair.server.stream);
        let mut next = near;
        for round in 0..60u64 {
            let call = desk.library.splice(next, Until::data_from(Side::Server));
            desk.library
                .wait_state(client.local_addr().unwrap().port(), &[depth.state()]);
            let up = Pattern::new(round).at(0, 1 + (round as usize * 977) % 20_000);
            std::io::Write::write_all(&mut client, up).unwrap();
            let mut there = vec![0; up.len()];
            std::io::Read::read_exact(&mut server, &mut there).unwrap();
            assert!(there == up, "round {round}");
            std::io::Write::write_all(&mut server, b"secret").unwrap();
            let mut returned = call.returned();
            assert_eq!(desk.library.read(&mut returned.server, 6), b"secret");
            // Send another word, of another length, and one to the other end.
            let word = format!("public {round}");
            desk.library.write(&mut returned.client, word.as_bytes());
            expect(&mut client, word.as_bytes());
            desk.library.write(&mut returned.server, b"noted");
            expect(&mut server, b"noted");
            next = at_once(returned, depth);
        }
    }
}

/// A handler that has kept a pair for a while gives it to the splicer once more, and it ends before it is spliced again:
/// what its sockets still have to send is mapped to the numbers of the wire as before.
#[test]
fn a_pair_that_a_handler_has_kept_ends_in_its_numbers() {
    const REPLY: u64 = 130_000;
    for depth in Depth::BOTH {
        let desk = Desk::new("lib-kept");
        let (mut pair, near) = desk.connect_for(depth);
        let mut client = pair.client.stream.try_clone().unwrap();
        SockRef::from(&client).set_recv_buffer_size(30_000).unwrap();
        let call = desk.library.splice(near, Until::bytes_from(Side::Server, 30_000));
        desk.library.wait_state(pair.client_port(), &[depth.state()]);
        // The sockets' numbers are those of the wire less these bytes. The server's, whose last one ends the call, come behind the
        // client's: nothing would forward those that come later.
        pair.exchange_unevenly(20_000, 0);
        pair.exchange_unevenly(0, 30_000);
        let returned = call.returned();
        let mut server = pair.server.stream.try_clone().unwrap();
        // In this time the legs part, and each stands alone.
        std::thread::sleep(Duration::from_millis(500));
        // More is on its way to the client than its buffer holds, so the pair waits for it.
        std::io::Write::write_all(&mut server, Pattern::new(1).at(0, REPLY as usize)).unwrap();
        let call = desk.library.splice(at_once(returned, depth), Until::closed());
        desk.library
            .wait_state(client.local_addr().unwrap().port(), &[FlowState::Coupling]);
        client.shutdown(Shutdown::Write).unwrap();
        drop((server, pair.server));
        call.closed();
        client.set_read_timeout(Some(SOON)).unwrap();
        let mut reply = Vec::new();
        std::io::Read::read_to_end(&mut client, &mut reply).unwrap();
        assert_eq!(reply.len() as u64, REPLY);
        assert_eq!(Pattern::new(1).mismatch(0, &reply), None);
    }
}

/// Without privileges the same calls relay, and return the pair exactly as they would otherwise.
#[test]
fn a_splicer_that_only_relays_keeps_its_word() {
    let desk = Desk::new("lib-relay");
    let why = OpenError::Privileges("a test".into());
    let config = SplicerConfig::default();
    let splicer = desk
        .library
        .run(
            desk.library
                .spawn(async move { Splicer::relay_only(config, why) }),
        )
        .unwrap();
    assert!(!splicer.health().splice_available);
    let (mut pair, near) = desk.connect();
    let mut next = at_once(near, Depth::Detached);
    for _ in 0..10 {
        let splicer = splicer.clone();
        let call = desk.library.spawn(async move {
            splicer
                .splice(next, Until::bytes_from(Side::Client, 100_000))
                .await
        });
        pair.client.send(100_001);
        pair.server.receive(100_000);
        let Ended::Returned(mut returned) = desk.library.run(call).unwrap().unwrap() else {
            panic!("it comes back");
        };
        assert!(!returned.spliced);
        assert_eq!(returned.passed, PerSide::new(100_000, 0));
        let byte = desk.library.read(&mut returned.client, 1);
        pair.server.vouch(&byte);
        next = returned.into();
    }
    let call = desk
        .library
        .spawn(async move { splicer.splice(next, Until::closed()).await });
    pair.exchange(1 << 20);
    pair.close();
    match desk.library.run(call).unwrap().unwrap() {
        Ended::Closed(summary) => assert_eq!(summary.relay_reason, Some(RelayReason::NoPrivilege)),
        other => panic!("{other:?}"),
    }
}

/// A closed port at the target gives the error of `connect`.
#[test]
fn a_target_that_refuses_is_an_error_of_connect() {
    let desk = Desk::new("lib-refused");
    let front = SocketAddr::from((desk.net.forwarder_client_addr, 8080));
    let _far = desk
        .net
        .client
        .run(|| std::net::TcpStream::connect(front))
        .unwrap()
        .unwrap();
    let near = desk.library.accept();
    let splicer = desk.library.splicer().clone();
    let no_listener = SocketAddr::from((desk.net.server_addr, 9));
    let connected = desk.library.run(
        desk.library
            .spawn(async move { splicer.connect(no_listener, &near, Duration::from_secs(5)).await }),
    );
    let error = connected.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// A socket that must be closed in silence, and cannot be, is closed aloud, and nothing of it gets out: the flow runs on.
#[test]
fn a_socket_that_cannot_be_closed_in_silence_costs_no_flow() {
    let desk = Desk::new("lib-aloud");
    let (mut far, near) = desk.connect_for(Depth::Dormant);
    let splicer = desk.library.splicer().clone();
    let (parked, is_parked) = oneshot::channel();
    let call = move || {
        let detach = async {
            is_parked.await.unwrap();
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            set_capabilities(None, sets).unwrap();
            splicer.begin_shutdown();
        };
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::join!(splicer.splice(near, Until::closed()), detach).0 })
    };
    // The capability is one of a thread, which polls the call alone, and inherits its namespace.
    let caller = desk.net.forwarder.run(|| thread::spawn(call)).unwrap();
    desk.library.wait_state(far.client_port(), &[FlowState::Dormant]);
    parked.send(()).unwrap();
    let ended = caller.join().unwrap().unwrap();
    assert!(matches!(ended, Ended::Detached(_)), "{ended:?}");
    far.exchange(BODY);
    far.close();
}
