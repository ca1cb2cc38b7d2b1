//! `longsplice kill ID`: both ends are reset, in every state of the flow.

use std::time::Duration;

use longsplice_tests::{Bed, Pair, Policy, eventually, nft};

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
    let status = bed.daemon.status();
    assert_eq!(status.health.flows, 0);
    // A relayed connection is no spliced one that ended, and one that ends is not resumed.
    let spliced = u64::from(state != "relay");
    assert_eq!(
        (status.ended("admin"), status.resumed_total),
        (spliced, 0),
        "{status:?}"
    );
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

/// Makes a connection whose client has ended its stream, which the server has acknowledged: no socket here has sent that end.
fn half_closed(bed: &Bed) -> (Pair, u32) {
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(1_000);
    pair.client.finish();
    pair.server.expect_end();
    pair.server.send(1_000);
    pair.client.receive(1_000);
    let flow = bed.daemon.wait_state(pair.client_port(), &["detached"]);
    (pair, flow.id)
}

#[test]
fn behind_the_end_of_one_stream() {
    let bed = Bed::new("end-half", Policy::DETACHED);
    let (mut pair, id) = half_closed(&bed);
    bed.daemon.kill_flow(id).unwrap();
    pair.client.expect_reset(AT_ONCE);
    // It has the end of the client's stream already.
    let reset = || pair.server.stream.take_error().unwrap().is_some();
    eventually("a reset of the server", AT_ONCE, || reset().then_some(()));
    bed.daemon.wait_reaped();
}

/// The programs do not see the resets, and the flow would wait for ever for its sockets to send the end of that stream.
#[test]
fn behind_the_end_of_one_stream_and_a_firewall() {
    let bed = Bed::new("end-mute", Policy::DETACHED);
    let (_pair, id) = half_closed(&bed);
    nft(
        &bed.net.forwarder,
        "table inet mute { chain out { type filter hook output priority 0; tcp flags rst drop; }; }",
    );
    bed.daemon.kill_flow(id).unwrap();
    bed.daemon.wait_reaped();
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
