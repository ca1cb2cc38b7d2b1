//! Clients that never acknowledge the end of their replies: they harm only themselves.

use std::time::{Duration, Instant};

use longsplice_tests::{
    patient,
    silent::Silent,
    soon,
    switch::{Backend, Mode, Switch, content},
};

/// Length of the replies with an unacknowledged tail, and of that tail.
const LENGTH: u64 = 3_000_000;
const TAIL: u64 = 100_000;
const SILENT: u16 = 20;
const ORDINARY: usize = 40;
/// Time limit of an ordinary request, which takes moments; behind a silent client's reply it would wait for a
/// server's timer.
const SLOW: Duration = Duration::from_secs(2);

fn path() -> String {
    format!("/length/{LENGTH}")
}

/// Time after which a server that waits for an acknowledgement counts as stuck: it holds its last segments back and
/// cannot finish.
const STUCK: Duration = Duration::from_secs(1);

/// Makes at least `n` clients request and fall silent, until at least half as many connections to the server have come
/// back. (After lost segments, or on a busy machine, a server may hold its last segments back.)
fn fall_silent(switch: &Switch, n: u16) -> Silent {
    let mut silent = Silent::new(&switch.net, switch.front());
    let request = format!("GET {} HTTP/1.1\r\nHost: switch\r\n\r\n", path());
    let least = switch.daemon.status().returned("server") + u64::from(n) / 2;
    let mut asked: Option<Instant> = None;
    soon("connections to the server come back", || {
        if asked.is_none_or(|at| at.elapsed() > STUCK) {
            let took = silent.ask(n, request.as_bytes(), LENGTH - TAIL);
            assert_eq!(took, silent.addresses().len());
            asked = Some(Instant::now());
        }
        switch.daemon.status().returned("server") >= least
    });
    silent
}

fn of_server(switch: &Switch, what: &str) -> u64 {
    let servers = switch.servers();
    servers[0][what].as_u64().unwrap_or_else(|| panic!("{servers:?}"))
}

#[test]
fn who_comes_after_silent_clients_does_not_wait_for_them() {
    for mode in [Mode::Auto, Mode::Dormant, Mode::Detached] {
        let switch = Switch::new("silent", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut silent = fall_silent(&switch, SILENT);
        let slow: Vec<_> = (0..ORDINARY)
            .map(|_| {
                let start = Instant::now();
                let mut client = switch.connect();
                assert!(client.get("/length/1000").body == content(1000), "{mode:?}");
                start.elapsed()
            })
            .filter(|took| *took > patient(SLOW))
            .collect();
        assert!(slow.is_empty(), "{mode:?}: {slow:?}");
        let servers = switch.servers();
        assert_eq!(servers[0]["state"], "up", "{mode:?}: {servers:?}");
        // The reset of the silent clients leaves the other replies alone.
        if mode != Mode::Auto {
            let mut others = [switch.connect(), switch.connect(), switch.connect()];
            let halves = others.each_mut().map(|client| switch.get_half("halves", client));
            silent.reset();
            for (client, half) in others.iter_mut().zip(halves) {
                server.go_on();
                switch.get_other_half(half, client);
            }
        }
    }
}

#[test]
fn a_connection_is_used_again_once_its_last_client_has_acknowledged_all() {
    for mode in [Mode::Dormant, Mode::Detached] {
        let switch = Switch::new("settles", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let reply = switch.connect().get(&path());
        let whole = reply.head.len() as u64 + LENGTH;
        let mut silent = fall_silent(&switch, 4);
        assert!(of_server(&switch, "aside") > 0, "{mode:?}");
        assert_eq!(silent.take_more(whole), silent.addresses().len(), "{mode:?}");
        let back = || of_server(&switch, "aside") == 0 && of_server(&switch, "idle") >= 4;
        soon("all connections are idle", back);
        let connections = server.connections();
        let mut clients = [(); 4].map(|()| switch.connect());
        let halves = clients.each_mut().map(|client| switch.get_half("halves", client));
        assert_eq!(server.connections(), connections, "{mode:?}");
        for (client, half) in clients.iter_mut().zip(halves) {
            server.go_on();
            switch.get_other_half(half, client);
        }
    }
}

#[test]
fn a_connection_that_does_not_settle_is_closed() {
    let switch = Switch::new("givenup", Mode::Dormant);
    let _server = Backend::start(&switch.net.server, switch.target());
    let _silent = fall_silent(&switch, 4);
    assert!(of_server(&switch, "aside") > 0);
    soon("none stands aside", || of_server(&switch, "aside") == 0);
    assert!(of_server(&switch, "given_up_total") > 0);
}
