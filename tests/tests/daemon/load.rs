//! Load of a server: each connection that was sent to it counts, wherever it runs.

use std::net::SocketAddr;

use longsplice_tests::{Bed, Policy, switch::Client, veth_line};

#[test]
fn a_detached_connection_of_a_route_counts_beside_a_target_of_the_listener() {
    let net = veth_line("load", Default::default());
    let (server, client) = (SocketAddr::from((net.server_addr, 7000)), net.client_addr);
    let upstream =
        format!("[[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\nmax_connections = 1\nqueue = 0");
    let route = format!("[[listener.route]]\nclient = \"{client}\"\nupstream = \"u\"");
    let bed = Bed::on(net, Policy::DETACHED, |c| c.set(&upstream).with(&route));
    let mut pair = bed.connect_spliced("detached");
    // Its handler is gone.
    bed.daemon
        .wait_status("it to be left", |status| status.listeners[0].open == 0);
    let upstream = bed.daemon.upstream("u");
    assert_eq!(upstream["servers"][0]["open"], 1, "{upstream}");
    let why = Client::connect(&bed.net.client, bed.front()).read_exactly(1);
    assert!(why.as_ref().is_err_and(|why| why.contains("reset")), "{why:?}");
    pair.exchange(100_000);
    pair.close();
    bed.daemon.wait_upstream("u", 0, 0);
    let mut next = bed.connect_spliced("detached");
    next.exchange(1000);
    next.close();
}
