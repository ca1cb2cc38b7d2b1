//! The daemon dies by SIGKILL in the middle of a reply: a spliced one goes on to its last byte, a relayed one never
//! looks whole.

use std::time::{Duration, Instant};

use longsplice_tests::{
    SOON,
    switch::{Backend, Mode, Switch, content},
};

/// Length of a reply: more than all buffers on the way hold.
const LENGTH: usize = 24_000_000;

/// Bytes before the end of the reply that may need a daemon: control comes back at its end.
const LAST: usize = 256 << 10;

/// Time without a byte; the server's timer has backed off beyond it.
const SILENCE: Duration = Duration::from_millis(800);

#[test]
fn a_spliced_reply_goes_on_without_the_daemon() {
    for mode in [Mode::Dormant, Mode::Detached] {
        for restarted_early in [false, true] {
            let mut switch = Switch::new("kill", mode);
            let server = Backend::start(&switch.net.server, switch.target());
            let mut client = switch.connect();
            // This is not the first request of the connection.
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
            // The next daemon serves new clients.
            assert_eq!(switch.connect().get("/length/1000").body, content(1_000));
        }
    }
}

/// The last segment meets the trap at the end of the reply: only a daemon can pass it on.
#[test]
fn a_restarted_daemon_delivers_the_last_segment_at_once() {
    for mode in [Mode::Dormant, Mode::Detached] {
        let mut switch = Switch::new("killlast", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        let mut body = switch.get_half("halves", &mut client);
        switch.daemon.kill();
        server.go_on();
        // Read all that arrives without a daemon.
        client.stream.set_read_timeout(Some(SILENCE)).unwrap();
        let rest = client
            .read_exactly(body.len())
            .expect_err("the last segment is trapped");
        assert!(!rest.contains("reset") && !rest.contains("ended"), "{rest}");
        client.stream.set_read_timeout(Some(SOON)).unwrap();
        switch.daemon.start(&switch.net.forwarder);
        let start = Instant::now();
        body.extend(client.read_exactly(body.len()).unwrap());
        let took = start.elapsed();
        assert!(body == content(body.len()), "{mode:?}");
        // A retransmission of the server could take longer by now.
        eprintln!("{mode:?}: {took:?} after the daemon was there");
        assert!(took < SILENCE, "{mode:?}: {took:?}");
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
