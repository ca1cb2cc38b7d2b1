//! Bodies of requests.

use longsplice_tests::switch::{Backend, Mode, Switch, content};

const LENGTHS: [usize; 5] = [0, 1, 1_448, 100_000, 5_000_000];

#[test]
fn a_body_of_a_known_length() {
    for mode in Mode::ALL {
        let switch = Switch::new("upload", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for length in LENGTHS {
            let body = content(length);
            client.send(format!(
                "POST /echo HTTP/1.1\r\nHost: switch\r\nContent-Length: {length}\r\n\r\n"
            ));
            client.send(&body);
            assert!(client.reply().body == body, "{length}");
        }
        assert!(server.seen().iter().all(|s| s.is_whole));
    }
}

#[test]
fn a_body_in_chunks() {
    for mode in Mode::ALL {
        let switch = Switch::new("chunked", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for length in LENGTHS {
            let body = content(length);
            let mut bytes =
                b"PUT /echo HTTP/1.1\r\nHost: switch\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for piece in body.chunks(70_001) {
                bytes.extend(format!("{:X};name=\"value\"\r\n", piece.len()).into_bytes());
                bytes.extend_from_slice(piece);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"0\r\nTrailer: yes\r\n\r\n");
            // The next request follows right behind it.
            bytes.extend(b"GET /length/7 HTTP/1.1\r\nHost: switch\r\n\r\n");
            client.send(&bytes);
            assert!(client.reply().body == body, "{length}");
            assert_eq!(client.reply().body, content(7));
        }
        assert!(server.seen().iter().all(|s| s.is_whole));
    }
}

#[test]
fn a_client_that_waits_for_the_servers_word() {
    for mode in Mode::ALL {
        let switch = Switch::new("expect", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let head = |path: &str, how: &str| {
            format!("PUT {path} HTTP/1.1\r\nHost: switch\r\nExpect: 100-continue\r\n{how}\r\n\r\n")
        };
        let mut client = switch.connect();
        for (how, body) in [
            ("Content-Length: 5", &b"hello"[..]),
            ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
        ] {
            client.send(head("/echo", how));
            assert_eq!(client.reply().status, 100);
            client.send(body);
            let reply = client.reply();
            assert_eq!((reply.status, reply.text().as_str()), (200, "hello"));
        }
        // The server may refuse.
        client.send(head("/reject", "Content-Length: 5000000"));
        let reply = client.reply();
        assert_eq!((reply.status, reply.text().as_str()), (403, "no"));
        assert!(
            server
                .seen()
                .iter()
                .all(|s| s.field("Expect") == Some("100-continue"))
        );
    }
}

#[test]
fn a_server_that_answers_before_the_body_has_come() {
    for mode in Mode::ALL {
        let switch = Switch::new("early", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        client.send("POST /reject HTTP/1.1\r\nHost: switch\r\nContent-Length: 5000000\r\n\r\nhello");
        let reply = client.reply();
        assert_eq!((reply.status, reply.text().as_str()), (403, "no"));
        // The switch must not take the rest of the body for a request.
        assert_eq!(reply.field("Connection"), Some("close"));
    }
}

#[test]
fn a_body_that_breaks_off_is_no_request() {
    for mode in Mode::ALL {
        let switch = Switch::new("broken", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        for head in [
            "Content-Length: 100\r\n\r\nhello",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        ] {
            let mut client = switch.connect();
            client.send(format!("POST /echo HTTP/1.1\r\nHost: switch\r\n{head}"));
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            let rest = client.drain();
            assert!(!rest.starts_with(b"HTTP/1.1 2"), "{}", rest.escape_ascii());
        }
        assert_eq!(switch.connect().get("/length/3").body, content(3));
        let whole: Vec<_> = server.seen().into_iter().filter(|s| s.is_whole).collect();
        assert_eq!(whole.len(), 1, "{whole:?}");
    }
}
