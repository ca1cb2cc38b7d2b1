//! Replies in every framing, one after another on one connection.

use std::net::Shutdown;

use longsplice_tests::{
    rng,
    switch::{Backend, Client, Mode, Switch, content},
};

/// Lengths around those of segments, buffers and windows.
const LENGTHS: [usize; 8] = [0, 1, 100, 1_448, 16_384, 65_537, 300_000, 3_000_000];

/// Rounds in which the end of a client's stream comes at the end of its reply.
const ROUNDS: usize = 100;

/// Makes one request in one framing, and checks the reply.
fn exchange(client: &mut Client, rng: &mut fastrand::Rng) {
    let length = LENGTHS[rng.usize(0..LENGTHS.len())];
    match rng.u64(0..8) {
        0..=2 => {
            let reply = client.get(&format!("/length/{length}"));
            assert_eq!(
                (reply.status, reply.body == content(length)),
                (200, true),
                "{length}: {}",
                reply.head
            );
        }
        3..=4 => {
            let reply = client.get(&format!("/chunked/{length}"));
            assert_eq!(
                (reply.status, reply.body == content(length)),
                (200, true),
                "{length}: {}",
                reply.head
            );
        }
        5 => {
            let kind = ["length", "chunked"][rng.usize(0..2)];
            client.send(format!("HEAD /{kind}/{length} HTTP/1.1\r\nHost: switch\r\n\r\n"));
            let reply = client.reply_to_head();
            assert_eq!(reply.status, 200);
            match kind {
                "length" => assert_eq!(reply.field("Content-Length"), Some(&*length.to_string())),
                _ => assert_eq!(reply.field("Transfer-Encoding"), Some("chunked")),
            }
        }
        6 => {
            let status = [204, 304][rng.usize(0..2)];
            let reply = client.get(&format!("/status/{status}"));
            assert_eq!((reply.status, reply.field("ETag")), (status, Some("\"x\"")));
        }
        _ => {
            let hints = client.get("/hints");
            assert_eq!((hints.status, hints.field("Link")), (103, Some("</a>")));
            let reply = client.reply();
            assert_eq!((reply.status, reply.text().as_str()), (200, "ok"));
        }
    }
}

#[test]
fn replies_in_all_framings_on_one_connection() {
    const EXCHANGES: usize = 60;
    for mode in Mode::ALL {
        let mut rng = rng();
        let switch = Switch::new("framing", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for n in 0..EXCHANGES {
            exchange(&mut client, &mut rng);
            if n % 10 == 0 {
                switch.get_halves(&mut client, &server);
            }
        }
        let seen = server.seen();
        assert_eq!(seen.len(), EXCHANGES + EXCHANGES / 10);
        assert!(
            seen.iter()
                .all(|s| s.is_whole && s.field("Host") == Some("switch"))
        );
        // The connections were kept for the next request.
        assert!(
            server.connections() < EXCHANGES / 4,
            "{} connections",
            server.connections()
        );
        switch.assert_mode();
    }
}

#[test]
fn several_clients_at_once() {
    for mode in Mode::ALL {
        let switch = Switch::new("many", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let mut rng = rng();
                    let mut client = switch.connect();
                    for _ in 0..25 {
                        exchange(&mut client, &mut rng);
                    }
                });
            }
        });
    }
}

#[test]
fn a_reply_up_to_the_end_of_the_connection_is_whole() {
    for mode in Mode::ALL {
        let switch = Switch::new("close", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        for length in LENGTHS {
            for kind in ["close", "old"] {
                let mut client = switch.connect();
                // This is not the first request of the connection.
                assert_eq!(client.get("/length/1000").body, content(1_000));
                let reply = client.get(&format!("/{kind}/{length}"));
                assert_eq!(
                    (reply.status, reply.body == content(length)),
                    (200, true),
                    "{kind} {length}"
                );
                assert_eq!(reply.field("Connection"), Some("close"), "{}", reply.head);
                assert!(
                    reply.head.starts_with("HTTP/1.1 "),
                    "our own version: {}",
                    reply.head
                );
            }
        }
    }
}

#[test]
fn a_reply_that_breaks_off_never_looks_whole() {
    for mode in Mode::ALL {
        let switch = Switch::new("short", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        for length in [1, 1_000, 300_000] {
            let mut client = switch.connect();
            client.send(format!("GET /short/{length} HTTP/1.1\r\nHost: switch\r\n\r\n"));
            let cut = client.try_reply(false);
            assert!(cut.is_err(), "{length}: {cut:?}");
        }
        // The switch goes on.
        assert_eq!(switch.connect().get("/length/10").body, content(10));
    }
}

#[test]
fn clients_of_http_1_0() {
    for mode in Mode::ALL {
        let switch = Switch::new("old", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        for length in LENGTHS {
            let mut client = switch.connect();
            client.send(format!("GET /length/{length} HTTP/1.0\r\n\r\n"));
            assert_eq!(client.reply().body, content(length));
            client.expect_end();
            // The connection is kept on request, and the reply says so.
            let mut client = switch.connect();
            for _ in 0..3 {
                client.send(format!(
                    "GET /length/{length} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
                ));
                let reply = client.reply();
                assert_eq!(reply.body, content(length));
                assert_eq!(
                    reply.field("Connection").map(str::to_ascii_lowercase).as_deref(),
                    Some("keep-alive")
                );
            }
            client.send(format!("GET /close/{length} HTTP/1.0\r\n\r\n"));
            assert_eq!(client.reply().body, content(length));
        }
        // They get no interim replies, which HTTP/1.0 lacks.
        let mut client = switch.connect();
        client.send("GET /hints HTTP/1.0\r\n\r\n");
        assert_eq!(
            (
                client.reply().text().as_str(),
                server.seen().iter().all(|s| s.is_whole)
            ),
            ("ok", true)
        );
    }
}

#[test]
fn a_client_that_closes_is_answered_to_the_end() {
    for mode in Mode::ALL {
        let switch = Switch::new("wish", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        for kind in ["length", "chunked", "close"] {
            // The client announces the close, …
            let mut client = switch.connect();
            client.send(format!(
                "GET /{kind}/300000 HTTP/1.1\r\nHost: switch\r\nConnection: close\r\n\r\n"
            ));
            let reply = client.reply();
            assert_eq!(
                (reply.body == content(300_000), reply.field("Connection")),
                (true, Some("close"))
            );
            client.expect_end();
            // … or closes its half of the connection.
            let mut client = switch.connect();
            client.send(format!("GET /{kind}/300000 HTTP/1.1\r\nHost: switch\r\n\r\n"));
            client.stream.shutdown(Shutdown::Write).unwrap();
            let reply = client
                .try_reply(false)
                .unwrap_or_else(|e| panic!("{mode:?}, {kind}: {e}"));
            assert!(reply.body == content(300_000), "{mode:?}, {kind}");
            client.expect_end();
        }
    }
}

/// The server does not react to the end of a client's stream: only the switch can know that it was told of it.
#[test]
fn a_connection_that_heard_a_clients_end_is_not_used_again() {
    for mode in [Mode::Dormant, Mode::Detached] {
        let switch = Switch::new("heard", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        for round in 0..ROUNDS {
            let mut client = switch.connect();
            // The reply is drained when the end comes, or is over.
            let reply = client.get("/deaf/64");
            client.stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(reply.body, content(64), "{mode:?}");
            let mut other = switch.connect();
            other.send("POST /echo HTTP/1.1\r\nHost: switch\r\nContent-Length: 5\r\n\r\nhello");
            assert_eq!(other.reply().text(), "hello", "{mode:?}, round {round}");
        }
    }
}
