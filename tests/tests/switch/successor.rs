//! A reply was spliced, and its daemon is gone: the next one delivers the rest of it, and then ends both connections.
//! The client's next request needs a daemon that reads it, so it is discarded.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use longsplice_lab::pattern::Pattern;
use longsplice_tests::{
    SOON, patient,
    switch::{Client, Mode, Switch, content},
};
use socket2::SockRef;

const SPLICED: [Mode; 2] = [Mode::Dormant, Mode::Detached];

/// Length of the body, in bytes. Its halves fit into the buffers on the way.
const LENGTH: usize = 200_000;

const WITH_LENGTH: &str = "HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n";
const UP_TO_THE_END: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
const ONE_CHUNK: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n";

/// Rest of the stream behind that chunk.
const LAST_CHUNKS: &[u8] = b"\r\n5\r\nhello\r\n0\r\n\r\n";

const NEXT: &str = "GET /secret HTTP/1.1\r\nHost: elsewhere\r\n\r\n";

/// Client in the middle of a spliced reply, and its server.
struct Scene {
    client: Client,
    server: TcpStream,
    listener: TcpListener,
    switch: Switch,
    got: Vec<u8>,
}

impl Scene {
    /// Sets up the scene; `head` is that of the reply, with the bytes before its body.
    fn new(name: &str, mode: Mode, head: &str) -> Scene {
        let switch = Switch::new(name, mode);
        let bind = || TcpListener::bind(switch.target());
        let listener = switch.net.server.run(bind).unwrap().unwrap();
        let mut client = switch.connect();
        client.send("GET /first HTTP/1.1\r\nHost: switch\r\n\r\n");
        let (mut server, _) = listener.accept().unwrap();
        server.set_nodelay(true).unwrap();
        server.set_read_timeout(Some(patient(SOON))).unwrap();
        server.set_write_timeout(Some(patient(SOON))).unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            server.read_exact(&mut byte).unwrap();
            request.extend(byte);
        }
        assert!(request.starts_with(b"GET /first "));
        server.write_all(head.as_bytes()).unwrap();
        server.write_all(&content(LENGTH)[..LENGTH / 2]).unwrap();
        client.read_until(b"\r\n\r\n").unwrap();
        if head == ONE_CHUNK {
            client.read_until(b"\r\n").unwrap();
        }
        let got = client.read_exactly(LENGTH / 2).unwrap();
        switch.wait_spliced(&client);
        Scene {
            client,
            server,
            listener,
            switch,
            got,
        }
    }

    fn start(&mut self) {
        self.switch.daemon.start(&self.switch.net.forwarder);
    }

    fn kill(&mut self) {
        self.switch.daemon.kill();
    }

    fn send_rest(&mut self) {
        self.server.write_all(&content(LENGTH)[LENGTH / 2..]).unwrap();
    }

    fn expect_rest(&mut self) {
        self.got
            .extend(self.client.read_exactly(LENGTH - self.got.len()).unwrap());
        assert!(self.got == content(LENGTH));
    }

    /// Expects an orderly end of the server's connection, without a byte after the first request, and no other
    /// connection.
    fn expect_nothing_at_the_server(&mut self) {
        let mut rest = Vec::new();
        let end = self.server.read_to_end(&mut rest);
        assert_eq!(String::from_utf8_lossy(&rest), "", "{end:?}");
        end.unwrap();
        self.expect_no_other_connection();
    }

    fn expect_no_other_connection(&self) {
        self.listener.set_nonblocking(true).unwrap();
        let other = self.listener.accept();
        assert!(
            other.as_ref().is_err_and(|e| e.kind() == ErrorKind::WouldBlock),
            "{other:?}"
        );
    }

    /// Expects the next daemon to serve other clients as usual.
    fn expect_service(&self) {
        self.listener.set_nonblocking(false).unwrap();
        let mut client = self.switch.connect();
        client.send(NEXT);
        let (mut server, _) = self.listener.accept().unwrap();
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        server.write_all(reply).unwrap();
        assert_eq!(client.reply().text(), "ok");
    }
}

