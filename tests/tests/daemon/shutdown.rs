//! The daemon ends in order, and daemons leave each other alone.

use std::{
    fs,
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use longsplice_lab::Namespace;
use longsplice_tests::{Bed, Config, Daemon, Pair, Policy, SOON, addr, eventually, family, soon, veth_line};
use serde_json::Value;
use socket2::SockRef;

const BYTES: u64 = 2 << 20;
const RESET_SOON: Duration = Duration::from_secs(5);

/// Starts a listener at 8080 that detaches, one at 8081 that parks, one at 8082 that relays.
fn bed(name: &str, more: impl FnOnce(Config) -> Config) -> Bed {
    Bed::with(name, Default::default(), Policy::DETACHED, |config| {
        let target = (addr("198.18.2.1"), 7000).into();
        let front = |port| (family().unspecified(), port).into();
        let config = config.listener(front(8081), target, "now", "never").listener(
            front(8082),
            target,
            "never",
            "never",
        );
        more(config)
    })
}

fn connect(bed: &Bed, port: u16, state: &str) -> Pair {
    let front = (bed.net.forwarder_client_addr, port).into();
    let mut pair = Pair::connect(&bed.net.client, front, &bed.listener);
    bed.daemon.wait_state(pair.client_port(), &[state]);
    pair.exchange(BYTES);
    pair
}

/// Returns whether a socket listens on the forwarder. (A trial would be a connection.)
fn listens(bed: &Bed) -> bool {
    let sockets = bed.net.forwarder.command("ss").arg("-Htln").output().unwrap();
    !sockets.stdout.is_empty()
}

#[test]
fn spliced_flows_run_on_after_sigterm_and_are_adopted() {
    let mut bed = bed("term-keep", |c| c.set("shutdown_timeout = \"1s\""));
    let mut detached = connect(&bed, 8080, "detached");
    let mut dormant = connect(&bed, 8081, "dormant");
    let mut relayed = connect(&bed, 8082, "relay");
    bed.daemon.terminate();
    soon("the listeners to be closed", || !listens(&bed));
    let new = bed.net.client.run(|| TcpStream::connect(bed.front())).unwrap();
    assert_eq!(new.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(bed.daemon.join(), Some(0), "{}", bed.daemon.log());
    relayed.client.expect_reset(RESET_SOON);
    relayed.server.expect_reset(RESET_SOON);
    detached.exchange(BYTES);
    dormant.exchange(BYTES);
    bed.daemon.start(&bed.net.forwarder);
    let status = bed.daemon.status();
    assert_eq!(status.adopted_total, 2, "{status:?}");
    detached.exchange(BYTES);
    dormant.exchange(BYTES);
    detached.close();
    dormant.close();
    bed.daemon.wait_reaped();
    let mut new = connect(&bed, 8080, "detached");
    new.close();
    bed.daemon.wait_reaped();
    // Without a flow, nothing needs to stay.
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    assert!(!bed.daemon.pins().exists());
}

#[test]
fn spliced_flows_are_ended_where_that_is_the_policy() {
    let mut bed = bed("term-end", |c| {
        c.set("shutdown = \"end\"\nshutdown_timeout = \"1s\"")
    });
    let mut pairs = [connect(&bed, 8080, "detached"), connect(&bed, 8081, "dormant")];
    assert!(bed.daemon.pins().exists());
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    assert!(!bed.daemon.pins().exists());
    for pair in &mut pairs {
        // Neither end has sent anything since.
        pair.client.expect_reset(RESET_SOON);
        pair.server.expect_reset(RESET_SOON);
    }
    assert_eq!(loopback_forwarding(&bed), ["0", "0"], "as it was before");
}

/// A flow takes a slot for the sockets that reset its ends.
#[test]
fn more_spliced_flows_than_slots_are_ended() {
    let mut bed = bed("term-slots", |c| c.set("shutdown = \"end\"\nmax_dormant = 2"));
    let mut pairs: Vec<Pair> = (0..7).map(|_| connect(&bed, 8080, "detached")).collect();
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    for pair in &mut pairs {
        pair.client.expect_reset(RESET_SOON);
        pair.server.expect_reset(RESET_SOON);
    }
}

/// A start that fails has served nothing: it is no end of its instance.
#[test]
fn a_start_that_fails_keeps_what_a_killed_daemon_left_whatever_the_policy() {
    let mut bed = bed("term-failed", |c| c.set("shutdown = \"end\""));
    let mut pairs = [connect(&bed, 8080, "detached"), connect(&bed, 8081, "dormant")];
    bed.daemon.kill();
    let file = bed.daemon.dir().join("longsplice.toml");
    let good = fs::read_to_string(&file).unwrap();
    let log = "[access_log]\npath = \"missing/access.log\"\n";
    fs::write(&file, format!("{good}{log}")).unwrap();
    let exit = bed.daemon.start_in_vain(&bed.net.forwarder);
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.says.contains("cannot open the access log"), "{exit:?}");
    for pair in &mut pairs {
        pair.exchange(BYTES);
    }
    fs::write(&file, good).unwrap();
    bed.daemon.start(&bed.net.forwarder);
    assert_eq!(bed.daemon.status().adopted_total, 2);
    for pair in &mut pairs {
        pair.exchange(BYTES);
        pair.close();
    }
}

#[test]
fn a_second_signal_ends_the_wait_and_follows_the_policy() {
    for policy in ["end", "keep"] {
        let mut bed = bed("term-twice", |c| {
            let shutdown = format!("shutdown = \"{policy}\"\nshutdown_timeout = \"1h\"");
            c.set(&shutdown)
        });
        let mut pairs = [connect(&bed, 8080, "detached"), connect(&bed, 8081, "dormant")];
        let mut relayed = connect(&bed, 8082, "relay");
        bed.daemon.terminate();
        soon("the listeners to be closed", || !listens(&bed));
        bed.daemon.terminate();
        assert_eq!(bed.daemon.join(), Some(1), "{}", bed.daemon.log());
        relayed.client.expect_reset(RESET_SOON);
        relayed.server.expect_reset(RESET_SOON);
        assert_eq!(bed.daemon.pins().exists(), policy == "keep");
        for pair in &mut pairs {
            if policy == "keep" {
                pair.exchange(BYTES);
                continue;
            }
            pair.client.expect_reset(RESET_SOON);
            pair.server.expect_reset(RESET_SOON);
        }
    }
}

/// Returns the sysctl of each family.
fn loopback_forwarding(bed: &Bed) -> [String; 2] {
    ["ipv4", "ipv6"].map(|family| {
        let path = format!("/proc/sys/net/{family}/conf/lo/forwarding");
        let value = bed.net.forwarder.run(|| fs::read_to_string(path)).unwrap();
        value.unwrap().trim().to_owned()
    })
}

#[test]
fn the_last_instance_of_a_namespace_switches_forwarding_off() {
    let mut bed = bed("term-last", |c| c.set("shutdown = \"end\""));
    let listen = SocketAddr::from((family().unspecified(), 8090));
    let config = Config::new()
        .listener(listen, bed.target(), "now", "now")
        .set("shutdown = \"end\"");
    let mut second = Daemon::of(&config);
    second.start(&bed.net.forwarder);
    assert_eq!(loopback_forwarding(&bed), ["1", "1"]);
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    assert_eq!(loopback_forwarding(&bed), ["1", "1"], "the second one needs it");
    second.terminate();
    assert_eq!(second.join(), Some(0));
    assert_eq!(loopback_forwarding(&bed), ["0", "0"], "as it was before");
}

#[test]
fn a_flag_goes_over_the_file() {
    let net = veth_line("term-flag", Default::default());
    let to = SocketAddr::from((net.server_addr, 7000)).to_string();
    let listen = SocketAddr::from((family().unspecified(), 8080)).to_string();
    let mut daemon = Daemon::new(&["forward", "--listen", &listen, "--to", &to, "--splice", "now"]);
    daemon.add_args(&["--on-shutdown", "end"]);
    let target = (net.server_addr, 7000);
    let listener = net
        .server
        .run(|| std::net::TcpListener::bind(target))
        .unwrap()
        .unwrap();
    daemon.start(&net.forwarder);
    let front = (net.forwarder_client_addr, 8080).into();
    let mut pair = Pair::connect(&net.client, front, &listener);
    // `detach` is one second by default.
    daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(BYTES);
    daemon.terminate();
    assert_eq!(daemon.join(), Some(0));
    assert!(!daemon.pins().exists());
}

#[test]
fn two_instances_in_two_namespaces_do_not_disturb_each_other() {
    let mut one = bed("two-one", |c| c.set("shutdown = \"end\""));
    let mut other = bed("two-other", |c| c);
    let (mut ours, mut theirs) = (connect(&one, 8080, "detached"), connect(&other, 8080, "detached"));
    thread::scope(|scope| {
        scope.spawn(|| ours.exchange(8 * BYTES));
        theirs.exchange(8 * BYTES);
    });
    assert_eq!(one.daemon.flows().len(), 1);
    assert_eq!(other.daemon.flows().len(), 1);
    one.daemon.terminate();
    assert_eq!(one.daemon.join(), Some(0));
    theirs.exchange(BYTES);
    other.daemon.kill();
    theirs.exchange(BYTES);
    one.daemon.start(&one.net.forwarder);
    assert_eq!(one.daemon.status().adopted_total, 0);
    other.daemon.start(&other.net.forwarder);
    assert_eq!(other.daemon.status().adopted_total, 1);
    theirs.exchange(BYTES);
    theirs.close();
}

/// Starts a second daemon with the name of the first.
fn second(of: &Daemon, namespace: &Namespace, more: &[&str]) -> longsplice_tests::Exit {
    let to = SocketAddr::from((addr("198.18.2.1"), 7000)).to_string();
    let mut second = Daemon::new(&["forward", "--listen", "8090", "--to", &to]);
    second.add_args(more);
    second.call_itself(of.instance());
    second.start_in_vain(namespace)
}

#[test]
fn a_second_daemon_of_an_instance_is_refused() {
    let bed = bed("two-same", |c| c);
    let mut pair = connect(&bed, 8080, "detached");
    let exit = second(&bed.daemon, &bed.net.forwarder, &[]);
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.says.contains(bed.daemon.instance()), "{exit:?}");
    assert!(exit.says.contains("run"), "{exit:?}");
    pair.exchange(BYTES);
    assert_eq!(bed.daemon.flows().len(), 1);
    pair.close();
}

