//! Clients make requests all the time, and all succeed while servers come and go, and while the configuration changes.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use longsplice_tests::{
    soon,
    switch::{Backend, Mode, More, Switch, content},
};

const CLIENTS: usize = 6;

/// Two servers with frequent health checks. Failing requests reveal a killed server.
const CHECKED: More<'_> = More {
    head: "",
    listener: "",
    http: "",
    upstream: "health = { http = \"/health\", interval = \"20ms\", rise = 1, fall = 1 }\nconnect_timeout = \"1s\"\n\
               [[upstream.server]]\naddress = \"@SECOND@\"",
    tables: "",
};

/// Starts both servers, and waits until the daemon has found them healthy.
fn servers_in_order(switch: &Switch) -> [Backend; 2] {
    let servers = [0, 1].map(|n| Backend::start(&switch.net.server, switch.server(n)));
    for server in &servers {
        soon("both servers to be up", || {
            switch.connect().get("/length/1");
            requests(server) > 0
        });
    }
    servers
}

/// Runs clients while `work` is done; each of them in turn keeps its connection for some requests and makes a new one.
/// Every reply must be right.
fn under_load(switch: &Switch, length: usize, work: impl FnOnce(&AtomicU64)) {
    let (over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let path = format!("/length/{length}");
    let expected = content(length);
    /// Guard that ends the clients however the work ends.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        for n in 0..CLIENTS {
            let (over, asked, path, expected) = (&over, &asked, &path, &expected);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let mut client = switch.connect();
                    for request in 0..10 {
                        client.send(format!("GET {path} HTTP/1.1\r\nHost: switch\r\n\r\n"));
                        let reply = client.try_reply(false);
                        let reply = reply.unwrap_or_else(|e| panic!("client {n}, request {request}: {e}"));
                        assert!(
                            reply.status == 200 && reply.body == *expected,
                            "client {n}, request {request}: {}",
                            reply.head
                        );
                        asked.fetch_add(1, Ordering::Relaxed);
                        if reply.field("Connection") == Some("close") {
                            break;
                        }
                    }
                }
            });
        }
        let _over = Over(&over);
        work(&asked);
    });
}

/// Waits until so many more requests were answered.
fn some_more(asked: &AtomicU64) {
    let before = asked.load(Ordering::Relaxed);
    soon("more requests", || {
        asked.load(Ordering::Relaxed) >= before + 5 * CLIENTS as u64
    });
}

/// Returns the number of clients' requests, without the health checks.
fn requests(server: &Backend) -> usize {
    let seen = server.take_seen();
    seen.iter()
        .filter(|s| s.first_line().contains("/length/"))
        .count()
}

#[test]
fn no_request_fails_when_servers_fail_their_checks_are_killed_and_come_back() {
    for mode in [Mode::Plain, Mode::Detached] {
        let switch = Switch::with("health", mode, CHECKED);
        let start = |n: usize| Backend::start(&switch.net.server, switch.server(n));
        let [mut first, second] = servers_in_order(&switch);
        // The reply is so short that the death of its server never cuts it in two.
        under_load(&switch, 100, |asked| {
            some_more(asked);
            assert!(requests(&first) > 0 && requests(&second) > 0, "both serve");
            first.set_well(false);
            soon("the first server to get no more", || {
                requests(&first);
                some_more(asked);
                requests(&first) == 0
            });
            first.set_well(true);
            soon("the first server to be back", || requests(&first) > 0);
            for _ in 0..3 {
                drop(first);
                some_more(asked);
                first = start(0);
                soon("the first server to be back", || requests(&first) > 0);
            }
        });
    }
}

#[test]
fn no_request_fails_while_the_configuration_changes() {
    const RELOADS: usize = 8;
    let switch = Switch::with("reload", Mode::Detached, CHECKED);
    let servers = servers_in_order(&switch);
    // The limits change, routes come and go, and all requests go to another upstream.
    let routed = More {
        http: "max_requests = 7",
        tables: "[[listener.route]]\nname = \"all\"\npath_prefix = \"/length/\"\nupstream = \"second\"\n\
                 [[upstream]]\nname = \"second\"\nservers = [\"@SECOND@\"]\n",
        ..CHECKED
    };
    let limited = More {
        listener: "rate_limit = \"1GB/s\"",
        upstream: "",
        ..CHECKED
    };
    under_load(&switch, 30_000, |asked| {
        for n in 0..RELOADS {
            let (first, more) = [(0, CHECKED), (0, routed), (1, limited)][n % 3];
            switch.change(first, more);
            some_more(asked);
        }
    });
    let status = switch.daemon.status();
    assert_eq!(status.config_generation.failed_total, 0, "{status:?}");
    assert!(servers.iter().all(|s| requests(s) > 0), "both served");
}
