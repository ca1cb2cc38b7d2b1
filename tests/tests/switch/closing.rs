//! A server closes behind its reply: the client's connection goes on.

use longsplice_tests::switch::{Backend, Mode, Switch, content};

#[test]
fn a_server_that_closes_behind_its_reply_leaves_the_client_its_connection() {
    for mode in Mode::ALL {
        let switch = Switch::new("last", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for n in 1..=3 {
            // Its last segment has a FIN.
            let half = switch.get_half("last", &mut client);
            server.go_on();
            switch.get_other_half(half, &mut client);
            assert_eq!(client.get("/length/1000").body, content(1_000), "{mode:?}");
            // The closed connection was not used again.
            assert_eq!(server.connections(), n + 1, "{mode:?}");
        }
        switch.assert_mode();
    }
}

#[test]
fn an_early_end_of_the_server_is_never_a_whole_reply() {
    for mode in Mode::ALL {
        let switch = Switch::new("short", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        client.send("GET /short/400000 HTTP/1.1\r\nHost: switch\r\n\r\n");
        let reply = client.try_reply(false);
        assert!(reply.is_err(), "{mode:?}: {reply:?}");
    }
}

#[test]
fn a_client_that_sends_more_than_its_last_request_gets_the_whole_reply_and_a_fin() {
    const LONG: usize = 400_000;
    for mode in Mode::ALL {
        let switch = Switch::new("more", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        client.send(format!(
            "GET /halves/{LONG} HTTP/1.1\r\nHost: switch\r\nConnection: close\r\n\r\n"
        ));
        client.read_until(b"\r\n\r\n").unwrap();
        let half = client.read_exactly(LONG / 2).unwrap();
        switch.wait_spliced(&client);
        client.send("\r\n");
        server.go_on();
        let rest = client.read_exactly(LONG - half.len()).unwrap();
        assert!([half, rest].concat() == content(LONG), "{mode:?}");
        client.expect_end();
        switch.assert_mode();
    }
}
