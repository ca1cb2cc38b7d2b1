//! Other protocols after a 101.

use longsplice_tests::{
    soon,
    switch::{Backend, Mode, Python, Switch, content},
};

const UPGRADE: &str =
    "GET /upgrade HTTP/1.1\r\nHost: switch\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\n";

#[test]
fn what_follows_a_101_passes_unread_both_ways() {
    for mode in Mode::ALL {
        let switch = Switch::new("upgrade", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        // This is not the first request of the connection; and its first bytes follow right behind the head.
        assert_eq!(client.get("/length/5").body, content(5));
        client.send([UPGRADE.as_bytes(), b"early"].concat());
        let reply = client.reply();
        assert_eq!(
            (reply.status, reply.field("Upgrade")),
            (101, Some("echo")),
            "{}",
            reply.head
        );
        assert_eq!(reply.field("Connection"), Some("upgrade"));
        assert_eq!(client.read_exactly(5).unwrap(), b"early");
        // The switch no longer reads requests in these bytes.
        for message in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\0\n\r\n", &content(200_000)] {
            client.send(message);
            assert!(client.read_exactly(message.len()).unwrap() == message);
        }
        switch.wait_spliced(&client);
        client.send("last");
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.read_exactly(4).unwrap(), b"last");
        client.expect_end();
    }
}

#[test]
fn a_server_that_does_not_switch_goes_on_with_http() {
    for mode in Mode::ALL {
        let switch = Switch::new("noswitch", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for _ in 0..3 {
            client.send(
                "GET /length/1000 HTTP/1.1\r\nHost: switch\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
            );
            assert_eq!(client.reply().body, content(1_000));
        }
    }
}

#[test]
fn nobody_gets_past_the_switch_with_h2c() {
    let switch = Switch::new("h2c", Mode::Detached);
    let server = Backend::start(&switch.net.server, switch.target());
    let mut client = switch.connect();
    client.send(
        "GET /a HTTP/1.1\r\nHost: switch\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
    );
    assert_eq!(client.reply().text(), "ok");
    let seen = &server.seen()[0];
    assert_eq!(
        (seen.field("Upgrade"), seen.field("HTTP2-Settings")),
        (None, None),
        "{}",
        seen.head
    );
}

/// Builds a frame of a client (RFC 6455 section 5.2).
fn frame(message: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [1, 2, 3, 4];
    let mut frame = vec![0x82, 0x80 | 127];
    frame.extend((message.len() as u64).to_be_bytes());
    frame.extend(MASK);
    frame.extend(message.iter().zip(MASK.iter().cycle()).map(|(b, m)| b ^ m));
    frame
}

#[test]
fn a_websocket_echoes_its_messages() {
    for mode in Mode::ALL {
        let switch = Switch::new("websocket", mode);
        let _server = Python::start(&switch.net.server, switch.target(), "HTTP/1.1");
        let mut client = switch.connect();
        client.send(
            "GET /websocket HTTP/1.1\r\nHost: switch\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        );
        let reply = client.reply();
        // The answer to the key of RFC 6455 section 1.3.
        assert_eq!(
            reply.field("Sec-WebSocket-Accept"),
            Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            "{}",
            reply.head
        );
        for n in 0..50 {
            let message = content([0, 1, 125, 70_000][n % 4]);
            client.send(frame(&message));
            let head = client.read_exactly(10).unwrap();
            assert_eq!(head[..2], [0x82, 127]);
            assert!(client.read_exactly(message.len()).unwrap() == message);
        }
        soon("the mode to be seen", || {
            (switch.daemon.status().spliced_total > 0) == mode.splices()
        });
    }
}