#[test]
fn behind_the_reply_both_connections_end_and_no_request_passes() {
    for mode in SPLICED {
        for starts in [1, 2] {
            let mut scene = Scene::new("heir", mode, WITH_LENGTH);
            for _ in 0..starts {
                scene.kill();
                scene.start();
            }
            scene.send_rest();
            scene.expect_rest();
            // The end comes in order, and at once; the daemon keeps the socket open for another 2 s.
            scene.client.expect_end();
            scene.client.send(NEXT);
            scene.expect_nothing_at_the_server();
            scene.expect_service();
        }
    }
}

#[test]
fn the_last_segment_may_have_waited_for_the_successor() {
    for mode in SPLICED {
        for closes in [false, true] {
            let mut scene = Scene::new("heirlate", mode, WITH_LENGTH);
            scene.kill();
            scene.send_rest();
            if closes {
                scene.server.shutdown(Shutdown::Write).unwrap();
            }
            scene.start();
            scene.expect_rest();
            scene.client.expect_end();
            scene.client.send(NEXT);
            scene.expect_nothing_at_the_server();
        }
    }
}

/// The request fires a trap of its own, and brings control back in the middle of the reply.
#[test]
fn a_request_in_the_middle_of_the_reply_does_not_pass() {
    for mode in SPLICED {
        for is_early in [true, false] {
            let mut scene = Scene::new("heirmid", mode, WITH_LENGTH);
            scene.kill();
            if is_early {
                scene.client.send(NEXT);
                scene.start();
            } else {
                scene.start();
                scene.client.send(NEXT);
            }
            let port = scene.client.port();
            scene.switch.daemon.wait_state(port, &["undraining", "relay"]);
            // Send more of them.
            scene.client.send(NEXT.repeat(100));
            scene.send_rest();
            scene.expect_rest();
            scene.client.expect_end();
            scene.expect_nothing_at_the_server();
            scene.expect_service();
        }
    }
}

#[test]
fn a_request_in_the_middle_of_a_reply_up_to_the_end_of_the_connection_does_not_pass() {
    for mode in SPLICED {
        let mut scene = Scene::new("heirend", mode, UP_TO_THE_END);
        scene.kill();
        scene.client.send(NEXT);
        scene.start();
        let port = scene.client.port();
        scene.switch.daemon.wait_state(port, &["undraining", "relay"]);
        scene.send_rest();
        scene.server.shutdown(Shutdown::Write).unwrap();
        scene.expect_rest();
        scene.client.expect_end();
        scene.expect_nothing_at_the_server();
    }
}

/// The next daemon does not know the end of the reply: the client does, and sends its next request then.
#[test]
fn a_reply_in_chunks_passes_up_to_what_the_client_says_next() {
    for mode in SPLICED {
        let mut scene = Scene::new("heirchunk", mode, ONE_CHUNK);
        scene.kill();
        scene.start();
        scene.send_rest();
        scene.expect_rest();
        scene.server.write_all(LAST_CHUNKS).unwrap();
        let last = scene.client.read_exactly(LAST_CHUNKS.len()).unwrap();
        assert_eq!(last, LAST_CHUNKS);
        scene.client.send(NEXT);
        scene.client.expect_end();
        scene.expect_nothing_at_the_server();
        scene.expect_service();
    }
}

/// A reply that is cut behind the chunk in which the request came lacks its end, and does not look whole.
#[test]
fn a_request_in_the_middle_of_a_chunk_does_not_pass() {
    for mode in SPLICED {
        let mut scene = Scene::new("heirpiece", mode, ONE_CHUNK);
        scene.kill();
        scene.client.send(NEXT);
        scene.start();
        scene.send_rest();
        scene.expect_rest();
        scene.client.expect_end();
        scene.expect_nothing_at_the_server();
    }
}

#[test]
fn a_reply_of_which_the_rest_cannot_come_ends_with_a_reset() {
    for mode in SPLICED {
        let mut scene = Scene::new("heircut", mode, WITH_LENGTH);
        scene.kill();
        scene.client.send(NEXT);
        scene.start();
        let port = scene.client.port();
        scene.switch.daemon.wait_state(port, &["undraining", "relay"]);
        let Scene {
            mut client, server, ..
        } = scene;
        // Make the close send a reset.
        SockRef::from(&server).set_linger(Some(Duration::ZERO)).unwrap();
        drop(server);
        let end = client.read_exactly(LENGTH).unwrap_err();
        assert!(end.contains("reset"), "{end}");
    }
}

