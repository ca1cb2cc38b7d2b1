//! The daemon dies by SIGKILL in the middle of a reply: what was spliced goes on to its last byte, what was relayed never looks
//! whole.

use longsplice_tests::switch::{Backend, Mode, Switch, content};

/// More than all buffers on the way hold.
const LENGTH: usize = 24_000_000;

/// What is short of the end of the reply by this much needs no daemon; its end is where control comes back.
const LAST: usize = 256 << 10;

#[test]
fn a_spliced_reply_goes_on_without_the_daemon() {
    for mode in [Mode::Dormant, Mode::Detached] {
        for restarted_early in [false, true] {
            let mut switch = Switch::new("kill", mode);
            let server = Backend::start(&switch.net.server, switch.target());
            let mut client = switch.connect();
            // Not as the first request only.
            assert_eq!(client.get("/length/1000").body, content(1_000));
            client.send(format!("GET /halves/{LENGTH} HTTP/1.1\r\nHost: switch\r\n\r\n"));
            let head = client.read_until(b"\r\n\r\n").unwrap();
            assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", head.escape_ascii());
            let mut body = client.read_exactly(LENGTH / 4).unwrap();
            switch.wait_spliced(&client);
            switch.daemon.kill();
            if restarted_early {
                switch.daemon.start(&switch.net.forwarder);
            }
            server.go_on();
            body.extend(client.read_exactly(LENGTH - LAST - body.len()).unwrap());
            if !restarted_early {
                switch.daemon.start(&switch.net.forwarder);
            }
            body.extend(client.read_exactly(LENGTH - body.len()).unwrap());
            assert!(body == content(LENGTH), "{mode:?}");
            // Its successor serves new clients.
            assert_eq!(switch.connect().get("/length/1000").body, content(1_000));
        }
    }
}

#[test]
fn a_spliced_reply_up_to_the_end_of_the_connection_goes_on_without_the_daemon() {
    for mode in [Mode::Dormant, Mode::Detached] {
        let mut switch = Switch::new("killend", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        client.send(format!("GET /close/{LENGTH} HTTP/1.1\r\nHost: switch\r\n\r\n"));
        client.read_until(b"\r\n\r\n").unwrap();
        let mut body = client.read_exactly(LENGTH / 8).unwrap();
        switch.wait_spliced(&client);
        switch.daemon.kill();
        body.extend(client.read_exactly(LENGTH - body.len()).unwrap());
        client.expect_end();
        assert!(body == content(LENGTH), "{mode:?}");
    }
}

#[test]
fn a_relayed_reply_ends_with_a_reset_and_never_in_order() {
    for path in ["halves", "close"] {
        let mut switch = Switch::new("killplain", Mode::Plain);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        client.send(format!("GET /{path}/{LENGTH} HTTP/1.1\r\nHost: switch\r\n\r\n"));
        client.read_until(b"\r\n\r\n").unwrap();
        client.read_exactly(LENGTH / 8).unwrap();
        switch.daemon.kill();
        let end = client.read_exactly(LENGTH);
        let why = end.expect_err("the rest cannot come");
        assert!(why.contains("reset"), "{path}: {why}");
    }
}
