//! Connections outside the interception are left alone.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use longsplice_tests::{Pair, Policy};

use crate::intercept::lab::{intercepting, lab, peer};

/// Connections that existed before go on through the start and the end of the daemon, byte for byte.
#[test]
fn established_connections_of_others_go_on() {
    let mut lab = lab("intercept-others", intercepting(Policy::DETACHED));
    let listeners = lab.servers().map(|server| lab.listen(server));
    let mut before: Vec<Pair> = listeners
        .iter()
        .flat_map(|l| (0..3).map(|_| lab.connect(l).0).collect::<Vec<_>>())
        .collect();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy: Vec<_> = before
            .iter_mut()
            .map(|pair| {
                let over = &over;
                scope.spawn(move || {
                    let mut rounds = 0;
                    while !over.load(Ordering::Relaxed) {
                        pair.exchange(100_000);
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        lab.start();
        let (mut new, seen) = lab.connect(&listeners[0]);
        assert_eq!(
            seen,
            lab.forwarder(lab.server_v4()),
            "a new one is intercepted meanwhile"
        );
        new.exchange(1 << 20);
        lab.daemon.wait_state(new.client_port(), &["detached"]);
        let foreign = lab.daemon.rule_verdict("foreign");
        longsplice_tests::soon("some more of theirs", || {
            lab.daemon.rule_verdict("foreign") > foreign + 100
        });
        new.close();
        lab.daemon.wait_reaped();
        lab.daemon.terminate();
        assert_eq!(lab.daemon.join(), Some(0));
        over.store(true, Ordering::Relaxed);
        for one in busy {
            assert!(one.join().unwrap() > 0);
        }
    });
    for pair in &mut before {
        assert_eq!(peer(&pair.server), pair.client.stream.local_addr().unwrap().ip());
        pair.exchange(1 << 20);
        pair.close();
    }
}

#[test]
fn the_forwarder_s_own_addresses_are_its_own() {
    let mut lab = lab(
        "intercept-own",
        longsplice_tests::Config::new().intercepting(r#"interface = "f0""#, "now", "now"),
    );
    let own: [std::net::SocketAddr; 2] = [
        (lab.net.forwarder_client_addr, 22).into(),
        "[2001:db8:1::2]:22".parse().unwrap(),
    ];
    let listeners = own.map(|at| lab.net.forwarder.run(|| TcpListener::bind(at)).unwrap().unwrap());
    lab.start();
    for listener in &listeners {
        let (mut pair, seen) = lab.connect(listener);
        assert_eq!(seen, pair.client.stream.local_addr().unwrap().ip());
        pair.exchange(1 << 20);
        pair.close();
    }
    assert_eq!(lab.daemon.status().accepted_total, 0);
    assert!(lab.daemon.rule_verdict("own_address") >= 2);
}

#[test]
fn other_ports_and_networks_pass() {
    let mut lab = lab("intercept-pass", intercepting(Policy::DETACHED));
    lab.start();
    let other = lab.listen((lab.net.server_addr, 7010).into());
    lab.expect_direct(&other).close();
    assert_eq!(lab.daemon.status().accepted_total, 0);
}

/// A `pass` before the listener's rules takes a network out of the interception.
#[test]
fn a_rule_of_the_user_comes_first() {
    let config = intercepting(Policy::DETACHED)
        .with("[[rule]]\nname = \"not these\"\nto_ports = \"7001\"\naction = \"pass\"");
    let mut lab = lab("intercept-first", config);
    lab.start();
    let [through, past] = [7000, 7001].map(|port| lab.listen((lab.net.server_addr, port).into()));
    lab.expect_direct(&past).close();
    let (mut pair, seen) = lab.connect(&through);
    assert_eq!(seen, lab.forwarder(lab.server_v4()));
    pair.exchange(10_000);
    pair.close();
    let rules = lab.daemon.rules();
    assert_eq!(
        (rules.rules[0].rule.name.as_str(), rules.rules[0].packets),
        ("not these", 1)
    );
}
