//! `longsplice kill ID`: both ends are reset, in every state of the flow.

use std::time::Duration;

use longsplice_tests::{Bed, Policy};

const AT_ONCE: Duration = Duration::from_secs(2);

fn ended(name: &str, policy: Policy<'_>, state: &str, more: &str) {
    let bed = Bed::with(name, Default::default(), policy, |c| c.with(more));
    let mut pair = bed.connect_spliced(state);
    pair.exchange(1 << 20);
    let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
    let mut other = bed.connect_spliced(state);
    bed.daemon.kill_flow(flow.id).unwrap();
    pair.client.expect_reset(AT_ONCE);
    pair.server.expect_reset(AT_ONCE);
    other.exchange(1 << 20);
    other.close();
    bed.daemon.wait_reaped();
    assert!(
        bed.daemon.kill_flow(flow.id).unwrap_err().contains("404"),
        "it is gone"
    );
    assert_eq!(bed.daemon.status().health.flows, 0);
}

#[test]
fn relayed() {
    ended("end-relay", Policy::ON_DEMAND, "relay", "");
}

#[test]
fn dormant() {
    ended("end-dormant", Policy::DORMANT, "dormant", "");
}

#[test]
fn detached() {
    ended("end-detached", Policy::DETACHED, "detached", "");
}

#[test]
fn detached_and_waited_for() {
    ended(
        "end-waited",
        Policy::DETACHED,
        "detached",
        "unsplice = \"idle=1h\"",
    );
}

/// The flow ends without waiting for bytes that wait for a reader.
#[test]
fn with_a_reader_that_stands_still() {
    let bed = Bed::new("end-full", Policy::ON_DEMAND);
    let mut pair = bed.connect_spliced("relay");
    pair.client.fill();
    let flow = bed.daemon.wait_state(pair.client_port(), &["relay"]);
    bed.daemon.kill_flow(flow.id).unwrap();
    pair.server.expect_reset(AT_ONCE);
}

#[test]
fn by_the_command_line() {
    let bed = Bed::new("end-cli", Policy::DETACHED);
    let mut pair = bed.connect_spliced("detached");
    let flow = bed.daemon.wait_state(pair.client_port(), &["detached"]);
    let output = bed.daemon.cli(&["kill", &flow.id.to_string()]);
    assert!(output.status.success(), "{output:?}");
    pair.server.expect_reset(AT_ONCE);
    bed.daemon.wait_reaped();
    let output = bed.daemon.cli(&["kill", &flow.id.to_string()]);
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && says.contains("there is no flow"),
        "{says}"
    );
}
