//! Fragments through a splice: a sender permits them (IPv4 without DF), and a router before the forwarder makes them.
//! Always IPv4: IPv6 routers do not fragment, and Linux sends no TCP fragments.

use longsplice_engine::Side;
use longsplice_lab::{Line, LineOptions};
use longsplice_tests::{
    Policy,
    beyond::{Beyond, narrow_a_leg},
};

const BYTES: u64 = 1 << 20;

#[test]
fn a_router_cuts_what_a_client_sends() {
    for (policy, state) in [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")] {
        let net = Line::new("fragments", LineOptions::default()).unwrap();
        let bed = Beyond::new(net, Side::Client, policy);
        bed.far().sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
        let mut pair = bed.connect_spliced(state);
        pair.exchange(BYTES);
        assert_eq!(bed.daemon.status().segments("fragment"), 0);
        narrow_a_leg(&bed.net, Side::Client, 1300);
        pair.exchange(BYTES);
        let status = bed.daemon.status();
        assert!(status.segments("fragment") > 100, "{status:?}");
        let collected = bed.net.server.snmp().unwrap();
        assert!(collected.get("Ip.ReasmOKs") > 50, "{collected:?}");
        pair.close();
    }
}
