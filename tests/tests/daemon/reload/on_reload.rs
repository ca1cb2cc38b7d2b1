//! Fate of open connections when the configuration that chose their way changes.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use longsplice_tests::{Bed, Config, Pair, Policy, soon};

const AT_ONCE: Duration = Duration::from_secs(3);
const STATES: [(Policy<'_>, &str, &str); 4] = [
    (Policy::ON_DEMAND, "relay", ""),
    (Policy::DORMANT, "dormant", ""),
    (Policy::DETACHED, "detached", ""),
    // The handler of this one waits for the flow.
    (Policy::DETACHED, "detached", "unsplice = \"idle=1h\""),
];

/// Returns a configuration with a listener at the bed's front for this target.
fn config(bed: &Bed, policy: Policy<'_>, target: SocketAddr, more: &str) -> Config {
    let listen = SocketAddr::from((bed.net.family().unspecified(), bed.front().port()));
    Config::new()
        .listener(listen, target, policy.splice, policy.detach)
        .with(more)
}

/// Starts another server on the server's host.
fn elsewhere(bed: &Bed) -> (SocketAddr, TcpListener) {
    let address = SocketAddr::from((bed.net.server_addr, 7001));
    let listener = bed
        .net
        .server
        .run(|| TcpListener::bind(address))
        .unwrap()
        .unwrap();
    (address, listener)
}

fn assert_reset(pair: &mut Pair) {
    pair.client.expect_reset(AT_ONCE);
    pair.server.expect_reset(AT_ONCE);
}

/// Starts a bed with this `on_reload`, and a connection in this state.
fn begin(
    name: &str,
    on_reload: &str,
    (policy, state, more): (Policy<'_>, &str, &str),
) -> (Bed, Pair, String) {
    let more = format!("on_reload = \"{on_reload}\"\n{more}");
    let bed = Bed::with(name, Default::default(), policy, |c| c.with(&more));
    let mut pair = bed.connect_spliced(state);
    pair.exchange(100_000);
    (bed, pair, more)
}

#[test]
fn keep_touches_nothing() {
    for of in STATES {
        let (bed, mut pair, more) = begin("change-keep", "keep", of);
        let (other, _listener) = elsewhere(&bed);
        let said = bed.daemon.change(&config(&bed, of.0, other, &more)).unwrap();
        assert!(!said.contains("connection"), "{said}");
        pair.exchange(100_000);
        pair.close();
    }
}

#[test]
fn reset_ends_what_goes_to_a_server_that_is_gone() {
    for of in STATES {
        let (bed, mut pair, more) = begin("change-reset", "reset", of);
        let (other, listener) = elsewhere(&bed);
        // This setting had no part in the choice.
        let same = format!("{more}\nmax_connections = 100");
        let said = bed
            .daemon
            .change(&config(&bed, of.0, bed.target(), &same))
            .unwrap();
        assert!(!said.contains("connection"), "{}: {said}", of.1);
        pair.exchange(100_000);
        let said = bed.daemon.change(&config(&bed, of.0, other, &more)).unwrap();
        assert!(said.contains("1 open connection ends"), "{}: {said}", of.1);
        assert_reset(&mut pair);
        let mut new = Pair::connect(&bed.net.client, bed.front(), &listener);
        new.exchange(1000);
        new.close();
        bed.daemon.wait_reaped();
    }
}

#[test]
fn recheck_ends_what_would_go_elsewhere_and_only_that() {
    for of in STATES {
        let (bed, mut pair, more) = begin("change-recheck", "recheck", of);
        let target = bed.target();
        let (other, _listener) = elsewhere(&bed);
        let upstreams = format!(
            "[[upstream]]\nname = \"a\"\nservers = [\"{target}\"]\n[[upstream]]\nname = \"b\"\nservers = [\"{other}\"]"
        );
        // First a listener of the same name gives the same way; then a route leads elsewhere.
        let route = |client: &str| {
            format!("{more}\n[[listener.route]]\nname = \"there\"\nclient = \"{client}\"\nupstream = \"b\"")
        };
        let with = |client: &str| config(&bed, of.0, target, &route(client)).set(&upstreams);
        let said = bed.daemon.change(&with("192.0.2.0/24")).unwrap();
        assert!(!said.contains("connection"), "{}: {said}", of.1);
        pair.exchange(100_000);
        let client = pair.client.stream.local_addr().unwrap().ip();
        let said = bed.daemon.change(&with(&client.to_string())).unwrap();
        assert!(said.contains("1 open connection ends"), "{}: {said}", of.1);
        assert_reset(&mut pair);
    }
}

#[test]
fn a_listener_that_is_gone_has_its_last_word() {
    for of in STATES {
        for (on_reload, ends) in [("keep", false), ("reset", true), ("recheck", true)] {
            let (bed, mut pair, _) = begin("change-gone", on_reload, of);
            let any = bed.net.family().unspecified();
            let elsewhere = Config::new().listener((any, 8099).into(), bed.target(), "never", "never");
            bed.daemon.change(&elsewhere).unwrap();
            match ends {
                true => assert_reset(&mut pair),
                false => {
                    pair.exchange(100_000);
                    pair.close();
                }
            }
            let front = bed.front();
            soon("the listening socket to be closed", || {
                bed.net
                    .client
                    .run(|| std::net::TcpStream::connect(front))
                    .unwrap()
                    .is_err()
            });
        }
    }
}

#[test]
fn many_flows_without_a_handler_end_together() {
    const FLOWS: usize = 200;
    let (bed, first, more) = begin("change-many", "reset", STATES[2]);
    let mut pairs = vec![first];
    pairs.resize_with(FLOWS, || bed.connect());
    soon("all to be detached", || {
        let flows = bed.daemon.flows();
        flows.len() == FLOWS && flows.iter().all(|flow| flow.state == "detached")
    });
    let (other, _listener) = elsewhere(&bed);
    let said = bed
        .daemon
        .change(&config(&bed, Policy::DETACHED, other, &more))
        .unwrap();
    assert!(said.contains(&format!("{FLOWS} open connections end")), "{said}");
    pairs.iter_mut().for_each(assert_reset);
    bed.daemon.wait_reaped();
    let status = bed.daemon.status();
    assert_eq!(status.ended("admin"), FLOWS as u64, "{status:?}");
}
