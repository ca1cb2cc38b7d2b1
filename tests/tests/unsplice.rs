//! A spliced pair comes back: by command and by each kind of trap, from both depths, and is spliced again.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use longsplice_tests::{Bed, Policy};

/// Back and forth by command, with bytes in both directions in every state.
fn to_and_fro(name: &str, policy: Policy<'_>, state: &str) {
    let bed = Bed::new(name, policy);
    let mut pair = bed.connect();
    pair.exchange(10_000);
    for _ in 0..5 {
        bed.splice(&pair, state);
        pair.exchange(100_000);
        let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
        bed.daemon.unsplice(flow.id).unwrap();
        bed.daemon.wait_state(pair.client_port(), &["relay", "undraining"]);
        pair.exchange(100_000);
    }
    pair.close();
    let status = bed.daemon.wait_status("five of each", |s| s.unspliced_total == 5);
    assert_eq!(status.spliced_total, 5, "{status:?}");
}

#[test]
fn by_command_from_dormant() {
    to_and_fro("un-dormant", Policy::ON_DEMAND_DORMANT, "dormant");
}

#[test]
fn by_command_from_detached() {
    to_and_fro("un-detached", Policy::ON_DEMAND, "detached");
}

/// Through a listener whose connections come back by a trap, and are spliced again, many times.
fn cycles(name: &str, detach: &str, unsplice: &str) {
    let policy = Policy {
        splice: "now",
        detach,
    };
    let bed = Bed::with(name, Default::default(), policy, |c| {
        c.with(&format!("unsplice = \"{unsplice}\""))
    });
    let mut pair = bed.connect();
    for _ in 0..40 {
        pair.exchange(300_000);
        pair.exchange_unevenly(1_000, 30_000);
    }
    pair.close();
    let status = bed.daemon.wait_status("the end", |s| s.listeners.iter().all(|l| l.open == 0));
    println!("{status:?}");
    assert!(status.unspliced_total >= 2, "{status:?}");
    assert_eq!(status.segments("aborted"), 0, "{status:?}");
}

#[test]
fn by_bytes_from_dormant() {
    cycles("un-bytes-dorm", "never", "bytes=client:200kB");
}

#[test]
fn by_bytes_from_detached() {
    cycles("un-bytes-det", "now", "bytes=client:200kB");
}

#[test]
fn by_data_from_dormant() {
    cycles("un-data-dorm", "never", "data=client");
}

#[test]
fn by_data_from_detached() {
    cycles("un-data-det", "now", "data=server");
}