/// A trap is 2^30 bytes away at most: the record holds the rest of the reply's length.
#[test]
fn a_reply_longer_than_a_trap_can_reach_ends_where_it_should() {
    const LONG: u64 = (1 << 30) + (1 << 28);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n");
    let mut scene = Scene::new("heirlong", Mode::Detached, &head);
    scene.kill();
    scene.start();
    let pattern = Pattern::new(LONG);
    let pieces = || {
        (LENGTH as u64 / 2..LONG)
            .step_by(32 << 10)
            .map(|at| (at, (LONG - at).min(32 << 10)))
    };
    thread::scope(|scope| {
        let mut server = &scene.server;
        let pattern = &pattern;
        scope.spawn(move || {
            for (at, length) in pieces() {
                server.write_all(pattern.at(at, length as usize)).unwrap();
            }
        });
        for (at, length) in pieces() {
            let piece = scene.client.read_exactly(length as usize).unwrap();
            assert!(piece == pattern.at(at, length as usize), "at {at}");
        }
    });
    scene.client.expect_end();
    scene.client.send(NEXT);
    scene.expect_nothing_at_the_server();
}

#[test]
fn a_daemon_that_was_told_to_end_leaves_the_same_to_its_successor() {
    for mode in SPLICED {
        let mut scene = Scene::new("heirterm", mode, WITH_LENGTH);
        scene.switch.daemon.terminate();
        scene.switch.daemon.join();
        scene.start();
        scene.client.send(NEXT);
        scene.send_rest();
        scene.expect_rest();
        scene.client.expect_end();
        scene.expect_nothing_at_the_server();
    }
}

/// Tells the daemon to end in the middle of a reply, and waits until it has left the reply to its successor. Another client's
/// request keeps it from its end; returns that client, and its server.
fn stop_in_the_middle(scene: &Scene) -> (Client, TcpStream) {
    let mut other = scene.switch.connect();
    other.send(NEXT);
    let (server, _) = scene.listener.accept().unwrap();
    scene.switch.daemon.terminate();
    scene
        .switch
        .daemon
        .wait_status("the reply to be left", |s| s.stopping && s.listeners[0].open == 1);
    (other, server)
}

fn let_it_end(scene: &mut Scene, (mut client, mut server): (Client, TcpStream)) {
    let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    server.write_all(reply).unwrap();
    assert_eq!(client.reply().text(), "ok");
    assert_eq!(scene.switch.daemon.join(), Some(0));
}

#[test]
fn a_request_that_meets_a_daemon_at_its_end_does_not_take_the_reply_there() {
    for mode in SPLICED {
        let mut scene = Scene::new("heirstop", mode, WITH_LENGTH);
        let other = stop_in_the_middle(&scene);
        scene.client.send(NEXT);
        scene
            .switch
            .daemon
            .wait_status("the request to meet its trap", |s| s.segments("queued") > 0);
        let_it_end(&mut scene, other);
        scene.start();
        scene.send_rest();
        scene.expect_rest();
        scene.client.expect_end();
        scene.expect_nothing_at_the_server();
    }
}

#[test]
fn the_last_segment_of_a_reply_need_not_wait_for_the_end_of_a_daemon() {
    for mode in SPLICED {
        let mut scene = Scene::new("heirlast", mode, WITH_LENGTH);
        let other = stop_in_the_middle(&scene);
        scene.send_rest();
        scene.expect_rest();
        scene.client.expect_end();
        let_it_end(&mut scene, other);
        scene.expect_nothing_at_the_server();
    }
}

/// `longsplice unsplice ID` takes an adopted flow out of the kernel; this is no way around the routes, either.
#[test]
fn taken_back_by_command_it_ends_behind_the_reply_too() {
    for mode in SPLICED {
        let mut scene = Scene::new("heircmd", mode, WITH_LENGTH);
        scene.kill();
        scene.start();
        let flow = scene.switch.daemon.wait_state(scene.client.port(), &["detached"]);
        scene.switch.daemon.unsplice(flow.id).unwrap();
        scene.client.send(NEXT);
        scene.send_rest();
        scene.expect_rest();
        scene.client.expect_end();
        scene.expect_nothing_at_the_server();
    }
}
