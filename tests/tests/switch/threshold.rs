//! Length from which replies are spliced when the configuration leaves it to the daemon; interfaces without splices.

use longsplice_tests::switch::{Backend, Mode, More, Switch, content};

/// Length above any threshold.
const LONG: usize = 6 << 20;

#[test]
fn the_daemon_finds_it_and_counts_only_the_splices_of_others() {
    let switch = Switch::new("threshold", Mode::Auto);
    let server = Backend::start(&switch.net.server, switch.target());
    let log = switch.daemon.log();
    let measured = log.contains("a splice pays for replies");
    // A build beside this test may use up the processors.
    assert!(measured || log.contains("the machine is too busy"), "{log}");
    let status = switch.daemon.status();
    let from = status.listeners[0].splice_min.unwrap();
    assert!(((16 + 64) << 10..=2 << 20).contains(&from), "{from}");
    assert_eq!((status.spliced_total, status.resumed_total), (0, 0), "{log}");
    assert!(status.unsplices_total.is_empty(), "{status:?}");

    let mut client = switch.connect();
    for length in [10, 8_000, 60_000] {
        assert!(client.get(&format!("/length/{length}")).body == content(length));
    }
    assert_eq!(switch.daemon.status().spliced_total, 0, "those were short");

    client.send(format!("GET /halves/{LONG} HTTP/1.1\r\nHost: switch\r\n\r\n"));
    client.read_until(b"\r\n\r\n").unwrap();
    let mut body = client.read_exactly(LONG / 2).unwrap();
    switch.daemon.wait_state(client.port(), &["dormant", "detached"]);
    server.go_on();
    body.extend(client.read_exactly(LONG - body.len()).unwrap());
    assert!(body == content(LONG));
    switch.assert_mode();
}

#[test]
fn an_interface_that_is_not_there_is_named_and_the_machine_is_not_blamed() {
    let more = More {
        head: "interfaces = [\"later0\"]",
        ..More::default()
    };
    let switch = Switch::with("not-there", Mode::Auto, more);
    let named = || {
        let log = switch.daemon.log();
        log.matches("there is no interface `later0`").count()
    };
    let log = switch.daemon.log();
    assert_eq!(named(), 1, "{log}");
    assert!(log.contains("the loopback is not among"), "{log}");
    assert!(!log.contains("the machine is too busy"), "{log}");
    switch.change(0, more);
    assert_eq!(named(), 2, "once more at a reload");
    let add = switch.net.forwarder.command("ip");
    let added = add
        .args(["link", "add", "later0", "type", "veth", "peer", "name", "later1"])
        .output()
        .unwrap();
    assert!(added.status.success(), "{added:?}");
    switch.change(0, more);
    assert_eq!(named(), 2, "it is there now");
}

#[test]
fn replies_that_cannot_be_spliced_are_counted_with_the_reason() {
    let more = More {
        head: "interfaces = [\"lo\"]",
        ..More::default()
    };
    let switch = Switch::with("counted", Mode::Dormant, more);
    let _server = Backend::start(&switch.net.server, switch.target());
    let mut client = switch.connect();
    for replies in 1..=2 {
        assert!(client.get(&format!("/length/{LONG}")).body == content(LONG));
        let status = switch
            .daemon
            .wait_status("the reply to be counted", |s| s.relayed("interface") == replies);
        assert_eq!(
            (status.spliced_total, status.relayed_total),
            (0, replies),
            "{status:?}"
        );
    }
}
