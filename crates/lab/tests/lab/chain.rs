//! Nodes in a row: each routes both ways, over links of its own. Needs root.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::common::{chain, one_at_a_time};
use longsplice_lab::{Chain, ConnectionSpec, Error, Family, LinkSpec, Traffic, TrafficServer, TrafficSpec};

fn links(delays: &[u64]) -> Vec<LinkSpec> {
    let link = |delay: &u64| LinkSpec::delay(Duration::from_millis(*delay));
    delays.iter().map(link).collect()
}

#[test]
fn a_connection_crosses_three_nodes_and_all_their_links() {
    let _turn = one_at_a_time();
    for (family, client, server) in [
        (Family::V4, "198.18.1.1", "198.18.4.1"),
        (Family::V6, "2001:db8:0:1::1", "2001:db8:0:4::1"),
    ] {
        let net = chain("lab-chain", family, &links(&[1, 2, 3, 4]));
        assert_eq!(net.nodes.len(), 3);
        assert_eq!(net.client_addr, client.parse::<IpAddr>().unwrap());
        assert_eq!(net.server_addr, server.parse::<IpAddr>().unwrap());
        let at = SocketAddr::from((net.server_addr, 7000));
        let server = TrafficServer::start(&net.server, at).unwrap();
        let spec = TrafficSpec::same(1, ConnectionSpec::both_ways(10_000));
        let outcome = Traffic::run(&net.client, server.addr(), &spec).unwrap();
        assert!(outcome.all_ok(), "{outcome}");
        let [connection] = outcome.connections.as_slice() else {
            panic!("{outcome}")
        };
        assert_eq!(connection.client.local.unwrap().ip(), net.client_addr);
        assert!(connection.connect_us >= 20_000, "a round trip: {connection:?}");
        for link in net.link_reports() {
            assert!(
                link.to_server.forwarded > 5 && link.to_client.forwarded > 5,
                "{link}"
            );
        }
    }
}

#[test]
fn every_node_reaches_both_ends() {
    let _turn = one_at_a_time();
    let net = chain("lab-chain-ends", Family::V6, &links(&[1, 1, 1]));
    let families = [Family::V4, Family::V6];
    for (node, family) in net
        .nodes
        .iter()
        .flat_map(|node| families.map(|family| (node, family)))
    {
        for addr in [net.client_addr, net.server_addr] {
            let addr = family.addr(addr).to_string();
            let ping = node.command("ping").args(["-c", "1", "-W", "5", &addr]);
            let output = ping.output().unwrap();
            assert!(output.status.success(), "{} to {addr}: {output:?}", node.name());
        }
    }
}

#[test]
fn a_chain_without_nodes_is_a_link_and_one_without_links_is_refused() {
    let _turn = one_at_a_time();
    let net = chain("lab-chain-none", Family::V4, &links(&[1]));
    let at = SocketAddr::from((net.server_addr, 7000));
    let server = TrafficServer::start(&net.server, at).unwrap();
    let spec = TrafficSpec::same(1, ConnectionSpec::both_ways(1000));
    let outcome = Traffic::run(&net.client, server.addr(), &spec).unwrap();
    assert!(outcome.all_ok(), "{outcome}");
    for count in [0, 9] {
        let refused = Chain::new("lab-chain-bad", Family::V4, &vec![LinkSpec::default(); count]);
        assert!(matches!(refused, Err(Error::Links { asked, .. }) if asked == count));
    }
}
