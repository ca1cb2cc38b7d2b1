//! Second way back (papers' section III-D): copies of the outstanding segments are collected, and the sockets take
//! over.

use std::thread;

use longsplice_engine::{Ended, Outstanding, Side, Until};
use longsplice_tests::{
    library::{Depth, Desk},
    rng,
};

/// Streams run at full rate both ways: some segments are always outstanding when the budget is used up.
#[test]
fn what_is_outstanding_is_taken_over_while_streams_run() {
    const BYTES: u64 = 256 << 20;
    let mut rng = rng();
    for depth in Depth::BOTH {
        let desk = Desk::new("capture");
        let (mut pair, near) = desk.connect_for(depth);
        let mut next = near.with_outstanding(Outstanding::Capture);
        thread::scope(|scope| {
            scope.spawn(|| {
                pair.exchange(BYTES);
                pair.close();
            });
            loop {
                let past = rng.u64(8 << 20..32 << 20);
                match desk
                    .library
                    .splice(next, Until::bytes_from(Side::Client, past))
                    .ended()
                {
                    Ended::Returned(returned) => {
                        assert_eq!(returned.passed.client, past);
                        next = returned.into();
                    }
                    Ended::Closed(summary) => {
                        assert!(!summary.reset);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        let counters = desk.library.splicer().counters();
        println!(
            "{depth:?}: {} of {}",
            counters.captured_total, counters.resumed_total
        );
        assert!(counters.captured_total > 0, "{counters:?}");
    }
}
