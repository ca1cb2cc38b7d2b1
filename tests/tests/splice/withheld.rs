//! Clients that withhold acknowledgements, or give wrong ones, while their pair is on its way to a splice: they cost little,
//! and no byte is lost.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use longsplice_lab::pattern::Pattern;
use longsplice_tests::{
    Bed, Flow, Pair, Policy, SOON, accept, addr, eventually, family, patient, rng, silent::Silent, soon,
    times,
};

/// Length of a request.
const REQUEST: usize = 10;
/// Bytes that a client takes before it falls silent, and those that the server sends in the whole.
const TAKEN: u64 = 10_000;
const SENT: u64 = 20_000;
/// Time after which a coupling has been given up.
const COUPLED: Duration = Duration::from_secs(2);
/// Time over which wake-ups are counted.
const COUNTED: Duration = Duration::from_secs(1);
/// Largest number of wake-ups in that time beside those of an idle daemon. Looks in an interval of a millisecond would be
/// a thousand.
const FEW: u64 = 200;
/// Largest growth of the daemon's memory, in bytes.
const GROWTH: u64 = 8 << 20;

/// Client that has fallen silent, with its server.
struct Withheld {
    client: Silent,
    server: TcpStream,
    flow: Flow,
    pattern: Pattern,
}

/// Connects a client that takes a part of what its server sends, and then falls silent.
fn withhold(bed: &Bed) -> Withheld {
    let pattern = Pattern::new(rng().u64(..));
    let mut client = Silent::new(&bed.net, bed.front());
    client.keep_content();
    let server = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut server = accept(&bed.listener);
            server.read_exact(&mut [0; REQUEST]).unwrap();
            server.write_all(&pattern.prefix(SENT as usize)).unwrap();
            server
        });
        assert_eq!(client.ask(1, &[b'?'; REQUEST], TAKEN), 1);
        serving.join().unwrap()
    });
    let (port, front) = (client.addresses()[0].port(), bed.front().port());
    let is_its = |flow: &Flow| flow.client.peer.port() == port && flow.client.local.port() == front;
    let flow = bed.daemon.wait_flow("the client's flow", is_its);
    Withheld {
        client,
        server,
        flow,
        pattern,
    }
}

/// Connects such clients until one has a drain that waits for it: one whose socket has begun to retransmit stays a relay.
fn withhold_in_drain(bed: &Bed) -> Withheld {
    eventually("a drain that waits", SOON, || {
        let mut withheld = withhold(bed);
        if let Err(refusal) = bed.daemon.request_splice(withheld.flow.id) {
            eprintln!("{refusal}");
        }
        let asked = Instant::now();
        while asked.elapsed() < COUPLED {
            let flows = bed.daemon.flows();
            let flow = flows.iter().find(|flow| flow.id == withheld.flow.id);
            if flow.is_some_and(|flow| flow.state == "draining") {
                return Some(withheld);
            }
        }
        withheld.client.reset();
        None
    })
}

/// Returns how often threads of the daemon were woken in the given time.
fn wakeups(bed: &Bed, during: Duration) -> u64 {
    let count = || -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", bed.daemon.pid())).unwrap();
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).unwrap_or_default();
        tasks
            .map(|task| status(task.unwrap()))
            .filter_map(|text| {
                let line = text
                    .lines()
                    .find(|line| line.starts_with("voluntary_ctxt_switches:"))?;
                line.split_whitespace().nth(1)?.parse::<u64>().ok()
            })
            .sum()
    };
    let before = count();
    // This test is about what happens while nothing happens.
    thread::sleep(during);
    count() - before
}

/// Returns the CPU time of the daemon over the given time.
fn cpu_time(bed: &Bed, during: Duration) -> Duration {
    let used = || -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", bed.daemon.pid())).unwrap();
        let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let nanos = tasks.filter_map(|task| of(task.unwrap()).split_whitespace().next()?.parse::<u64>().ok());
        Duration::from_nanos(nanos.sum())
    };
    let before = used();
    // This test is about what happens while nothing happens.
    thread::sleep(during);
    used() - before
}

#[test]
fn a_drain_that_waits_for_an_acknowledgement_wakes_rarely_and_then_at_once() {
    let bed = Bed::new("wh-drain", Policy::ON_DEMAND_DORMANT);
    let idle = wakeups(&bed, COUNTED);
    let mut withheld = withhold_in_drain(&bed);
    let waiting = wakeups(&bed, COUNTED);
    eprintln!("wake-ups in {COUNTED:?}: {idle} idle, {waiting} with a drain that waits");
    assert!(waiting <= idle + FEW, "{idle}, {waiting}");
    assert_eq!(withheld.client.take_more(SENT), 1);
    bed.daemon
        .wait_state(withheld.client.addresses()[0].port(), &["dormant"]);
    assert_eq!(withheld.client.content(0), withheld.pattern.prefix(SENT as usize));
}

