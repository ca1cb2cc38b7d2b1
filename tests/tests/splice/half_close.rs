//! A direction ends while the other one goes on, before, during and after the splice, by either end.

use std::{thread, time::Duration};

use longsplice_engine::{Side, Until, policy::SplicePolicy};
use longsplice_lab::{ConnectionSpec, Traffic, TrafficServer, TrafficSpec, traffic::Transfer};
use longsplice_tests::{
    Bed, Config, Daemon, End, Pair, Policy, assert_all_ok,
    library::{Call, Depth, Desk},
    rng, soon, veth_line,
};

const SOME: u64 = 300_000;
const MUCH: u64 = 4 << 20;

/// End that closes first.
#[derive(Clone, Copy)]
enum First {
    Client,
    Server,
}

/// Returns the end that closes first, and the other one.
fn in_order(pair: &mut Pair, first: First) -> [&mut End; 2] {
    match first {
        First::Client => [&mut pair.client, &mut pair.server],
        First::Server => [&mut pair.server, &mut pair.client],
    }
}

fn end_first(pair: &mut Pair, first: First) {
    let [first, second] = in_order(pair, first);
    first.finish();
    second.expect_end();
}

/// Sends in the other direction, and closes it.
fn end_second(pair: &mut Pair, first: First) {
    let [first, second] = in_order(pair, first);
    thread::scope(|scope| {
        scope.spawn(|| second.send(MUCH));
        first.receive(MUCH);
    });
    second.finish();
    first.expect_end();
}

fn before(name: &str, policy: Policy<'_>, state: &str, first: First) {
    let bed = Bed::new(name, policy);
    let mut pair = bed.connect();
    pair.exchange(SOME);
    end_first(&mut pair, first);
    bed.splice(&pair, state);
    end_second(&mut pair, first);
    assert_eq!(bed.daemon.status().spliced_total, 1);
    drop(pair);
    bed.daemon.wait_reaped();
    assert_eq!(bed.daemon.status().ended("closed"), 1);
}

fn after(name: &str, policy: Policy<'_>, state: &str, first: First) {
    let bed = Bed::new(name, policy);
    let mut pair = bed.connect_spliced(state);
    pair.exchange(SOME);
    end_first(&mut pair, first);
    let flow = bed
        .daemon
        .wait_flow("the noted end", |f| f.to_server.fin != f.to_client.fin);
    assert_eq!(flow.to_server.fin, matches!(first, First::Client));
    end_second(&mut pair, first);
    drop(pair);
    bed.daemon.wait_reaped();
    let status = bed.daemon.status();
    assert_eq!(
        (status.spliced_total, status.ended("closed")),
        (1, 1),
        "{status:?}"
    );
}

/// Has one end close its half, brings the pair back by what the other one sends, and checks what the caller is told.
fn tells_its_caller(mut pair: Pair, call: Call<'_>, first: Side) {
    let [from, to] = pair.ends(first);
    from.finish();
    to.expect_end();
    to.send(SOME);
    from.receive(SOME);
    let returned = call.returned();
    assert_eq!(
        Side::BOTH.map(|side| returned.is_half_closed(side)),
        Side::BOTH.map(|side| side == first)
    );
}

#[test]
fn the_caller_is_told_of_an_end_that_passed() {
    for first in Side::BOTH {
        let until = Until::bytes_from(first.other(), SOME);
        for depth in Depth::BOTH {
            let desk = Desk::new("hc-told");
            let (pair, call) = desk.spliced(depth, until);
            tells_its_caller(pair, call, first);
        }
        let desk = Desk::new("hc-relay");
        let (pair, near) = desk.connect();
        let call = desk.library.splice(near.with_splice(SplicePolicy::Never), until);
        tells_its_caller(pair, call, first);
    }
}

#[test]
fn the_client_ends_before_the_splice() {
    before("hc-bc", Policy::ON_DEMAND, "detached", First::Client);
}

#[test]
fn the_server_ends_before_the_splice() {
    before("hc-bs", Policy::ON_DEMAND_DORMANT, "dormant", First::Server);
}

#[test]
fn the_client_ends_after_a_splice_to_detached() {
    after("hc-ac", Policy::DETACHED, "detached", First::Client);
}

#[test]
fn the_client_ends_after_a_splice_to_dormant() {
    after("hc-acd", Policy::DORMANT, "dormant", First::Client);
}

#[test]
fn the_server_ends_after_a_splice_to_detached() {
    after("hc-as", Policy::DETACHED, "detached", First::Server);
}

#[test]
fn the_server_ends_after_a_splice_to_dormant() {
    after("hc-asd", Policy::DORMANT, "dormant", First::Server);
}

/// One end sends little, the other one much, and the splice begins about when the first ends: in some of these
/// connections its FIN comes while the windows are coupled or the old bytes drain.
#[test]
fn an_end_during_the_splice() {
    const CONNECTIONS: usize = 16;
    let net = veth_line("hc-during", Default::default());
    let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
    let mut rng = rng();
    let mut config = Config::new();
    for number in 0..8 {
        let listen = (net.forwarder_client_addr, 8080 + number).into();
        let after = format!("after={}", rng.u64(1 << 20..4 << 20));
        let detach = ["now", "never"][usize::from(number) % 2];
        config = config.listener(listen, server.addr(), &after, detach);
    }
    let mut daemon = Daemon::of(&config);
    daemon.start(&net.forwarder);
    let mut run = |number: u16| {
        let spec = TrafficSpec::same(
            CONNECTIONS / 8,
            ConnectionSpec::new(Transfer::of(0), Transfer::of(0)),
        )
        .vary(|n, c| {
            let (little, much) = (Transfer::of(rng.u64(500_000..2_500_000)), Transfer::of(16 << 20));
            (c.to_server, c.to_client) = if n % 2 == 0 {
                (little, much)
            } else {
                (much, little)
            };
        })
        .parallel(1);
        let front = (net.forwarder_client_addr, 8080 + number).into();
        assert_all_ok(&Traffic::run(&net.client, front, &spec).unwrap());
    };
    for number in 0..8 {
        run(number);
    }
    let status = daemon.wait_status("all connections to end", |s| {
        s.spliced_total + s.relayed_total == CONNECTIONS as u64
    });
    // Most are spliced in time; which ones is random.
    assert!(status.spliced_total >= CONNECTIONS as u64 / 2, "{status:?}");
}

/// An end closes without a byte sent, while the splice is under way.
#[test]
fn an_end_at_once() {
    const ROUNDS: u64 = 40;
    let mut rng = rng();
    let bed = Bed::new("hc-once", Policy::DETACHED);
    for round in 0..ROUNDS {
        let first = [First::Client, First::Server][round as usize % 2];
        let mut pair = bed.connect();
        thread::sleep(Duration::from_micros(rng.u64(0..3_000)));
        end_first(&mut pair, first);
        if round % 4 < 2 {
            // All bytes have arrived, and the pair is quiet: the engine splices it now or never.
            let port = pair.client_port();
            bed.daemon.wait_state(port, &["relay", "detached"]);
            soon("a decision", || {
                bed.daemon.flows().iter().all(|f| f.state != "draining")
            });
        }
        end_second(&mut pair, first);
    }
    bed.daemon
        .wait_status("all to end", |s| s.spliced_total + s.relayed_total == ROUNDS);
    bed.daemon.wait_reaped();
}
