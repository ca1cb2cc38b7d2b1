//! The daemon dies by SIGKILL: spliced flows run on, and the next daemon adopts them; all other connections are reset
//! at both ends, and never look finished.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use longsplice_dataplane::{Dataplane, Options, PerSide, Side, Slot};
use longsplice_lab::{ConnectionSpec, Line, LineOptions, Outcome, Traffic, TrafficServer, TrafficSpec};
use longsplice_tests::{
    Bed, Config, Daemon, Flow, Pair, Policy, Raise, SOON, assert_all_ok, assert_whole_or_reset, rng, soon,
    veth_line,
};

const CONNECTIONS: u64 = 8;

struct Lab {
    daemon: Daemon,
    _server: TrafficServer,
    net: Line,
}

impl Lab {
    fn new(name: &str, splice: &str, detach: &str) -> Lab {
        let net = veth_line(name, Default::default());
        let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
        let config = Config::new().listener(front(&net), server.addr(), splice, detach);
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        Lab {
            daemon,
            _server: server,
            net,
        }
    }

    fn run(&self, spec: &TrafficSpec) -> Outcome {
        Traffic::run(&self.net.client, front(&self.net), spec).unwrap()
    }
}

fn front(net: &Line) -> SocketAddr {
    (net.forwarder_client_addr, 8080).into()
}

/// A pair comes back, gives up its slot, is spliced again in another one, and the daemon dies while the first one rests.
#[test]
fn a_flow_that_was_spliced_in_another_slot_before_is_adopted() {
    let mut rng = rng();
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        for _ in 0..4 {
            let mut bed = Bed::new("kill-again", policy);
            let mut pair = bed.connect();
            pair.exchange(1000);
            bed.splice(&pair, state);
            let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
            bed.daemon.unsplice(flow.id).unwrap();
            bed.daemon.wait_state(pair.client_port(), &["relay"]);
            // The slot is free a tenth of a second later, and rests for another one.
            thread::sleep(Duration::from_millis(rng.u64(100..160)));
            bed.splice(&pair, state);
            bed.daemon.kill();
            bed.daemon.start(&bed.net.forwarder);
            let status = bed.daemon.status();
            assert_eq!(status.adopted_total, 1, "{status:?}");
            pair.exchange(1000);
        }
    }
}

/// Kills the daemon in mid-transfer, restarts it in mid-transfer, and lets it see the end.
fn spliced_flows_survive(policy: Policy<'_>, state: &str) {
    let mut rng = rng();
    let mut bed = Bed::new("kill-spliced", policy);
    let mut pairs: Vec<Pair> = (0..CONNECTIONS).map(|_| bed.connect_spliced(state)).collect();
    let before = bed.daemon.flows();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for pair in &mut pairs {
            scope.spawn(|| {
                // An end between two exchanges shows nothing: each pair has begun a second one.
                while !over.load(Ordering::Relaxed) || pair.client.received() <= 1 << 20 {
                    pair.exchange(1 << 20);
                }
            });
        }
        // However this test ends, the transfers end, too.
        let _end = Raise(&over);
        thread::sleep(Duration::from_millis(rng.u64(0..300)));
        bed.daemon.kill();
        assert!(bed.daemon.pins().exists());
        thread::sleep(Duration::from_millis(rng.u64(0..300)));
        bed.daemon.start(&bed.net.forwarder);
        let status = bed.daemon.status();
        assert_eq!(status.adopted_total, CONNECTIONS, "{status:?}");
        let flows = bed.daemon.flows();
        assert!(flows.iter().all(|f| f.state == "detached"), "{flows:?}");
        assert_eq!(identities(&flows), identities(&before));
    });
    for pair in &mut pairs {
        assert!(pair.client.received() > 1 << 20, "in mid-transfer");
        pair.exchange(1 << 20);
        pair.close();
    }
    bed.daemon.wait_reaped();
    let status = bed.daemon.status();
    assert_eq!(status.ended("closed"), CONNECTIONS, "{status:?}");
    // The next daemon splices, too.
    let mut new = bed.connect_spliced(state);
    new.exchange(4 << 20);
    new.close();
    assert_eq!(bed.daemon.status().spliced_total, 1);
}

