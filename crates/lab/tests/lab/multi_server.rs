//! Client, forwarder and several servers, with and without a router before them. Needs root.

use std::iter;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::common::multi_server;
use longsplice_lab::{
    ConnectionSpec, Error, Family, Leg, MultiServer, MultiServerOptions, Traffic, TrafficServer, TrafficSpec,
};
use socket2::{Domain, Socket, Type};

fn routed(servers: usize, router: Option<Leg>) -> MultiServerOptions {
    MultiServerOptions {
        servers: vec![Leg::default(); servers],
        router,
        forwards: true,
        ..MultiServerOptions::default()
    }
}

/// Returns whether a connection from the client reaches the first server with packets that pass at most `hops`
/// nodes.
fn reaches(net: &MultiServer, hops: u32) -> bool {
    let server = &net.servers[0];
    let listen = || TcpListener::bind((server.addr, 0));
    let listener = server.namespace.run(listen).unwrap().unwrap();
    let addr = listener.local_addr().unwrap();
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_ttl_v4(hops).unwrap();
        socket.connect_timeout(&addr.into(), Duration::from_secs(5))
    };
    net.client.run(connect).unwrap().is_ok()
}

#[test]
fn every_server_is_reached_and_sees_the_client() {
    let net = multi_server("lab-servers", routed(3, None));
    let start = |server: &longsplice_lab::topology::Server| {
        TrafficServer::start(&server.namespace, (server.addr, 7000).into()).unwrap()
    };
    let servers: Vec<TrafficServer> = net.servers.iter().map(start).collect();
    thread::scope(|scope| {
        for server in &servers {
            scope.spawn(|| {
                let spec = TrafficSpec::same(4, ConnectionSpec::both_ways(1 << 20));
                let outcome = Traffic::run(&net.client, server.addr(), &spec).unwrap();
                assert!(outcome.all_ok(), "{outcome}");
                let peer = outcome.connections[0].server.as_ref().unwrap().peer.unwrap();
                assert_eq!(peer.ip(), net.client_addr);
            });
        }
    });
    assert!(net.verdict().counts(), "nothing is emulated");
}

#[test]
fn names_and_addresses_are_those_of_the_description() {
    let net = multi_server("lab-names", routed(2, Some(Leg::default())));
    let nodes: Vec<String> = net.nodes().into_iter().map(|(name, _)| name).collect();
    assert_eq!(nodes, ["client", "router", "forwarder", "server", "server2"]);
    for (node, namespace) in net.nodes() {
        let start = format!("lab-names-{node}-{}-", std::process::id());
        assert!(namespace.name().starts_with(&start), "{}", namespace.name());
    }
    assert_eq!(net.forwarder_client_addr.to_string(), "198.18.0.2");
    let second = &net.servers[1];
    assert_eq!(
        (
            second.addr.to_string(),
            second.forwarder_addr.to_string(),
            second.forwarder_device.as_str()
        ),
        ("198.18.3.1".into(), "198.18.3.2".into(), "f2")
    );
}

#[test]
fn a_router_is_one_more_node_on_the_way() {
    let net = multi_server("lab-hops", routed(1, None));
    assert!(!reaches(&net, 1), "the forwarder routes");
    assert!(reaches(&net, 2));
    let net = multi_server("lab-hops", routed(1, Some(Leg::default())));
    assert!(!reaches(&net, 2), "so does the router");
    assert!(reaches(&net, 3));
}

#[test]
fn a_forwarder_that_is_told_not_to_does_not_route() {
    let options = MultiServerOptions {
        forwards: false,
        ..routed(1, Some(Leg::default()))
    };
    let net = multi_server("lab-noroute", options);
    let server = TrafficServer::start(&net.servers[0].namespace, (net.servers[0].addr, 7000).into()).unwrap();
    let mut each = ConnectionSpec::both_ways(1);
    each.stall = Duration::from_millis(300);
    let spec = TrafficSpec::same(1, each);
    assert!(!Traffic::run(&net.client, server.addr(), &spec).unwrap().all_ok());
    // The forwarder itself is reached through the router.
    let own = TrafficServer::start(&net.forwarder, (net.forwarder_client_addr, 7000).into()).unwrap();
    let outcome = Traffic::run(&net.client, own.addr(), &spec).unwrap();
    assert!(outcome.all_ok(), "{outcome}");
}

#[test]
fn legs_of_both_kinds_are_mixed() {
    Family::BOTH.into_iter().for_each(mixed);
}

fn mixed(family: Family) {
    let options = MultiServerOptions {
        family,
        client: "veth,no-offloads".parse().unwrap(),
        router: Some("5ms,loss=1%".parse().unwrap()),
        servers: vec!["veth,mtu=1300".parse().unwrap(), "10ms,mtu=1400".parse().unwrap()],
        forwards: true,
        large_buffers: true,
    };
    let net = multi_server("lab-mixed", options);
    for (n, round_trip_us) in [(0, 10_000), (1, 30_000)] {
        let server = &net.servers[n];
        let server = TrafficServer::start(&server.namespace, (server.addr, 7000).into()).unwrap();
        let spec = TrafficSpec::same(3, ConnectionSpec::both_ways(100_000));
        let connect = || {
            let outcome = Traffic::run(&net.client, server.addr(), &spec).unwrap();
            assert!(outcome.all_ok(), "{outcome}");
            outcome.connections.iter().map(|each| each.connect_us).min()
        };
        // The emulator may be late at times, but never early.
        let mut times = iter::repeat_with(connect).flatten().take(10);
        let in_time = times.any(|us| {
            assert!(us >= round_trip_us, "{us} us");
            us < round_trip_us + 5000
        });
        assert!(in_time, "{round_trip_us} us, and always much later");
    }
    let reports = net.link_reports();
    let names: Vec<&str> = reports.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["router", "server2"]);
    assert!(
        reports.iter().all(|link| link.to_server.forwarded > 0),
        "{reports:?}"
    );
}

#[test]
fn there_are_addresses_for_so_many_servers_only() {
    let refused = MultiServer::new("lab-many", routed(511, None)).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::TooMany {
                asked: 511,
                most: 510
            }
        ),
        "{refused}"
    );
}
