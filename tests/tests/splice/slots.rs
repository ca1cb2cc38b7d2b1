//! Few slots: pairs that came back and are relayed leave theirs to others, and flows are given up whose ends never
//! acknowledge the bytes that bypassed the sockets.

use std::{io::ErrorKind, thread, time::Duration};

use longsplice_engine::{Returned, Side, SplicerConfig, Until};
use longsplice_lab::{LineOptions, Namespace, topology::Nodes};
use longsplice_tests::{
    Bed, Config, Pair, Policy, eventually,
    library::{Depth, Library, at_once, connect, target},
    veth_line,
};

/// Number of slots.
const SLOTS: u32 = 8;

/// Bytes that pass before the client is gone: the server's window has grown then.
const BEFORE: u64 = 1 << 20;

/// Bytes that pass after that: less than an initial window, as the server gets no acknowledgement.
const LAST: u64 = 10_000;

/// Time limit of the test: where slots run short, an end is given up after 10 s.
const GIVEN_UP: Duration = Duration::from_secs(25);

/// Silences a node toward the forwarder, or lets it send again.
fn silence(net: &Nodes, node: &Namespace, on: bool) {
    let to = format!("{}", net.forwarder_client_addr);
    let command = node.command("ip").args(["route", if on { "add" } else { "del" }]);
    let ip = command.args(["blackhole", &to]).spawn().unwrap();
    let done = ip.wait(Duration::from_secs(5)).unwrap();
    assert!(done.is_some_and(|status| status.success()), "ip route");
}

/// Returns nodes whose segments pass one by one: the last ones meet the trap, the others bypass the sockets.
fn one_by_one() -> LineOptions {
    LineOptions {
        offloads: false,
        ..LineOptions::default()
    }
}

fn few_slots(config: SplicerConfig) -> SplicerConfig {
    SplicerConfig {
        max_dormant: SLOTS,
        ..config
    }
}

#[test]
fn what_vanished_clients_owe_is_given_up_and_their_slots_are_free() {
    let net = veth_line("slots", one_by_one());
    let library = Library::configured(&net.forwarder, few_slots);
    let listener = target(&net);
    let until = Until::bytes_from(Side::Server, BEFORE + LAST);
    let pairs: Vec<_> = (0..SLOTS)
        .map(|_| {
            let (mut far, near) = connect(&library, &net, &listener);
            let call = library.splice(at_once(near, Depth::Detached), until);
            library.wait_state(far.client_port(), &[Depth::Detached.state()]);
            thread::scope(|scope| {
                let Pair { client, server } = &mut far;
                scope.spawn(|| server.send(BEFORE));
                client.receive(BEFORE);
            });
            (far, call)
        })
        .collect();
    silence(&net, &net.client, true);
    let handlers: Vec<_> = pairs
        .into_iter()
        .map(|(mut far, call)| {
            far.server.send(LAST);
            (far, call.returned())
        })
        .collect();
    // All slots are taken: the flows that have waited longest are given up, until some slots are free.
    let is_reset = |(_, returned): &(Pair, Returned)| returned.server.peer_addr().is_err();
    eventually("a flow to be given up", GIVEN_UP, || {
        handlers.iter().any(is_reset).then_some(())
    });
    silence(&net, &net.client, false);
    let (given_up, mut waiting): (Vec<_>, Vec<_>) = handlers.into_iter().partition(is_reset);
    for (mut far, returned) in given_up {
        far.server.expect_reset(Duration::from_secs(5));
        for near in [returned.client, returned.server] {
            library.run(near.readable()).unwrap();
            let gone = near.try_read(&mut [0]).unwrap_err();
            assert_eq!(gone.kind(), ErrorKind::ConnectionReset);
        }
    }
    for (far, _) in &mut waiting {
        far.client.receive(LAST);
    }
    let (mut far, near) = connect(&library, &net, &listener);
    let _call = library.splice(
        at_once(near, Depth::Dormant),
        Until::idle(Duration::from_secs(60)),
    );
    library.wait_state(far.client_port(), &[Depth::Dormant.state()]);
    far.exchange(1);
    assert_eq!(library.splicer().counters().spliced_total, u64::from(SLOTS) + 1);
}

