//! A daemon that intercepts is replaced: no connection goes past the listener, and none stands still.

use longsplice_tests::{Load, Policy, soon};

use crate::intercept::lab::{intercepting, lab};

#[test]
fn a_successor_has_the_routes_when_its_predecessor_has_ended() {
    let mut lab = lab("intercept-next", intercepting(Policy::ON_DEMAND));
    lab.start();
    let listener = lab.listen(lab.server_v4());
    let routing = lab.routing();
    for _ in 0..2 {
        let (mut old, peer) = lab.connect(&listener);
        assert_eq!(peer, lab.forwarder(lab.server_v4()));
        lab.daemon.replace(&lab.net.forwarder);
        old.exchange(1 << 20);
        let (mut new, peer) = lab.connect(&listener);
        assert_eq!(peer, lab.forwarder(lab.server_v4()));
        old.close();
        assert_eq!(lab.daemon.join_replaced(), [Some(0)]);
        assert_eq!(lab.routing(), routing);
        new.exchange(1 << 20);
        let (mut next, peer) = lab.connect(&listener);
        assert_eq!(peer, lab.forwarder(lab.server_v4()));
        next.exchange(1 << 20);
        next.close();
        new.close();
    }
    lab.daemon.terminate();
    assert_eq!(lab.daemon.join(), Some(0));
    assert_eq!(lab.routing(), Vec::<String>::new());
}

/// The predecessor still relays when its successor is told to stop: what it has needs the routes until its own end.
#[test]
fn a_successor_that_stops_leaves_its_predecessor_the_routes() {
    let mut lab = lab("intercept-stops", intercepting(Policy::ON_DEMAND));
    lab.start();
    let routing = lab.routing();
    let (mut pair, peer) = lab.connect(&lab.listen(lab.server_v4()));
    assert_eq!(peer, lab.forwarder(lab.server_v4()));
    lab.daemon.replace(&lab.net.forwarder);
    lab.daemon.terminate();
    assert_eq!(lab.daemon.join(), Some(0));
    assert_eq!(lab.routing(), routing);
    pair.exchange(1 << 20);
    pair.close();
    assert_eq!(lab.daemon.join_replaced(), [Some(0)]);
    assert_eq!(lab.routing(), Vec::<String>::new());
}

/// Connections under load meet no moment without a route: each is served.
#[test]
fn replacements_under_load_serve_each_connection() {
    let mut lab = lab("intercept-load", intercepting(Policy::DETACHED));
    lab.start();
    let server = lab.server_v4();
    let load = Load::start(&lab.net.client, server, lab.listen(server), 4);
    for _ in 0..2 {
        let before = load.served();
        soon("the load to be served", || load.served() > before + 30);
        lab.daemon.replace(&lab.net.forwarder);
        assert_eq!(lab.daemon.join_replaced(), [Some(0)]);
    }
    let before = load.served();
    soon("the load to be served", || load.served() > before + 30);
    let (served, errors) = load.end();
    assert!(errors.is_empty(), "of {served} connections: {errors:?}");
}

/// A successor that fails while it sets its routes takes none of its predecessor's away.
#[test]
fn a_successor_that_fails_leaves_the_routes() {
    let mut lab = lab("intercept-fails", intercepting(Policy::DETACHED));
    lab.start();
    let listener = lab.listen(lab.server_v4());
    // The kernel removes the route of IPv6, and refuses another one.
    lab.net
        .forwarder
        .sysctl("net/ipv6/conf/lo/disable_ipv6", "1")
        .unwrap();
    let routing = lab.routing();
    assert!(routing.iter().any(|line| line.starts_with("-4 ")), "{routing:?}");
    let exit = lab.daemon.replace_in_vain(&lab.net.forwarder, |_| {});
    assert_eq!(exit.code, Some(1), "{}", exit.says);
    assert!(exit.says.contains("cannot set up the routing"), "{}", exit.says);
    assert_eq!(lab.routing(), routing);
    let (mut pair, peer) = lab.connect(&listener);
    assert_eq!(peer, lab.forwarder(lab.server_v4()));
    pair.exchange(1 << 20);
    pair.close();
}
