//! The routing rule and table exist while the daemon runs, and are removed afterwards.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use longsplice_tests::{Config, Daemon, Pair, Policy};
use rustix::process::{Pid, Signal, kill_process};

use crate::intercept::lab::{Lab, intercepting, ip, lab};

/// Fails unless there are a rule and a table for each family.
fn expect_routing(lab: &Lab) {
    let found = lab.routing();
    assert_eq!(found.len(), 4, "{found:#?}");
}

fn nothing_is_left(lab: &Lab) {
    assert_eq!(lab.routing(), Vec::<String>::new());
}

#[test]
fn an_orderly_end_leaves_nothing() {
    let mut lab = lab("intercept-end", intercepting(Policy::DETACHED));
    nothing_is_left(&lab);
    lab.start();
    expect_routing(&lab);
    // A client in the middle of a query does not keep it.
    let mut asking = UnixStream::connect(lab.daemon.dir().join("admin.sock")).unwrap();
    asking
        .write_all(b"GET /rules HTTP/1.1\r\nhost: longsplice\r\n\r\n")
        .unwrap();
    asking.read_exact(&mut [0; 12]).unwrap();
    lab.daemon.terminate();
    assert_eq!(lab.daemon.join(), Some(0));
    nothing_is_left(&lab);
    assert!(!lab.daemon.pins().exists());
}

/// Another program removes what it does not know, as systemd-networkd does at its start.
#[test]
fn what_another_program_removes_is_set_again() {
    let mut lab = lab("intercept-kept", intercepting(Policy::DETACHED));
    lab.start();
    let before = lab.routing();
    let listener = lab.listen(lab.server_v4());
    for family in ["-4", "-6"] {
        for what in ["rule delete priority 10", "route flush table all proto 76"] {
            let (done, said) = ip(&lab.net.forwarder, &format!("{family} {what}"));
            assert!(done, "{said}");
        }
    }
    longsplice_tests::soon("rules and routes", || lab.routing() == before);
    assert!(lab.daemon.log().contains("another program had removed"));
    let (mut pair, peer) = lab.connect(&listener);
    assert_eq!(peer, lab.forwarder(lab.server_v4()), "intercepted");
    pair.exchange(1000);
}

#[test]
fn a_second_signal_leaves_nothing() {
    let config = intercepting(Policy::ON_DEMAND).set("shutdown_timeout = \"60s\"");
    let mut lab = lab("intercept-hurry", config);
    lab.start();
    let listener = lab.listen(lab.server_v4());
    let (mut pair, _) = lab.connect(&listener);
    pair.exchange(1000);
    lab.daemon.terminate();
    longsplice_tests::soon("the shutdown", || lab.daemon.status().stopping);
    pair.exchange(100_000);
    kill_process(Pid::from_raw(lab.daemon.pid() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(lab.daemon.join(), Some(1));
    nothing_is_left(&lab);
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let config = intercepting(Policy::DETACHED)
        .with("[[rule]]\ninterface = \"f0\"\nto_ports = \"1-9\"\naction = \"pass\"");
    let mut lab = lab("intercept-vain", config);
    // Make the setup fail by disabling IPv6: an existing interface, or a foreign table, would not be refused.
    for sysctl in ["lo", "all"] {
        let path = format!("net/ipv6/conf/{sysctl}/disable_ipv6");
        lab.net.forwarder.sysctl(&path, "1").unwrap();
    }
    let exit = lab.daemon.start_in_vain(&lab.net.forwarder);
    assert_eq!(exit.code, Some(1), "{}", exit.says);
    assert!(exit.says.contains("cannot set up the routing"), "{}", exit.says);
    nothing_is_left(&lab);
}

#[test]
fn without_privileges_it_says_what_it_needs() {
    let mut lab = lab("intercept-nocaps", intercepting(Policy::DETACHED));
    let unprivileged = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    lab.daemon = Daemon::of(&intercepting(Policy::DETACHED)).under(&unprivileged);
    let exit = lab.daemon.start_in_vain(&lab.net.forwarder);
    assert_eq!(exit.code, Some(1), "{}", exit.says);
    assert!(
        exit.says.contains("interception needs CAP_NET_ADMIN"),
        "{}",
        exit.says
    );
    nothing_is_left(&lab);
}

/// The rules of a killed daemon vanish with it: new connections go their own way at once. Its unused route is removed
/// by the next daemon, whatever that one intercepts.
#[test]
fn what_a_killed_daemon_leaves_is_harmless_and_removed() {
    let mut lab = lab("intercept-kill", intercepting(Policy::DETACHED));
    lab.start();
    let listener = lab.listen(lab.server_v4());
    let spliced: Vec<Pair> = (0..3).map(|_| lab.connect(&listener).0).collect();
    for pair in &spliced {
        lab.daemon.wait_state(pair.client_port(), &["detached"]);
    }
    lab.daemon.kill();
    lab.expect_direct(&listener).close();
    expect_routing(&lab);
    // The restarted daemon sets up the routing exactly once.
    lab.start();
    expect_routing(&lab);
    let (mut new, seen) = lab.connect(&listener);
    assert_eq!(seen, lab.forwarder(lab.server_v4()));
    new.exchange(100_000);
    assert_eq!(lab.daemon.status().adopted_total, 3);
    lab.daemon.kill();
    lab.daemon.reconfigure(&Config::new().listener(
        ([0, 0, 0, 0], 8080).into(),
        lab.server_v4(),
        "auto",
        "now",
    ));
    lab.start();
    nothing_is_left(&lab);
    for mut pair in spliced {
        pair.exchange(1 << 20);
        pair.close();
    }
}
