//! Heads of requests in any pieces, and their changes on the way to the server.

use std::{thread, time::Duration};

use longsplice_tests::switch::{Backend, Mode, More, Switch, content};

/// Pause after a piece: there is no event when the daemon has read it.
const PIECE: Duration = Duration::from_millis(2);

#[test]
fn a_head_split_at_every_byte_is_understood() {
    let head = b"POST /echo?a HTTP/1.1\r\nHost: switch\r\nCookie: a=b\r\nContent-Length: 4\r\n\r\nbody";
    for mode in Mode::ALL {
        let switch = Switch::new("split", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for at in 1..head.len() {
            // The first piece ends the splice, if there is one.
            switch.get_halves(&mut client, &server);
            client.send(&head[..at]);
            thread::sleep(PIECE);
            client.send(&head[at..]);
            assert_eq!(client.reply().text(), "body", "split at {at}");
        }
        let sent = String::from_utf8_lossy(&head[..head.len() - 4]).into_owned();
        let seen = server.seen();
        assert!(seen.iter().all(|s| s.is_whole));
        assert_eq!(
            seen.iter().filter(|s| s.head == sent).count(),
            head.len() - 1,
            "the bytes stay"
        );
        switch.assert_mode();
    }
}

#[test]
fn a_head_byte_by_byte_is_understood() {
    for mode in Mode::ALL {
        let switch = Switch::new("bytes", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for _ in 0..3 {
            for byte in b"\r\nGET /length/100000 HTTP/1.1\r\nHost: switch\r\n\r\n" {
                client.send([*byte]);
                thread::sleep(PIECE);
            }
            assert!(client.reply().body == content(100_000));
        }
    }
}

#[test]
fn a_server_is_told_of_the_client_and_of_nothing_else() {
    let more = More {
        http: "forwarded = [\"x-forwarded-for\", \"x-forwarded-proto\", \"x-forwarded-host\", \"forwarded\"]",
        ..More::default()
    };
    let switch = Switch::with("told", Mode::Detached, more);
    let server = Backend::start(&switch.net.server, switch.target());
    let mut client = switch.connect();
    client.send(
        "GET http://other.example/a HTTP/1.1\r\nHost: switch\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: 1\r\n\
         X-Hop: 1\r\nProxy-Connection: keep-alive\r\nTE: gzip\r\nUpgrade: h2c\r\nX-Forwarded-For: 1.2.3.4\r\n\
         X-Forwarded-Proto: https\r\nA: b\r\n\r\n",
    );
    assert_eq!(client.reply().text(), "ok");
    let ip = switch.net.client_addr;
    let node = if ip.is_ipv4() {
        ip.to_string()
    } else {
        format!("\"[{ip}]\"")
    };
    let expected = format!(
        "GET /a HTTP/1.1\r\nHost: other.example\r\nA: b\r\nX-Forwarded-For: 1.2.3.4, {ip}\r\nX-Forwarded-Proto: http\r\n\
         X-Forwarded-Host: other.example\r\nForwarded: for={node};proto=http;host=other.example\r\n\r\n"
    );
    assert_eq!(server.seen()[0].head, expected);
}
