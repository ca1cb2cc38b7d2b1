//! A daemon without privileges still forwards, as a relay, and logs once the privileges that it lacks.

use std::{net::SocketAddr, os::unix::fs::chown};

use longsplice_lab::{ConnectionSpec, Traffic, TrafficServer, TrafficSpec};
use longsplice_tests::{Config, Daemon, assert_all_ok, veth_line};

const NOBODY: u32 = 65_534;

#[test]
fn a_daemon_without_privileges_relays() {
    let net = veth_line("unprivileged", Default::default());
    let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
    let front = SocketAddr::from((net.family().unspecified(), 8080));
    let config = Config::new().listener(front, server.addr(), "now", "now");
    let nobody = NOBODY.to_string();
    let mut daemon = Daemon::of(&config).under(&[
        "setpriv",
        "--reuid",
        &nobody,
        "--regid",
        &nobody,
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ]);
    chown(daemon.dir(), Some(NOBODY), Some(NOBODY)).unwrap();
    daemon.start(&net.forwarder);
    let status = daemon.status();
    assert!(!status.health.splice_available, "{status:?}");
    let why = status.health.why_not.unwrap_or_default();
    assert!(why.contains("CAP_NET_ADMIN"), "{why}");

    let spec = TrafficSpec::same(5, ConnectionSpec::both_ways(4 << 20));
    let to = (net.forwarder_client_addr, 8080).into();
    assert_all_ok(&Traffic::run(&net.client, to, &spec).unwrap());

    let status = daemon.wait_status("all connections to end", |s| s.relayed_total == 5);
    assert_eq!(
        (status.relayed("no_privilege"), status.spliced_total),
        (5, 0),
        "{status:?}"
    );
    let log = daemon.log();
    assert_eq!(log.matches("every connection is relayed").count(), 1, "{log}");
    assert!(log.contains("CAP_BPF"), "{log}");
    assert!(!daemon.pins().exists());
    // A splice command is refused with the reason.
    let refusal = daemon.splice(1).unwrap_err();
    assert!(refusal.contains("cannot splice"), "{refusal}");
    daemon.terminate();
    assert_eq!(daemon.join(), Some(0));
}
