//! Most of a long reply bypasses the sockets, even on a connection that has carried long ones before.

use longsplice_tests::switch::{Backend, Mode, Switch, content};

/// Length of a reply, in bytes.
const LONG: usize = 10 << 20;
const REPLIES: usize = 20;

#[test]
fn of_a_long_reply_most_goes_past_the_sockets() {
    let switch = Switch::new("long", Mode::Dormant);
    let server = Backend::start(&switch.net.server, switch.target());
    let mut client = switch.connect();
    let path = format!("/length/{LONG}");
    let relayed: Vec<u64> = (0..REPLIES)
        .map(|_| {
            let before = switch.daemon.status().relay_bytes_total;
            assert!(client.get(&path).body == content(LONG));
            // The next request brings the pair back; only then are the bytes counted.
            assert_eq!(client.get("/length/0").status, 200);
            switch.daemon.status().relay_bytes_total - before
        })
        .collect();
    assert_eq!(server.connections(), 1);
    // By then a window that grows with the forwarded bytes would relay megabytes. (Bytes relayed while processors stand
    // still prove nothing.)
    let mut late = relayed[REPLIES - 9..].to_vec();
    late.sort_unstable();
    assert!(late[4] < LONG as u64 / 8, "relayed: {relayed:?}");
}
