//! A listener that intercepts is gone after a reload: its open connections go on, and its routes go with the last one.

use std::net::SocketAddr;

use longsplice_tests::{Config, Pair, Policy, soon};

use crate::intercept::lab::{Lab, TABLE, intercepting, lab};

const BYTES: u64 = 1 << 20;

/// Returns a configuration that intercepts nothing, at the port of the one before.
fn plain(lab: &Lab) -> Config {
    let front = SocketAddr::from(([0, 0, 0, 0], 8080));
    Config::new().listener(front, lab.server_v4(), "never", "now")
}

/// Opens a relayed connection of each family.
fn relayed(lab: &Lab) -> Vec<Pair> {
    let one = |server| {
        let (mut pair, seen) = lab.connect(&lab.listen(server));
        assert_eq!(seen, lab.forwarder(server));
        pair.exchange(BYTES);
        pair
    };
    lab.servers().map(one).into()
}

/// Returns the names of the rules that follow connections of earlier configurations.
fn earlier(lab: &Lab) -> Vec<String> {
    let names = lab.daemon.rules().rules.into_iter().map(|info| info.rule.name);
    names.filter(|name| name.starts_with("earlier")).collect()
}

#[test]
fn open_connections_outlive_the_interception() {
    let mut lab = lab("intercept-reload", intercepting(Policy::ON_DEMAND));
    lab.start();
    let routing = lab.routing();
    let mut pairs = relayed(&lab);
    // Two reloads: the second one removes no listener that intercepts.
    for _ in 0..2 {
        lab.daemon.change(&plain(&lab)).unwrap();
        pairs.iter_mut().for_each(|pair| pair.exchange(BYTES));
        assert_eq!(lab.routing(), routing);
        assert_eq!(earlier(&lab), ["earlier 1: f0 to listener 0.0.0.0:8080"]);
    }
    lab.expect_direct(&lab.listen(lab.server_v4())).close();
    pairs.iter_mut().for_each(Pair::close);
    soon("the routes to go", || lab.routing().is_empty());
    assert_eq!(earlier(&lab), Vec::<String>::new());
}

#[test]
fn a_listener_that_intercepts_on_another_interface_keeps_its_connections() {
    let mut lab = lab("intercept-moved", intercepting(Policy::ON_DEMAND));
    lab.start();
    let mut pairs = relayed(&lab);
    let table = TABLE.replace("f0", "f1");
    lab.daemon
        .change(&Config::new().intercepting(&table, "never", "now"))
        .unwrap();
    pairs.iter_mut().for_each(|pair| pair.exchange(BYTES));
    pairs.iter_mut().for_each(Pair::close);
    let names = |device| {
        let routing = lab.routing();
        routing.iter().filter(|line| line.contains(device)).count()
    };
    soon("the rules of the first interface to go", || names("iif f0") == 0);
    assert_eq!(names("iif f1"), 2);
}

/// Without open connections nothing stays behind the reload.
#[test]
fn an_idle_interception_ends_with_the_reload() {
    let mut lab = lab("intercept-idle", intercepting(Policy::ON_DEMAND));
    lab.start();
    relayed(&lab).iter_mut().for_each(Pair::close);
    lab.daemon.wait_reaped();
    lab.daemon.change(&plain(&lab)).unwrap();
    assert_eq!(lab.routing(), Vec::<String>::new());
    assert_eq!(earlier(&lab), Vec::<String>::new());
}

/// The predecessor's connections need the routes that its successor does not need any more.
#[test]
fn a_reload_of_a_successor_leaves_its_predecessor_the_routes() {
    let mut lab = lab("intercept-both", intercepting(Policy::ON_DEMAND));
    lab.start();
    let mut pairs = relayed(&lab);
    lab.daemon.replace(&lab.net.forwarder);
    lab.daemon.change(&plain(&lab)).unwrap();
    pairs.iter_mut().for_each(|pair| pair.exchange(BYTES));
    pairs.iter_mut().for_each(Pair::close);
    assert_eq!(lab.daemon.join_replaced(), [Some(0)]);
    soon("the routes to go", || lab.routing().is_empty());
}