#[test]
fn pins_of_another_namespace_are_left_alone() {
    let mut bed = bed("two-ns", |c| c);
    let mut pair = connect(&bed, 8080, "detached");
    bed.daemon.kill();
    let exit = second(&bed.daemon, &bed.net.server, &["--require-splice"]);
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.says.contains("namespace"), "{exit:?}");
    pair.exchange(BYTES);
    bed.daemon.start(&bed.net.forwarder);
    assert_eq!(bed.daemon.status().adopted_total, 1);
    pair.exchange(BYTES);
    pair.close();
}

/// A pair that came back has ended in order, and its last bytes are still in a socket whose numbers are mapped.
#[test]
fn what_a_socket_still_delivers_at_the_end_of_the_daemon_arrives() {
    const TAIL: u64 = 50_000;
    let mut bed = bed("term-tail", |c| c);
    let mut pair = connect(&bed, 8081, "dormant");
    let port = pair.client_port();
    bed.daemon.take_back(port, "dormant");
    // Its window is closed before all is there, as the client reads nothing.
    SockRef::from(&pair.client.stream)
        .set_recv_buffer_size(4096)
        .unwrap();
    pair.client.finish();
    pair.server.expect_end();
    pair.server.send(TAIL);
    pair.server.finish();
    soon("the end of the connection for the daemon", || {
        bed.daemon.flows().is_empty()
    });
    let arrived = pair.client.arrived();
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0), "{}", bed.daemon.log());
    assert!(arrived < BYTES + TAIL, "a tail is left");
    pair.client.receive(TAIL);
    pair.client.expect_end();
}

