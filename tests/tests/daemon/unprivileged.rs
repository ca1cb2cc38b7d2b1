//! A daemon without privileges still forwards, as a relay, and logs once the privileges that it lacks.

use std::{net::SocketAddr, os::unix::fs::chown};

use longsplice_lab::{ConnectionSpec, Traffic, TrafficServer, TrafficSpec};
use longsplice_tests::{Config, Daemon, assert_all_ok, veth_line};

const NOBODY: u32 = 65_534;

/// Returns a daemon that has no privileges.
fn unprivileged(config: &Config) -> Daemon {
    let nobody = NOBODY.to_string();
    let daemon = Daemon::of(config).under(&[
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
    daemon
}

/// A section that is out of reach takes no listener with it, unless it must be in force.
#[test]
fn listeners_relay_beside_an_accelerator_that_needs_privileges() {
    let net = veth_line("unprivileged-accelerate", Default::default());
    let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
    let front = SocketAddr::from((net.family().unspecified(), 8080));
    let section = "[accelerate]\ninside = \"f0\"\noutside = \"f1\"";
    let both = |more: &str| {
        Config::new()
            .set(more)
            .set(section)
            .listener(front, server.addr(), "now", "now")
    };
    let mut daemon = unprivileged(&both(""));
    daemon.start(&net.forwarder);
    let spec = TrafficSpec::same(5, ConnectionSpec::both_ways(100_000));
    let to = (net.forwarder_client_addr, 8080).into();
    assert_all_ok(&Traffic::run(&net.client, to, &spec).unwrap());
    let status = daemon.status();
    assert!(status.accelerator.is_none(), "{status:?}");
    let log = daemon.log();
    assert_eq!(log.matches("[accelerate] is not in force").count(), 1, "{log}");
    daemon.reload().unwrap();
    daemon.terminate();
    assert_eq!(daemon.join(), Some(0));
    for config in [both("require_splice = true"), Config::new().set(section)] {
        let exit = unprivileged(&config).start_in_vain(&net.forwarder);
        assert_eq!(exit.code, Some(1), "{}", exit.says);
        assert!(exit.says.contains("CAP_NET_ADMIN"), "{}", exit.says);
    }
}

#[test]
fn a_daemon_without_privileges_relays() {
    let net = veth_line("unprivileged", Default::default());
    let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
    let front = SocketAddr::from((net.family().unspecified(), 8080));
    let config = Config::new().listener(front, server.addr(), "now", "now");
    let mut daemon = unprivileged(&config);
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
