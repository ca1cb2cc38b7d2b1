//! Sends the table of smuggled requests over real connections: each gets its one answer, and an honest server never
//! sees the hidden part.

#[allow(unreachable_pub)] // The tests of core have this file, too.
#[path = "../../../crates/core/tests/http/smuggled.rs"]
mod smuggled;

use longsplice_tests::switch::{Backend, Mode, Switch};
use smuggled::SMUGGLED;

#[test]
fn nothing_is_smuggled() {
    for mode in Mode::ALL {
        let switch = Switch::new("smuggle", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        // Pooled connections to the server are the ones that could be poisoned.
        let mut honest = switch.connect();
        assert_eq!(honest.get("/before").text(), "ok");
        for (name, bytes, status) in SMUGGLED {
            let shown = bytes.escape_ascii();
            let mut client = switch.connect();
            client.send(bytes);
            let answer = client
                .try_reply(false)
                .unwrap_or_else(|e| panic!("{name}: {e}: {shown}"));
            assert_eq!(answer.status, *status, "{name}: {shown}: {}", answer.text());
            assert_eq!(
                answer.field("Connection"),
                Some("close"),
                "{name}: {}",
                answer.head
            );
            assert!(answer.text().len() > 20, "{name}: {}", answer.text());
            let more = client.drain();
            assert!(
                more.is_empty(),
                "{name}: a second answer: {}",
                more.escape_ascii()
            );
            assert_eq!(honest.get("/between").text(), "ok", "{name}");
            for seen in server.take_seen() {
                let all = [seen.head.as_bytes(), &seen.body].concat();
                let all = String::from_utf8_lossy(&all).into_owned();
                let is_ours = seen.is_whole
                    && ["GET /between HTTP/1.1", "GET /before HTTP/1.1"].contains(&seen.first_line());
                assert!(is_ours || !seen.is_whole, "{name}: the server took {all:?}");
                assert!(!all.contains("/smuggled"), "{name}: the server saw {all:?}");
            }
        }
    }
}

/// Pipelined requests behind a refused one are ignored.
#[test]
fn nothing_behind_a_refused_request_is_a_request() {
    for mode in Mode::ALL {
        let switch = Switch::new("behind", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        client.send(
            "GET /first HTTP/1.1\r\nHost: switch\r\n\r\n\
             POST /second HTTP/1.1\r\nHost: switch\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
             GET /third HTTP/1.1\r\nHost: switch\r\n\r\n",
        );
        assert_eq!(client.reply().text(), "ok");
        assert_eq!(client.reply().status, 400);
        client.expect_end();
        let lines: Vec<_> = server.seen().iter().map(|s| s.first_line().to_owned()).collect();
        assert_eq!(lines, ["GET /first HTTP/1.1"]);
    }
}
