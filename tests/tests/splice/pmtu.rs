//! Path MTU discovery through a splice: a path that becomes narrow in mid-stream stops no connection, on either leg.

use longsplice_engine::Side;
use longsplice_lab::LineOptions;
use longsplice_tests::{
    Bed, Policy,
    beyond::{Beyond, exchange_until_told, narrow_a_leg},
    veth_line,
};

const BYTES: u64 = 2 << 20;
const BOTH: [(Policy<'static>, &str); 2] = [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")];
const SIDES: [Side; 2] = [Side::Client, Side::Server];
/// MTU of a narrow link. The least for IPv6 is 1280.
const NARROW: u16 = 1300;

/// A router reports that packets are too big; the error is translated, and the sender gets it.
#[test]
fn a_link_behind_a_router_becomes_narrow() {
    for side in SIDES {
        for (policy, state) in BOTH {
            let bed = Beyond::new(veth_line("pmtu-router", LineOptions::default()), side, policy);
            let mut pair = bed.connect_spliced(state);
            pair.exchange(BYTES);
            assert_eq!(bed.daemon.status().segments("icmp_translated"), 0);
            bed.narrow_the_far_link(NARROW);
            pair.exchange(BYTES);
            let status = bed.daemon.status();
            assert!(
                status.segments("icmp_translated") > 0,
                "{side:?} {state} {status:?}"
            );
            assert_eq!(status.segments("drop_too_big"), 0, "{status:?}");
            pair.close();
        }
    }
}

/// A router reports that packets without offloads are too big.
#[test]
fn a_link_behind_a_router_becomes_narrow_without_offloads() {
    for side in SIDES {
        let options = LineOptions {
            offloads: false,
            ..LineOptions::default()
        };
        let bed = Beyond::new(veth_line("pmtu-plain", options), side, Policy::DETACHED);
        let mut pair = bed.connect_spliced("detached");
        pair.exchange(BYTES);
        bed.narrow_the_far_link(NARROW);
        pair.exchange(BYTES);
        let status = bed.daemon.status();
        assert!(status.segments("icmp_translated") > 0, "{side:?} {status:?}");
        pair.close();
    }
}

/// The forwarder itself finds packets too big: super-packets, whose segments count.
#[test]
fn a_link_of_the_forwarder_becomes_narrow() {
    for offloads in [true, false] {
        for side in SIDES {
            for (policy, state) in BOTH {
                let options = LineOptions {
                    offloads,
                    ..LineOptions::default()
                };
                let bed = Bed::with("pmtu-leg", options, policy, |c| c);
                let mut pair = bed.connect_spliced(state);
                pair.exchange(BYTES);
                narrow_a_leg(&bed.net, side, NARROW);
                exchange_until_told(&bed.daemon, &mut pair, BYTES);
                pair.close();
            }
        }
    }
}
