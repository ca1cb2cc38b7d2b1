//! Fragments through a splice: a sender permits them (IPv4 without DF), and a router before the forwarder makes them.
//! The client is always of IPv4: IPv6 routers do not fragment, and Linux sends no TCP fragments. The server is of either
//! family.

use longsplice_engine::Side;
use longsplice_lab::{Family, LineOptions};
use longsplice_tests::{
    Policy,
    beyond::{Beyond, narrow_a_leg},
    veth_line,
};

const BYTES: u64 = 1 << 20;

fn a_router_cuts_what_a_client_sends(server: Family) {
    for (policy, state) in [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")] {
        // Its nodes have addresses of IPv4, too.
        let net = veth_line(
            "fragments",
            LineOptions {
                family: Family::V6,
                ..LineOptions::default()
            },
        );
        let bed = Beyond::across(net, Side::Client, [Family::V4, server], policy);
        bed.far().sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
        let mut pair = bed.connect_spliced(state);
        pair.exchange(BYTES);
        assert_eq!(bed.daemon.status().segments("fragment"), 0);
        narrow_a_leg(&bed.net, Side::Client, 1300);
        pair.exchange(BYTES);
        let status = bed.daemon.status();
        assert!(status.segments("fragment") > 100, "{status:?}");
        assert_eq!(status.segments("drop_fragment"), 0, "{status:?}");
        let collected = bed.net.server.snmp().unwrap();
        let counter = match server {
            Family::V4 => "Ip.ReasmOKs",
            Family::V6 => "Ip6.ReasmOKs",
        };
        assert!(collected.get(counter) > 50, "{collected:?}");
        pair.close();
    }
}

#[test]
fn the_server_is_of_ipv4() {
    a_router_cuts_what_a_client_sends(Family::V4);
}

#[test]
fn the_server_is_of_ipv6() {
    a_router_cuts_what_a_client_sends(Family::V6);
}