/// Returns a bed whose connections are spliced by command, and come back after they were idle for so long.
fn bed_with_idle_limit(name: &str, unsplice: &str) -> Bed {
    let policy = Policy {
        splice: "after=1h",
        detach: "never",
    };
    Bed::with(name, Default::default(), policy, |c| {
        c.with(&format!("unsplice = \"idle={unsplice}\""))
    })
}

/// Bytes have passed beside the drain, so that the sockets cannot come back before the old ones are acknowledged.
#[test]
fn a_drain_that_outlasts_a_condition_of_time_rests() {
    let bed = bed_with_idle_limit("wh-time", "1s");
    let idle = cpu_time(&bed, COUNTED);
    let mut withheld = withhold_in_drain(&bed);
    withheld.server.write_all(withheld.pattern.at(SENT, 1)).unwrap();
    soon("a byte to pass", || bed.daemon.status().segments("forwarded") > 0);
    let waiting = cpu_time(&bed, 3 * COUNTED);
    eprintln!("CPU time: {idle:?} in {COUNTED:?} idle, {waiting:?} in thrice that with a drain that waits");
    assert!(waiting <= 3 * idle + COUNTED / 5, "{idle:?}, {waiting:?}");
    // The pair comes back as soon as it can.
    assert_eq!(withheld.client.take_more(SENT + 1), 1);
    soon("the pair to come back", || {
        bed.daemon.status().returned("idle") > 0
    });
    assert_eq!(
        withheld.client.content(0),
        withheld.pattern.prefix(SENT as usize + 1)
    );
}

/// A server goes on sending past a drain that waits for its client, for longer than the pair may be idle.
#[test]
fn a_pair_whose_segments_pass_beside_a_drain_is_not_idle() {
    let bed = bed_with_idle_limit("wh-idle", "2s");
    let mut withheld = withhold_in_drain(&bed);
    withheld.server.set_nodelay(true).unwrap();
    let (began, mut sent) = (Instant::now(), SENT);
    while began.elapsed() < Duration::from_secs(3) {
        withheld.server.write_all(withheld.pattern.at(sent, 1)).unwrap();
        sent += 1;
        thread::sleep(Duration::from_millis(100));
    }
    let taken = thread::scope(|scope| {
        let client = &mut withheld.client;
        let taking = scope.spawn(|| client.take_more(sent));
        let port = withheld.flow.client.peer.port();
        bed.daemon.wait_state(port, &["dormant"]);
        taking.join().unwrap()
    });
    assert_eq!(taken, 1);
    assert_eq!(withheld.client.content(0), withheld.pattern.prefix(sent as usize));
}

#[test]
fn a_coupling_that_waits_for_a_repair_wakes_rarely() {
    let bed = Bed::new("wh-couple", Policy::ON_DEMAND_DORMANT);
    let idle = wakeups(&bed, COUNTED);
    let withheld = withhold(&bed);
    // From the first timeout on, a coupling waits for the end of the repair.
    let socket = withheld.flow.client.peer;
    soon("a timeout", || {
        let ss = bed
            .net
            .forwarder
            .command("ss")
            .args(["-tniH", "dst", &socket.to_string()]);
        let output = ss.output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("backoff:")
    });
    let (coupling, asked) = thread::scope(|scope| {
        let asked = scope.spawn(|| bed.daemon.request_splice(withheld.flow.id));
        (wakeups(&bed, COUNTED), asked.join().unwrap())
    });
    eprintln!("wake-ups in {COUNTED:?}: {idle} idle, {coupling} with a coupling that waits");
    assert!(coupling <= idle + FEW, "{idle}, {coupling}");
    let refusal = asked.unwrap_err();
    assert!(refusal.contains("recovery"), "{refusal}");
}