/// Starts a connection that its handler leaves with a trap at a shutdown, and one that keeps the daemon from its end.
fn with_a_trap(name: &str, policy: Policy<'_>, state: &str) -> (Bed, Pair, Pair) {
    let bed = Bed::with(name, Default::default(), policy, |c| {
        let relaying = (family().unspecified(), 8082).into();
        let target = (addr("198.18.2.1"), 7000).into();
        c.with("unsplice = \"data=client\"")
            .listener(relaying, target, "never", "never")
            .set("[access_log]\npath = \"access.log\"")
    });
    let pair = bed.connect_spliced(state);
    let relayed = connect(&bed, 8082, "relay");
    (bed, pair, relayed)
}

/// Waits until the handler of the first daemon has left a connection.
fn wait_left(bed: &Bed) {
    let log = bed.daemon.dir().join("log-1");
    let is_left = || {
        let log = fs::read_to_string(&log).unwrap();
        log.contains("detached: it runs on in the kernel")
    };
    soon("its handler to leave it", is_left);
}

/// Waits until the handler of the first daemon has left a connection, and sends what meets its trap.
fn meet_the_trap_once_it_is_left(bed: &Bed, pair: &mut Pair) {
    wait_left(bed);
    pair.client.send(10);
    pair.server.receive(10);
}