/// Returns the properties of flows that a restart must not change.
fn identities(flows: &[Flow]) -> Vec<(u32, SocketAddr, SocketAddr)> {
    let mut all: Vec<_> = flows
        .iter()
        .map(|f| (f.id, f.client.peer, f.server.local))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn detached_flows_survive_and_are_adopted() {
    spliced_flows_survive(Policy::DETACHED, "detached");
}

#[test]
fn dormant_flows_survive_and_are_adopted() {
    spliced_flows_survive(Policy::DORMANT, "dormant");
}

/// The daemon dies at any moment, with flows relayed and flows being spliced.
#[test]
fn at_any_moment_of_the_splice_both_ends_are_served_or_reset() {
    const ROUNDS: u64 = 16;
    let mut rng = rng();
    let mut lab = Lab::new("kill-any", "now", "after=20ms");
    let mut lost = 0;
    for round in 0..ROUNDS {
        let mut spec = TrafficSpec::same(CONNECTIONS as usize, ConnectionSpec::both_ways(16 << 20));
        for connection in &mut spec.connections {
            connection.stall = SOON / 2;
        }
        let (net, front) = (&lab.net, front(&lab.net));
        thread::scope(|scope| {
            let traffic = scope.spawn(move || Traffic::run(&net.client, front, &spec).unwrap());
            soon("a connection", || {
                lab.daemon.status().accepted_total > 0 || traffic.is_finished()
            });
            thread::sleep(Duration::from_micros(rng.u64(0..40_000)));
            lab.daemon.kill();
            // Spliced connections run on without a daemon; the others see a reset soon.
            lost += assert_whole_or_reset(&traffic.join().unwrap(), round);
            lab.daemon.start(&net.forwarder);
        });
    }
    lab.daemon.wait_reaped();
    eprintln!("{lost} of {} connections were reset", ROUNDS * CONNECTIONS);
    let spec = TrafficSpec::same(3, ConnectionSpec::both_ways(4 << 20));
    assert_all_ok(&lab.run(&spec));
}

/// Opens the kernel half in the place of a daemon that was killed.
fn stand_in(bed: &Bed) -> (Dataplane, Vec<Slot>) {
    let options = Options {
        instance: bed.daemon.instance().to_owned(),
        max_flows: 1,
        max_slots: 1,
    };
    bed.net
        .forwarder
        .run(|| Dataplane::open(&options))
        .unwrap()
        .unwrap()
}

/// Copies of what passes are still in the ring when the process that asked for them dies. The next daemon reads them before
/// the packet of another flow, which does meet its trap.
#[test]
fn copies_that_were_left_bring_no_flow_back() {
    let mut bed = Bed::with("kill-copies", LineOptions::default(), Policy::DORMANT, |c| {
        c.with("unsplice = \"data=server\"")
    });
    let mut copied = bed.connect_spliced("dormant");
    let mut trapped = bed.connect_spliced("dormant");
    bed.daemon.kill();
    let (plane, slots) = stand_in(&bed);
    slots.iter().for_each(|slot| slot.set_copying(true));
    copied.exchange_unevenly(1000, 0);
    // A process that is killed frees no slot.
    slots.into_iter().for_each(std::mem::forget);
    drop(plane);
    bed.daemon.start(&bed.net.forwarder);
    trapped.exchange_unevenly(0, 1000);
    let status = bed.daemon.wait_status("the return", |s| s.resumed_total > 0);
    assert_eq!((status.adopted_total, status.resumed_total), (2, 1), "{status:?}");
    copied.exchange_unevenly(1000, 0);
    let flow = bed
        .daemon
        .wait_flow("the flow", |f| f.client.peer.port() == copied.client_port());
    assert_eq!(flow.state, "detached");
}

/// The process dies between the removal of a flow's two directions.
#[test]
fn a_half_of_a_flow_is_removed_with_the_next_start() {
    for side in Side::BOTH {
        let mut bed = Bed::new("kill-half", Policy::DETACHED);
        let mut pair = bed.connect_spliced("detached");
        let flow = bed.daemon.wait_state(pair.client_port(), &["detached"]);
        bed.daemon.kill();
        let (plane, _) = stand_in(&bed);
        let direction = plane.find_flow(flow.id).unwrap()[side].unwrap();
        assert_eq!(plane.unregister(flow.id, PerSide::both(direction.leg)), 1);
        drop(plane);
        bed.daemon.start(&bed.net.forwarder);
        assert_eq!(bed.daemon.status().adopted_total, 0);
        for end in [&mut pair.client, &mut pair.server] {
            end.send(1);
            end.expect_reset(SOON);
        }
        bed.daemon.terminate();
        bed.daemon.join();
        assert!(bed.daemon.generations().is_empty());
    }
}

#[test]
fn a_relayed_flow_is_reset_at_both_ends() {
    let mut bed = Bed::new("kill-relay", Policy::ON_DEMAND);
    let mut pair = bed.connect();
    pair.exchange(1 << 20);
    let start = Instant::now();
    bed.daemon.kill();
    pair.client.expect_reset(Duration::from_secs(5));
    pair.server.expect_reset(Duration::from_secs(5));
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "promptly, though no segment was sent"
    );
}
