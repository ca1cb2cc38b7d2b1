//! Fate of connections that have no server yet when the configuration changes: they wait for their ClientHello, for a
//! place at a server, or for its handshake.

use std::{
    io::Read,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use longsplice_lab::Line;
use longsplice_tests::{
    Bed, Config, Pair, Policy, SOON, accept, client_hello, nft, switch::Client, veth_line,
};

const AT_ONCE: Duration = Duration::from_secs(3);
const ON_RELOAD: [&str; 3] = ["keep", "reset", "recheck"];
const PORTS: [u16; 2] = [7000, 7001];

/// Returns a configuration with an upstream of this server that serves one connection at a time, and with a listener
/// that has these settings and its target there.
fn config(net: &Line, server: u16, listener: &str) -> Config {
    let [front, target, server] = [
        (net.family().unspecified(), 8080),
        (net.server_addr, 7000),
        (net.server_addr, server),
    ]
    .map(SocketAddr::from);
    let upstream = format!(
        "[[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\nmax_connections = 1\nqueue_timeout = \"1m\"\n\
         connect_timeout = \"1m\""
    );
    Config::new()
        .listener(front, target, "never", "never")
        .set(&upstream)
        .with(listener)
}

/// Returns the lines of a listener with a route to the upstream for this client.
fn routed(net: &Line, on_reload: &str) -> String {
    let client = net.client_addr;
    format!("on_reload = \"{on_reload}\"\n[[listener.route]]\nclient = \"{client}\"\nupstream = \"u\"")
}

fn begin(name: &str, listener: impl FnOnce(&Line) -> String) -> Bed {
    let net = veth_line(name, Default::default());
    let first = config(&net, PORTS[0], &listener(&net));
    Bed::on(net, Policy::ON_DEMAND, |_| first)
}

/// Listens at the second port of the server's host.
fn second(net: &Line) -> TcpListener {
    let address = SocketAddr::from((net.server_addr, PORTS[1]));
    net.server.run(|| TcpListener::bind(address)).unwrap().unwrap()
}

fn assert_reset(client: &mut Client, what: &str) {
    client.stream.set_read_timeout(Some(AT_ONCE)).unwrap();
    let why = client.read_exactly(1);
    assert!(
        why.as_ref().is_err_and(|why| why.contains("reset")),
        "{what}: {why:?}"
    );
}

#[test]
fn what_waits_for_a_place_ends_as_it_is_told_to() {
    for on_reload in ON_RELOAD {
        let bed = begin("undecided-queue", |net| routed(net, on_reload));
        let mut served = bed.connect();
        bed.daemon.wait_upstream("u", 0, 1);
        let mut waits = Client::connect(&bed.net.client, bed.front());
        bed.daemon.wait_upstream("u", 1, 1);
        let without = format!("on_reload = \"{on_reload}\"");
        let said = bed.daemon.change(&config(&bed.net, PORTS[0], &without)).unwrap();
        let what = format!("{on_reload}: {said}");
        if on_reload != "keep" {
            assert!(said.contains("2 open connections end"), "{what}");
            served.client.expect_reset(AT_ONCE);
            assert_reset(&mut waits, &what);
            bed.daemon.wait_upstream("u", 0, 0);
            continue;
        }
        assert!(!said.contains("connection"), "{what}");
        served.exchange(1000);
        served.close();
        let mut pair = Pair::accept(waits.stream, &bed.listener);
        pair.exchange(1000);
        bed.daemon.wait_upstream("u", 0, 1);
        pair.close();
    }
}

#[test]
fn what_waits_for_a_server_that_is_gone_ends_as_it_is_told_to() {
    for on_reload in ON_RELOAD {
        let bed = begin("undecided-connect", |net| routed(net, on_reload));
        let drop = format!(
            "table inet t {{ chain c {{ type filter hook input priority 0; tcp dport {} drop; }}; }}",
            PORTS[0]
        );
        nft(&bed.net.server, &drop);
        let mut waits = Client::connect(&bed.net.client, bed.front());
        bed.daemon.wait_upstream("u", 0, 1);
        let _other = second(&bed.net);
        let lines = routed(&bed.net, on_reload);
        let said = bed.daemon.change(&config(&bed.net, PORTS[1], &lines)).unwrap();
        let what = format!("{on_reload}: {said}");
        nft(&bed.net.server, "delete table inet t");
        // Its SYN is repeated, and now answered.
        if on_reload != "keep" {
            assert_reset(&mut waits, &what);
            continue;
        }
        let mut pair = Pair::accept(waits.stream, &bed.listener);
        pair.exchange(1000);
        pair.close();
    }
}

/// Begins a connection of which no ClientHello has come.
fn silent(name: &str, on_reload: &str) -> (Bed, Client) {
    let bed = begin(name, |_| {
        format!("on_reload = \"{on_reload}\"\nprotocol = \"tls\"")
    });
    let client = Client::connect(&bed.net.client, bed.front());
    bed.daemon
        .wait_status("it to be accepted", |status| status.listeners[0].open == 1);
    (bed, client)
}

fn assert_arrives(hello: &[u8], listener: &TcpListener, what: &str) {
    let mut server = accept(listener);
    server.set_read_timeout(Some(SOON)).unwrap();
    let mut got = vec![0; hello.len()];
    server.read_exact(&mut got).unwrap();
    assert!(got == hello, "{what}");
}

#[test]
fn what_waits_for_its_hello_goes_the_way_that_is_in_force_then() {
    let hello = client_hello("a.example", &[], 1000);
    for on_reload in ON_RELOAD {
        let (bed, mut client) = silent("undecided-hello", on_reload);
        let other = second(&bed.net);
        let route = "[[listener.route]]\nsni = \"a.example\"\nupstream = \"u\"";
        let lines = format!("on_reload = \"{on_reload}\"\nprotocol = \"tls\"\n{route}");
        let said = bed.daemon.change(&config(&bed.net, PORTS[1], &lines)).unwrap();
        assert!(!said.contains("connection"), "{on_reload}: {said}");
        client.send(&hello);
        assert_arrives(&hello, &other, on_reload);
    }
}

#[test]
fn what_waits_for_its_hello_ends_as_a_listener_that_is_gone_told() {
    let hello = client_hello("a.example", &[], 1000);
    for on_reload in ON_RELOAD {
        let (bed, mut client) = silent("undecided-gone", on_reload);
        let elsewhere = SocketAddr::from((bed.net.family().unspecified(), 8099));
        let elsewhere = Config::new().listener(elsewhere, bed.target(), "never", "never");
        bed.daemon.change(&elsewhere).unwrap();
        client.send(&hello);
        match on_reload {
            "keep" => assert_arrives(&hello, &bed.listener, on_reload),
            _ => assert_reset(&mut client, on_reload),
        }
    }
}

#[test]
fn what_is_read_otherwise_now_goes_the_way_of_the_listener_that_read_it() {
    let hello = client_hello("a.example", &[], 1000);
    for on_reload in ON_RELOAD {
        let (bed, mut client) = silent("undecided-other", on_reload);
        let _other = second(&bed.net);
        // The new listener would not have asked for a hello.
        let lines = routed(&bed.net, on_reload);
        bed.daemon.change(&config(&bed.net, PORTS[1], &lines)).unwrap();
        client.send(&hello);
        match on_reload {
            "keep" => assert_arrives(&hello, &bed.listener, on_reload),
            _ => assert_reset(&mut client, on_reload),
        }
    }
}
