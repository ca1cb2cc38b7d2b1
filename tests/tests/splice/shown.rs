//! `longsplice flows` tells of a connection as a whole, whether its segments pass sockets or not.

use std::{thread, time::Duration};

use longsplice_tests::{Bed, Policy, soon};

#[test]
fn a_spliced_connection_that_carries_data_is_not_idle() {
    for (name, policy, state, more) in [
        ("shown-dormant", Policy::DORMANT, "dormant", ""),
        (
            "shown-waited",
            Policy::DETACHED,
            "detached",
            "unsplice = \"idle=1h\"",
        ),
    ] {
        let bed = Bed::with(name, Default::default(), policy, |c| c.with(more));
        let mut pair = bed.connect_spliced(state);
        soon("an age, and no idle time", || {
            pair.exchange(1_000);
            thread::sleep(Duration::from_millis(20));
            let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
            flow.age_seconds > 4.0 && flow.idle_seconds.is_some_and(|idle| idle < 1.5)
        });
    }
}
