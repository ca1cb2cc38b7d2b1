//! Graphs whose routers are inside the emulator. Needs root.

use std::time::{Duration, Instant};

use longsplice_lab::{
    ConnectionSpec, Family, Graph, GraphSpec, LinkReport, Traffic, TrafficServer, TrafficSpec,
};

use crate::common::one_at_a_time;

/// Two ways from one side to the other, the shorter one over a node.
const DIAMOND: &str = r#"
    hosts = ["client", "other", "server"]
    nodes = ["middle"]
    routers = ["west", "east", "long"]
    links = [
        { between = ["client", "west"], link = "1ms,100Mbit" },
        { between = ["other", "west"], link = "2ms,100Mbit" },
        { between = ["west", "middle"], link = "5ms,100Mbit" },
        { between = ["middle", "east"], link = "5ms,100Mbit" },
        { between = ["west", "long"], link = "8ms,100Mbit" },
        { between = ["long", "east"], link = "8ms,100Mbit" },
        { between = ["east", "server"], link = "1ms,100Mbit" },
    ]
"#;

#[test]
fn packets_take_the_shortest_path_in_both_families() {
    let _turn = one_at_a_time();
    let spec: GraphSpec = DIAMOND.parse().unwrap();
    for family in Family::BOTH {
        let graph = Graph::new("lab-graph", family, &spec).unwrap();
        let to = (graph.address("server").unwrap(), 7000).into();
        let server = TrafficServer::start(graph.namespace("server").unwrap(), to).unwrap();
        for client in ["client", "other"] {
            let spec = TrafficSpec::same(3, ConnectionSpec::both_ways(100_000));
            let outcome = Traffic::run(graph.namespace(client).unwrap(), server.addr(), &spec).unwrap();
            assert!(outcome.all_ok(), "{outcome}");
        }
        let passed = |reports: &[LinkReport], name: &str| {
            let link = reports.iter().find(|link| link.name == name).unwrap();
            (link.to_server.forwarded, link.to_client.forwarded)
        };
        // The last acknowledgements are still under way.
        let since = Instant::now();
        let reports = loop {
            let reports = graph.link_reports();
            let [west, east] = ["west to middle", "middle to east"].map(|link| passed(&reports, link));
            let [client, other] = ["client to west", "other to west"].map(|link| passed(&reports, link));
            let sum = (client.0 + other.0, client.1 + other.1);
            if west == east && west == sum || since.elapsed() > Duration::from_secs(5) {
                assert_eq!((west, west), (east, sum), "{reports:#?}");
                assert!(west.0 > 100 && west.1 > 100, "{reports:#?}");
                break reports;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(passed(&reports, "west to long"), (0, 0), "{reports:#?}");
        let unroutable = reports
            .iter()
            .map(|link| link.to_server.unroutable + link.to_client.unroutable);
        let unroutable: u64 = unroutable.sum();
        // In IPv6 each device reports its multicast groups, which goes no further than its link.
        assert!(unroutable == 0 || family == Family::V6, "{reports:#?}");
        assert!(
            reports
                .iter()
                .all(|link| link.to_server.forwarded_bytes >= 60 * link.to_server.forwarded)
        );
    }
}

#[test]
fn the_delay_of_a_routed_path_is_that_of_its_links() {
    let _turn = one_at_a_time();
    let spec: GraphSpec = DIAMOND.parse().unwrap();
    let graph = Graph::new("lab-graph-rtt", Family::V4, &spec).unwrap();
    let to: std::net::SocketAddr = (graph.address("server").unwrap(), 7000).into();
    let listener = graph
        .namespace("server")
        .unwrap()
        .run(|| std::net::TcpListener::bind(to));
    let _listener = listener.unwrap().unwrap();
    // The shortest of some attempts: the measuring thread has no priority.
    let connect = || {
        let start = Instant::now();
        let client = graph.namespace("client").unwrap();
        client.run(|| std::net::TcpStream::connect(to).unwrap()).unwrap();
        start.elapsed()
    };
    let shortest = (0..30).map(|_| connect()).min().unwrap();
    assert!(shortest >= Duration::from_millis(24), "never early: {shortest:?}");
    assert!(shortest < Duration::from_millis(28), "{shortest:?}");
}

#[test]
fn a_row_of_namespaces_needs_no_router() {
    let text = r#"
        hosts = ["client", "server"]
        nodes = ["middle"]
        links = [
            { between = ["client", "middle"], link = "1ms,100Mbit" },
            { between = ["middle", "server"], link = "1ms,100Mbit" },
        ]
    "#;
    let graph = Graph::new("lab-row", Family::V4, &text.parse().unwrap()).unwrap();
    let to = (graph.address("server").unwrap(), 7000).into();
    let server = TrafficServer::start(graph.namespace("server").unwrap(), to).unwrap();
    let spec = TrafficSpec::same(2, ConnectionSpec::both_ways(10_000));
    let outcome = Traffic::run(graph.namespace("client").unwrap(), server.addr(), &spec).unwrap();
    assert!(outcome.all_ok(), "{outcome}");
}

#[test]
fn a_graph_in_two_parts_is_refused() {
    let text = DIAMOND
        .replace(r#"["east", "server"]"#, r#"["server", "lone"]"#)
        .replace(r#""long"]"#, r#""long", "lone"]"#);
    let spec: GraphSpec = text.parse().unwrap();
    let refusal = Graph::new("lab-graph-parts", Family::V4, &spec)
        .unwrap_err()
        .to_string();
    assert!(
        refusal.contains("there is no path from server to client"),
        "{refusal}"
    );
}