/// The programs see an acknowledgement of all, which the socket refuses. The bytes are the socket's all the same.
#[test]
fn an_acknowledgement_that_the_socket_refuses_ends_no_drain() {
    for policy in [Policy::ON_DEMAND_DORMANT, Policy::ON_DEMAND] {
        let bed = Bed::new("wh-late", policy);
        let mut withheld = withhold_in_drain(&bed);
        withheld.client.acknowledge_too_late((SENT - TAKEN) as u32);
        // Wait until it has come to the socket, which answers it (RFC 7323 section 5.3, R1).
        soon("the socket to refuse it", || {
            bed.net.forwarder.snmp().unwrap().get("TcpExt.PAWSEstab") > 0
        });
        assert_eq!(withheld.client.take_more(SENT), 1, "the rest is sent again");
        let port = withheld.client.addresses()[0].port();
        bed.daemon.wait_state(port, &["dormant", "detached"]);
        withheld
            .server
            .write_all(withheld.pattern.at(SENT, TAKEN as usize))
            .unwrap();
        assert_eq!(withheld.client.take_more(SENT + TAKEN), 1);
        assert_eq!(
            withheld.client.content(0),
            withheld.pattern.prefix((SENT + TAKEN) as usize)
        );
    }
}

/// Opens a second listener, whose connections are detached until this condition, beside one whose drains take the only
/// slot.
fn bed_with_one_slot(name: &str, unsplice: &str) -> (Bed, SocketAddr) {
    let other = SocketAddr::from((family().unspecified(), 8081));
    let bed = Bed::with(name, Default::default(), Policy::ON_DEMAND_DORMANT, |config| {
        let target = (addr("198.18.2.1"), 7000).into();
        config
            .set("max_dormant = 1")
            .listener(other, target, "now", "now")
            .with(&format!("unsplice = \"{unsplice}\""))
    });
    let front = SocketAddr::new(bed.front().ip(), other.port());
    (bed, front)
}

/// The time of a connection has come, and there is no slot. Its segments pass, so it may come back later.
#[test]
fn a_return_that_waits_for_a_slot_harms_no_connection() {
    let (bed, front) = bed_with_one_slot("wh-late-return", "after=5s");
    let mut pair = Pair::connect(&bed.net.client, front, &bed.listener);
    bed.daemon.wait_state(pair.client_port(), &["detached"]);
    let withheld = withhold_in_drain(&bed);
    soon("a return in vain", || {
        bed.daemon.log().contains("the flow stays spliced for now")
    });
    thread::sleep(Duration::from_secs(times("LONGSPLICE_SECONDS_WITHOUT_SLOT", 1)));
    pair.exchange(10_000);
    assert_eq!(bed.daemon.status().resumed_total, 0);
    // Ignore an error: as slots are short, the drain may have been given up by itself.
    let _ = bed.daemon.kill_flow(withheld.flow.id);
    soon("the return", || bed.daemon.status().returned("elapsed") > 0);
    pair.exchange(10_000);
    pair.close();
}

/// A client repeats a segment that meets a trap, while there is no slot for its flow to come back. It is kept once.
#[test]
fn a_held_segment_that_is_repeated_takes_no_more_memory() {
    let (bed, front) = bed_with_one_slot("wh-held", "data=client");
    let mut client = Silent::new(&bed.net, front);
    let mut server = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut server = accept(&bed.listener);
            server.read_exact(&mut [0; REQUEST]).unwrap();
            server.write_all(&[b'!'; REQUEST]).unwrap();
            server
        });
        assert_eq!(client.ask(1, &[b'?'; REQUEST], REQUEST as u64), 1);
        serving.join().unwrap()
    });
    bed.daemon.wait_state(client.addresses()[0].port(), &["detached"]);
    let withheld = withhold_in_drain(&bed);
    let payload = Pattern::new(rng().u64(..)).prefix(1_000);
    client.repeat(&payload, 1_000);
    let before = bed.daemon.memory_kib("RssAnon") << 10;
    let repetitions = times("LONGSPLICE_REPETITIONS", 50_000);
    let began = Instant::now();
    client.repeat(&payload, repetitions);
    let after = bed.daemon.memory_kib("RssAnon") << 10;
    let queued = bed.daemon.status().segments("queued");
    eprintln!(
        "{before} bytes, {after} behind {repetitions} repetitions in {:.0?}, of which {queued} were queued",
        began.elapsed()
    );
    assert!(queued > 10_000, "{queued}");
    assert!(after < before + GROWTH, "{before}, {after}");
    drop(withheld.server);
    // Ignore an error: as slots are short, the drain may have been given up by itself.
    let _ = bed.daemon.kill_flow(withheld.flow.id);
    let mut received = vec![0; payload.len()];
    server.set_read_timeout(Some(patient(SOON))).unwrap();
    server.read_exact(&mut received).unwrap();
    assert_eq!(received, payload);
}