/// Relayed pairs need no slot: they are no reason to close the sockets of a spliced one.
#[test]
fn beside_relayed_pairs_a_spliced_one_keeps_its_sockets() {
    const DORMANT: u32 = 4;
    let bed = Bed::with(
        "slots-beside",
        LineOptions::default(),
        Policy::ON_DEMAND_DORMANT,
        |config| config.set(&format!("max_dormant = {DORMANT}")),
    );
    let mut relayed = [(); 2 * DORMANT as usize].map(|()| bed.connect());
    let mut pair = bed.connect();
    bed.splice(&pair, "dormant");
    for pair in relayed.iter_mut().chain([&mut pair]) {
        pair.exchange(10_000);
    }
    relayed.iter_mut().chain([&mut pair]).for_each(Pair::close);
    assert_eq!(bed.daemon.status().detached_total, 0);
}

/// Pins that a start adopts keep their size: a larger `max_dormant` does not make their slots seem few.
#[test]
fn after_an_adoption_a_larger_limit_closes_no_sockets() {
    let policy = Policy::ON_DEMAND_DORMANT;
    let mut bed = Bed::with("slots-adopted", LineOptions::default(), policy, |config| {
        config.set("max_dormant = 16")
    });
    let mut adopted = bed.connect();
    bed.splice(&adopted, "dormant");
    bed.daemon.kill();
    let front = (bed.net.family().unspecified(), bed.front().port()).into();
    let larger =
        Config::new()
            .set("max_dormant = 1024")
            .listener(front, bed.target(), policy.splice, policy.detach);
    bed.daemon.reconfigure(&larger);
    bed.daemon.start(&bed.net.forwarder);
    let mut pair = bed.connect();
    bed.splice(&pair, "dormant");
    for pair in [&mut adopted, &mut pair] {
        pair.exchange(10_000);
        pair.close();
    }
    assert_eq!(bed.daemon.status().detached_total, 0);
}

/// More pairs than there are slots come back one after the other, and are relayed on.
#[test]
fn pairs_that_came_back_and_relay_on_need_no_slot() {
    const SPLICED_FROM: u64 = 10_000;
    const BUDGET: u64 = 100_000;
    for detach in ["now", "never"] {
        let policy = Policy {
            splice: &format!("after={SPLICED_FROM}"),
            detach,
        };
        let bed = Bed::with("slots-relay", LineOptions::default(), policy, |config| {
            config
                .set("max_dormant = 2")
                .with(&format!("unsplice = \"bytes=server:{BUDGET}\""))
        });
        let mut pairs: Vec<Pair> = Vec::new();
        for round in 1..=6 {
            let mut pair = bed.connect();
            pair.exchange_unevenly(0, 2 * SPLICED_FROM);
            bed.daemon
                .wait_state(pair.client_port(), &["detached", "dormant"]);
            // The last bytes meet the trap.
            pair.exchange_unevenly(0, BUDGET - 2 * SPLICED_FROM);
            bed.daemon
                .wait_status("a return", |status| status.resumed_total == round);
            bed.daemon.wait_state(pair.client_port(), &["relay"]);
            pairs.push(pair);
        }
        // All have numbers of their own now, and are spliced from there once more.
        for pair in &mut pairs {
            pair.exchange(SPLICED_FROM / 4);
        }
        for pair in &mut pairs {
            pair.exchange_unevenly(2 * SPLICED_FROM, 0);
            bed.daemon
                .wait_state(pair.client_port(), &["detached", "dormant"]);
            pair.exchange_unevenly(0, BUDGET - SPLICED_FROM / 4);
            bed.daemon.wait_state(pair.client_port(), &["relay"]);
            pair.exchange(SPLICED_FROM / 4);
        }
        for pair in &mut pairs {
            pair.close();
        }
        bed.daemon.wait_reaped();
    }
}
