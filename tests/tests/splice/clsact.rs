//! Programs attached as clsact filters, the only way before Linux 6.6: here forced on every kernel.

use std::net::{SocketAddr, TcpListener};

use longsplice_lab::{Line, Namespace};
use longsplice_tests::{Config, Daemon, Pair, soon, veth_line};

const BYTES: u64 = 4 << 20;

/// Rule for the forwarder's interface toward the client.
const RULE: &str = "[[rule]]\nname = \"seen\"\ninterface = \"f0\"\naction = \"count\"\n";

/// Starts a daemon whose programs are filters, with a listener at a port for a target.
fn daemon(net: &Line, port: u16, target: SocketAddr) -> Daemon {
    let front = SocketAddr::from((net.forwarder_client_addr, port));
    let config = Config::new()
        .listener(front, target, "now", "now")
        .set("shutdown = \"end\"");
    let mut daemon = Daemon::of(&config).under(&["env", "LONGSPLICE_ATTACH=clsact"]);
    daemon.start(&net.forwarder);
    daemon
}

fn target(net: &Line) -> TcpListener {
    let addr = SocketAddr::from((net.server_addr, 7000));
    net.server.run(|| TcpListener::bind(addr)).unwrap().unwrap()
}

fn connect(net: &Line, daemon: &Daemon, port: u16, listener: &TcpListener) -> Pair {
    let front = SocketAddr::from((net.forwarder_client_addr, port));
    let mut pair = Pair::connect(&net.client, front, listener);
    daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(BYTES);
    pair
}

/// Returns the number of our filters at a hook of the forwarder's interface toward the client.
fn filters(namespace: &Namespace, hook: &str) -> usize {
    let shown = namespace
        .command("tc")
        .args(["filter", "show", "dev", "f0", hook])
        .output()
        .unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let text = String::from_utf8(shown.stdout).unwrap();
    text.matches("direct-action").count()
}

#[test]
fn a_flow_survives_its_daemon_and_nothing_is_left_at_the_end() {
    let net = veth_line("clsact-kill", Default::default());
    let listener = target(&net);
    let mut daemon = daemon(&net, 8080, listener.local_addr().unwrap());
    assert_eq!(
        ["ingress", "egress"].map(|hook| filters(&net.forwarder, hook)),
        [1, 1]
    );
    let mut pair = connect(&net, &daemon, 8080, &listener);
    daemon.kill();
    pair.exchange(BYTES);
    daemon.start(&net.forwarder);
    assert_eq!(daemon.status().adopted_total, 1);
    // The filter replaces the predecessor's.
    assert_eq!(filters(&net.forwarder, "ingress"), 1);
    pair.exchange(BYTES);
    pair.close();
    daemon.wait_reaped();
    daemon.terminate();
    assert_eq!(daemon.join(), Some(0));
    assert!(!daemon.pins().exists());
    assert_eq!(
        ["ingress", "egress"].map(|hook| filters(&net.forwarder, hook)),
        [0, 0]
    );
}

#[test]
fn two_instances_stand_side_by_side() {
    let net = veth_line("clsact-two", Default::default());
    let listener = target(&net);
    let mut one = daemon(&net, 8080, listener.local_addr().unwrap());
    let other = daemon(&net, 8081, listener.local_addr().unwrap());
    assert_eq!(filters(&net.forwarder, "ingress"), 2);
    let mut ours = connect(&net, &one, 8080, &listener);
    let mut theirs = connect(&net, &other, 8081, &listener);
    ours.exchange(BYTES);
    ours.close();
    one.wait_reaped();
    one.terminate();
    assert_eq!(one.join(), Some(0));
    assert_eq!(filters(&net.forwarder, "ingress"), 1);
    theirs.exchange(BYTES);
    theirs.close();
}

/// Many tools remove the qdisc when they end, with the filters of all others.
#[test]
fn filters_that_another_tool_removes_are_put_back() {
    let net = veth_line("clsact-taken", Default::default());
    let listener = target(&net);
    let daemon = daemon(&net, 8080, listener.local_addr().unwrap());
    let loaded = daemon.load_rules(RULE);
    assert!(loaded.status.success(), "{loaded:?}");
    connect(&net, &daemon, 8080, &listener).close();
    let removal = net
        .forwarder
        .command("tc")
        .args(["qdisc", "del", "dev", "f0", "clsact"])
        .output()
        .unwrap();
    assert!(removal.status.success(), "{removal:?}");
    let says = "taken the programs off this interface";
    soon("the log to tell that they were taken off", || {
        daemon.log().contains(says)
    });
    soon("all filters to be there again", || {
        ["ingress", "egress"].map(|hook| filters(&net.forwarder, hook)) == [2, 1]
    });
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains(says)).unwrap();
    assert!(line.contains("f0"), "{line}");
    let seen = daemon.rules().rules[0].packets;
    let mut pair = connect(&net, &daemon, 8080, &listener);
    pair.exchange(BYTES);
    pair.close();
    daemon.wait_reaped();
    assert!(daemon.rules().rules[0].packets > seen, "the rules look on");
    assert_eq!(daemon.log().matches(says).count(), 1, "{}", daemon.log());
}

#[test]
fn rules_of_a_killed_daemon_end_with_the_next_one() {
    let net = veth_line("clsact-rules", Default::default());
    let listener = target(&net);
    let mut daemon = daemon(&net, 8080, listener.local_addr().unwrap());
    let loaded = daemon.load_rules(RULE);
    assert!(loaded.status.success(), "{loaded:?}");
    assert_eq!(filters(&net.forwarder, "ingress"), 2);
    let mut pair = connect(&net, &daemon, 8080, &listener);
    assert!(daemon.rules().rules[0].packets > 0);
    daemon.kill();
    assert_eq!(
        filters(&net.forwarder, "ingress"),
        2,
        "a filter outlives its process"
    );
    daemon.start(&net.forwarder);
    assert_eq!(filters(&net.forwarder, "ingress"), 1);
    pair.exchange(BYTES);
    pair.close();
    daemon.wait_reaped();
    // A daemon that ends in order removes them.
    let loaded = daemon.load_rules(RULE);
    assert!(loaded.status.success(), "{loaded:?}");
    assert_eq!(filters(&net.forwarder, "ingress"), 2);
    daemon.terminate();
    assert_eq!(daemon.join(), Some(0));
    assert_eq!(filters(&net.forwarder, "ingress"), 0);
}
