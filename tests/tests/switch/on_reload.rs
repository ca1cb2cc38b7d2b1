//! Effect of a reload on HTTP sessions, by `on_reload`: between two requests, in the middle of a spliced reply, and
//! after a 101.

use longsplice_tests::switch::{Backend, Mode, More, Switch};

const TO_SECOND: &str = "[[listener.route]]\npath_prefix = \"/\"\nupstream = \"second\"\n";
const SECOND: &str = "[[upstream]]\nname = \"second\"\nservers = [\"@SECOND@\"]\nmax_connections = 1\n\
                      queue_timeout = \"1m\"\n";
const UPGRADE: &str = "GET /upgrade HTTP/1.1\r\nHost: switch\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";

#[test]
fn what_carries_a_request_to_a_server_that_is_gone_ends_as_it_is_told_to() {
    for mode in Mode::ALL {
        for on_reload in ["keep", "recheck", "reset"] {
            let listener = format!("on_reload = \"{on_reload}\"");
            let more = More {
                listener: &listener,
                ..More::default()
            };
            let switch = Switch::with("change", mode, more);
            let [old, new] = [0, 1].map(|n| Backend::start(&switch.net.server, switch.server(n)));
            let (mut idle, mut busy, mut tunnel) = (switch.connect(), switch.connect(), switch.connect());
            assert_eq!(idle.get("/a").text(), "ok");
            let half = switch.get_half("halves", &mut busy);
            tunnel.send(UPGRADE);
            assert_eq!(tunnel.reply().status, 101);
            switch.wait_spliced(&tunnel);
            // An unrelated change ends no connection.
            let said = switch.change(
                0,
                More {
                    http: "max_requests = 100",
                    ..more
                },
            );
            assert!(!said.contains("connection"), "{mode:?}, {on_reload}: {said}");
            let said = switch.change(1, more);
            let what = format!("{mode:?}, {on_reload}: {said}");
            old.go_on();
            match on_reload {
                "keep" => {
                    assert!(!said.contains("connection"), "{what}");
                    switch.get_other_half(half, &mut busy);
                    tunnel.send("still there");
                    assert_eq!(tunnel.read_exactly(11).unwrap(), b"still there", "{what}");
                    // The next request follows the new configuration.
                    assert_eq!(busy.get("/b").text(), "ok", "{what}");
                    assert_eq!(new.take_seen().len(), 1, "{what}");
                }
                _ => {
                    assert!(said.contains("2 open connections end"), "{what}");
                    for client in [&mut busy, &mut tunnel] {
                        let why = client.read_exactly(1 << 20).expect_err(&what);
                        assert!(why.contains("reset"), "{what}: {why}");
                    }
                }
            }
            // Between two requests no decision is in force.
            assert_eq!(idle.get("/b").text(), "ok", "{what}");
            assert_eq!(new.seen().len(), 1, "{what}");
        }
    }
}

#[test]
fn the_next_request_of_a_session_that_its_listener_takes_no_more_is_the_last_one() {
    for mode in Mode::ALL {
        for on_reload in ["keep", "recheck", "reset"] {
            let switch = Switch::new("other", mode);
            let [first, second] = [0, 1].map(|n| Backend::start(&switch.net.server, switch.server(n)));
            let mut client = switch.connect();
            assert_eq!(client.get("/a").text(), "ok");
            let listener = format!("on_reload = \"{on_reload}\"\naccept_proxy = [\"0.0.0.0/0\", \"::/0\"]");
            let tables = format!("{TO_SECOND}{SECOND}");
            let said = switch.change(
                0,
                More {
                    listener: &listener,
                    tables: &tables,
                    ..More::default()
                },
            );
            let what = format!("{mode:?}, {on_reload}: {said}");
            assert!(!said.contains("connection"), "{what}");
            client.send("GET /b HTTP/1.1\r\nHost: switch\r\n\r\n");
            let reply = client.try_reply(false);
            match on_reload {
                "keep" => {
                    let reply = reply.expect(&what);
                    assert_eq!(
                        (&*reply.text(), reply.field("Connection")),
                        ("ok", Some("close")),
                        "{what}"
                    );
                    client.expect_end();
                    assert_eq!(first.seen().len(), 2, "{what}");
                }
                _ => {
                    let why = reply.expect_err(&what);
                    assert!(why.contains("reset"), "{what}: {why}");
                    assert_eq!(first.seen().len(), 1, "{what}");
                }
            }
            assert!(second.seen().is_empty(), "{what}");
        }
    }
}

#[test]
fn the_new_files_word_counts_for_a_request_that_began_before_it() {
    for mode in Mode::ALL {
        for on_reload in ["recheck", "reset"] {
            let switch = Switch::new("word", mode);
            let [_old, new] = [0, 1].map(|n| Backend::start(&switch.net.server, switch.server(n)));
            let (mut idle, mut busy) = (switch.connect(), switch.connect());
            assert_eq!(idle.get("/a").text(), "ok");
            switch.get_half("halves", &mut busy);
            let listener = format!("on_reload = \"{on_reload}\"");
            let said = switch.change(
                1,
                More {
                    listener: &listener,
                    ..More::default()
                },
            );
            let what = format!("{mode:?}, {on_reload}: {said}");
            assert!(said.contains("1 open connection ends"), "{what}");
            let why = busy.read_exactly(1 << 20).expect_err(&what);
            assert!(why.contains("reset"), "{what}: {why}");
            assert_eq!(idle.get("/b").text(), "ok", "{what}");
            assert_eq!(new.seen().len(), 1, "{what}");
        }
    }
}

#[test]
fn what_waits_for_a_place_ends_as_it_is_told_to() {
    for on_reload in ["keep", "recheck", "reset"] {
        let listener = format!("on_reload = \"{on_reload}\"");
        let (before, after) = (format!("{TO_SECOND}{SECOND}"), SECOND);
        let with = |tables| More {
            listener: &listener,
            tables,
            ..More::default()
        };
        let switch = Switch::with("queue", Mode::Plain, with(&before));
        let [_first, second] = [0, 1].map(|n| Backend::start(&switch.net.server, switch.server(n)));
        let (mut busy, mut waits) = (switch.connect(), switch.connect());
        let half = switch.get_half("halves", &mut busy);
        waits.send("GET /length/10 HTTP/1.1\r\nHost: switch\r\n\r\n");
        switch.daemon.wait_upstream("second", 1, 1);
        let said = switch.change(0, with(after));
        let what = format!("{on_reload}: {said}");
        if on_reload == "keep" {
            assert!(!said.contains("connection"), "{what}");
            second.go_on();
            switch.get_other_half(half, &mut busy);
            assert_eq!(waits.reply().status, 200, "{what}");
            continue;
        }
        assert!(said.contains("2 open connections end"), "{what}");
        for client in [&mut busy, &mut waits] {
            let why = client.read_exactly(1 << 20).expect_err(&what);
            assert!(why.contains("reset"), "{what}: {why}");
        }
        switch.daemon.wait_upstream("second", 0, 0);
        // The server has not seen the request.
        assert_eq!(second.take_seen().len(), 1, "{what}");
    }
}
