//! Errors are answered in time, and with an explanation.

use std::time::{Duration, Instant};

use longsplice_tests::switch::{Backend, Client, Mode, More, Reply, Switch};

/// Expects an answer of this status with an explanation, and returns it.
fn expect_answer(client: &mut Client, status: u16, what: &str) -> Reply {
    let reply = client.try_reply(false).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(reply.status, status, "{what}: {}{}", reply.head, reply.text());
    assert!(
        reply.text().starts_with(&status.to_string()),
        "{what}: {}",
        reply.text()
    );
    assert!(reply.text().len() > 20, "{what}: {}", reply.text());
    reply
}

#[test]
fn a_head_that_does_not_come_in_time_is_408() {
    let more = More {
        http: "head_timeout = \"400ms\"",
        ..More::default()
    };
    for mode in Mode::ALL {
        let switch = Switch::with("slow", mode, more);
        let _server = Backend::start(&switch.net.server, switch.target());
        for first in [true, false] {
            let mut client = switch.connect();
            if !first {
                assert_eq!(client.get("/a").text(), "ok");
            }
            let start = Instant::now();
            client.send("GET / HTTP/1.1\r\nHost: sw");
            let reply = expect_answer(&mut client, 408, "a slow head");
            let took = start.elapsed();
            assert!(
                (Duration::from_millis(350)..Duration::from_secs(5)).contains(&took),
                "{took:?}"
            );
            assert_eq!(reply.field("Connection"), Some("close"));
            client.expect_end();
        }
        // A byte now and then does not extend the time.
        let mut client = switch.connect();
        for _ in 0..8 {
            let _ = std::io::Write::write_all(&mut client.stream, b"A");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(client.drain().starts_with(b"HTTP/1.1 408 "));
    }
}

#[test]
fn a_head_that_is_too_large_is_431_and_a_long_target_414() {
    let more = More {
        http: "max_head = \"4KiB\"",
        ..More::default()
    };
    for mode in Mode::ALL {
        let switch = Switch::with("large", mode, more);
        let server = Backend::start(&switch.net.server, switch.target());
        let large = "a".repeat(5_000);
        let fields = "A: b\r\n".repeat(200);
        for (what, bytes, status) in [
            (
                "a long field",
                format!("GET / HTTP/1.1\r\nHost: switch\r\nA: {large}\r\n\r\n"),
                431,
            ),
            (
                "a field without an end",
                format!("GET / HTTP/1.1\r\nHost: switch\r\nA: {large}"),
                431,
            ),
            (
                "many fields",
                format!("GET / HTTP/1.1\r\nHost: switch\r\n{fields}\r\n"),
                431,
            ),
            (
                "a long target",
                format!("GET /{large} HTTP/1.1\r\nHost: switch\r\n\r\n"),
                414,
            ),
            ("a target without an end", format!("GET /{large}"), 414),
        ] {
            let mut client = switch.connect();
            client.send(bytes);
            expect_answer(&mut client, status, what);
            client.expect_end();
        }
        assert!(server.seen().is_empty());
    }
}

#[test]
fn no_server_is_answered_in_words() {
    for mode in Mode::ALL {
        let switch = Switch::new("none", mode);
        let mut client = switch.connect();
        // The connection goes on with the next request.
        for _ in 0..3 {
            let reply = client.get("/a");
            assert!([502, 503].contains(&reply.status), "{}", reply.head);
            assert!(reply.text().len() > 20, "{}", reply.text());
        }
        client.send("HEAD /a HTTP/1.1\r\nHost: switch\r\n\r\n");
        assert!([502, 503].contains(&client.reply_to_head().status));
        let _server = Backend::start(&switch.net.server, switch.target());
        assert_eq!(client.get("/a").text(), "ok");
    }
}

#[test]
fn a_server_that_says_nothing_is_504() {
    let more = More {
        http: "reply_timeout = \"400ms\"",
        ..More::default()
    };
    for mode in Mode::ALL {
        let switch = Switch::with("mute", mode, more);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        client.send("GET /mute HTTP/1.1\r\nHost: switch\r\n\r\n");
        expect_answer(&mut client, 504, "a mute server");
    }
}

#[test]
fn a_reply_that_can_be_read_in_two_ways_is_502() {
    let switch = Switch::new("twoways", Mode::Detached);
    let _server = Backend::start(&switch.net.server, switch.target());
    for reply in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nhello",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "",
    ] {
        let hex: String = reply.bytes().map(|b| format!("{b:02x}")).collect();
        let mut client = switch.connect();
        client.send(format!("GET /raw/{hex} HTTP/1.1\r\nHost: switch\r\n\r\n"));
        expect_answer(&mut client, 502, reply);
    }
}

#[test]
fn a_silent_client_is_let_go_without_a_word() {
    let more = More {
        http: "idle_timeout = \"300ms\"\nhead_timeout = \"300ms\"",
        ..More::default()
    };
    for mode in Mode::ALL {
        let switch = Switch::with("idle", mode, more);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        assert_eq!(client.get("/a").text(), "ok");
        client.expect_end();
    }
}

#[test]
fn the_last_request_of_a_connection_is_said_to_be() {
    let more = More {
        http: "max_requests = 3",
        ..More::default()
    };
    for mode in Mode::ALL {
        let switch = Switch::with("most", mode, more);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for last in [false, false, true] {
            let reply = client.get("/a");
            assert_eq!(
                (reply.text().as_str(), reply.field("Connection") == Some("close")),
                ("ok", last)
            );
        }
        client.expect_end();
    }
}

#[test]
fn what_is_not_spoken_is_said_so() {
    let switch = Switch::new("foreign", Mode::Plain);
    let _server = Backend::start(&switch.net.server, switch.target());
    for (bytes, status) in [
        (&b"GET / HTTP/3.0\r\nHost: h\r\n\r\n"[..], 505),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
        (b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", 501),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 400),
    ] {
        let mut client = switch.connect();
        client.send(bytes);
        expect_answer(&mut client, status, &bytes.escape_ascii().to_string());
        client.expect_end();
    }
    // Unrequested HTTP/2: no part of it may be taken for a request.
    let mut client = switch.connect();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let _ = client.drain();
}