/// A trap is met while the daemon waits for other connections: the flow must not end with those.
#[test]
fn a_trap_that_is_met_in_a_shutdown_costs_no_spliced_flow() {
    for (policy, state) in [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")] {
        let (mut bed, mut pair, mut relayed) = with_a_trap("term-trap", policy, state);
        bed.daemon.terminate();
        meet_the_trap_once_it_is_left(&bed, &mut pair);
        relayed.close();
        assert_eq!(bed.daemon.join(), Some(0), "{}", bed.daemon.log());
        bed.daemon.start(&bed.net.forwarder);
        let status = bed.daemon.status();
        assert_eq!(status.adopted_total, 1, "{state}: {status:?}");
        pair.exchange(BYTES);
        pair.close();
    }
}

#[test]
fn a_trap_that_is_met_in_a_daemon_that_is_replaced_costs_no_spliced_flow() {
    let (mut bed, mut pair, mut relayed) = with_a_trap("repl-trap", Policy::DETACHED, "detached");
    bed.daemon.replace(&bed.net.forwarder);
    meet_the_trap_once_it_is_left(&bed, &mut pair);
    relayed.close();
    assert_eq!(bed.daemon.join_replaced(), [Some(0)]);
    bed.daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(BYTES);
    pair.close();
}

/// A flow that its handler leaves at a shutdown ends while the daemon waits for other connections: it has its line in the
/// access log then, with its bytes.
#[test]
fn a_flow_that_ends_while_a_daemon_shuts_down_is_told_of() {
    const SENT: u64 = 100_000;
    for (policy, state) in [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")] {
        let (mut bed, mut pair, mut relayed) = with_a_trap("term-told", policy, state);
        pair.server.send(SENT);
        pair.client.receive(SENT);
        bed.daemon.terminate();
        wait_left(&bed);
        pair.close();
        let log = bed.daemon.dir().join("access.log");
        let line = eventually("its line", SOON, || {
            let lines = fs::read_to_string(&log).unwrap_or_default();
            lines
                .lines()
                .next()
                .map(|line| serde_json::from_str::<Value>(line).unwrap())
        });
        assert_eq!(line["client_port"], pair.client_port(), "{state}: {line}");
        assert_eq!(
            (&line["end"], &line["spliced"]),
            (&"complete".into(), &true.into()),
            "{state}: {line}"
        );
        // Retransmitted bytes count again.
        let seen = line["bytes_to_client"].as_u64().unwrap();
        assert!((SENT..2 * SENT).contains(&seen), "{state}: {line}");
        relayed.close();
        assert_eq!(bed.daemon.join(), Some(0), "{}", bed.daemon.log());
    }
}
