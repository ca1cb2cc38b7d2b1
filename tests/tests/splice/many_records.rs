//! Table with very many records: adopting them, walking over them, searching one of them and reaping them all takes its
//! time, but not that of the runtime's workers, for which connections wait.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use longsplice_dataplane::{
    Dataplane, Inspection, Leg, LegStart, Mapping, Mode, Offset, Options, PerSide, Seq, Side,
};
use longsplice_engine::{FlowId, RequestError, Shutdown, Splicer, SplicerConfig};
use longsplice_lab::Namespace;
use longsplice_tests::{Config, Daemon, eventually, times};
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    runtime::{Builder, Runtime},
    sync::watch,
};

/// Number of flows; LONGSPLICE_RECORDS sets another number.
const FLOWS: u32 = 25_000;
/// Number of repetitions of each kind of work; the last one, which takes seconds, is repeated only where it took too long.
const REPEATS: usize = 3;
/// Longest time that a worker may compute at a stretch: a walk over 25 000 records takes more than three times as long.
const STRETCH: Duration = Duration::from_millis(5);
/// Longest stretch while all of them are removed, which takes a third of a second and is usually done only once: time that the
/// host took, or an interrupt, counts as computed, too.
const LONG_STRETCH: Duration = Duration::from_millis(120);

/// Pins that are removed with the test.
struct Pins(String);

impl Drop for Pins {
    fn drop(&mut self) {
        let place = PathBuf::from(format!("/sys/fs/bpf/longsplice-{}", self.0));
        // Usually the splicer has removed them.
        let _ = fs::remove_dir_all(place);
    }
}

fn start(leg: Leg) -> LegStart {
    LegStart {
        leg,
        seq_off: Offset::default(),
        tsval_off: 0,
        wscale_in: 7,
        wscale_out: 7,
        blank_sack: false,
        ended: false,
        inspection: Inspection::at_rest(Seq::new(1000), Seq::new(1000), [65_000; 2]),
        mapping: Mapping::default(),
        alone: false,
        mss: 1460,
        sack: true,
        ecn: false,
        ts_high: 0,
    }
}

/// Returns the legs of the n-th flow: clients of many addresses, one server.
fn legs(n: u32) -> PerSide<Leg> {
    let at = |a: [u8; 4], port: u32| SocketAddr::from((Ipv4Addr::from(a), port as u16));
    let (high, low) = (n >> 14, 1024 + (n & 0x3fff));
    PerSide {
        client: Leg {
            peer: at([198, 18, 1, 2 + high as u8], low),
            local: at([198, 18, 1, 1], 80),
        },
        server: Leg {
            peer: at([198, 19, 1, 2 + high as u8], 80),
            local: at([198, 19, 1, 1], low),
        },
    }
}

/// Leaves the records of a predecessor with so many flows.
fn leave(instance: &str, flows: u32) {
    let options = Options {
        instance: instance.to_owned(),
        max_flows: flows,
        max_slots: 64,
    };
    let (plane, _) = Dataplane::open(&options).unwrap();
    let slot = plane.take_slot().unwrap();
    for n in 0..flows {
        let starts = legs(n).map(start);
        plane
            .register(&slot, plane.next_serial(), false, &starts)
            .unwrap();
        assert!(slot.transition(Mode::Track, Mode::Drain) && slot.transition(Mode::Drain, Mode::Final));
        plane.demote(&slot, legs(n), PerSide::both(0)).unwrap();
    }
    assert_eq!(plane.direction(legs(0).server).unwrap().side, Side::Server);
}

/// Runtime with one worker, and the longest time that the worker computed at a stretch since the last measurement
/// began.
struct Worker {
    runtime: Runtime,
    longest: watch::Sender<Duration>,
}

impl Worker {
    fn start(node: &Namespace) -> Worker {
        let build = || Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = node.run(build).unwrap().unwrap();
        let longest = watch::Sender::new(Duration::ZERO);
        runtime.spawn(beat(longest.clone()));
        Worker { runtime, longest }
    }

    /// Runs it on the worker, as a handler would; returns its result, and the longest stretch meanwhile.
    fn measure<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> (T, Duration) {
        self.longest.send_replace(Duration::ZERO);
        let done = self.runtime.block_on(self.runtime.spawn(work)).unwrap();
        (done, self.longest_since())
    }

    /// Returns the longest stretch, including the one under way.
    fn longest_since(&self) -> Duration {
        let mut beats = self.longest.subscribe();
        for _ in 0..2 {
            self.runtime.block_on(beats.changed()).unwrap();
        }
        *self.longest.borrow()
    }
}

async fn beat(longest: watch::Sender<Duration>) {
    let computed = || {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    let mut last = computed();
    loop {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let now = computed();
        longest.send_modify(|longest| *longest = (*longest).max(now - last));
        last = now;
    }
}

/// Longest stretch of each kind of work, in its best run: the host takes time from some runs, but not from all.
#[derive(Debug, Default)]
struct Best(BTreeMap<&'static str, Duration>);

impl Best {
    fn note(&mut self, work: &'static str, longest: Duration) {
        let best = self.0.entry(work).or_insert(longest);
        *best = longest.min(*best);
    }
}

fn open(worker: &Worker, config: &SplicerConfig, best: &mut Best) -> Splicer {
    let config = config.clone();
    let (opened, longest) = worker.measure(Splicer::open(config));
    best.note("open", longest);
    opened.unwrap()
}

fn ask(worker: &Worker, splicer: &Splicer, best: &mut Best) {
    let asking = splicer.clone();
    let none = async move { asking.request_unsplice(FlowId(1_000_000_000)).await };
    let (none, longest) = worker.measure(none);
    best.note("unsplice", longest);
    assert!(matches!(none, Err(RequestError::NoSuchFlow(_))), "{none:?}");
    let asking = splicer.clone();
    let (asked, longest) = worker.measure(async move { asking.request_splice(FlowId(2)).await });
    best.note("splice", longest);
    assert!(matches!(asked, Err(RequestError::AlreadySpliced(_))), "{asked:?}");
    let asking = splicer.clone();
    let last = asking.flows().last().expect("there are flows").id;
    let (ended, longest) = worker.measure(async move { asking.request_end(last).await });
    best.note("end", longest);
    ended.unwrap();
}

fn shut_down(worker: &Worker, splicer: Splicer, best: &mut Best) {
    let keep = async move { splicer.shutdown(Shutdown::KeepSpliced, Duration::ZERO).await };
    best.note("shutdown", worker.measure(keep).1);
}

/// Waits until all flows of a predecessor are reaped, and returns the longest stretch meanwhile.
fn reap(worker: &Worker, config: &SplicerConfig, best: &mut Best) -> Duration {
    let splicer = open(worker, config, best);
    worker.longest.send_replace(Duration::ZERO);
    eventually("all to be reaped", Duration::from_secs(60), || {
        (splicer.health().flows == 0).then_some(())
    });
    let longest = worker.longest_since();
    shut_down(worker, splicer, best);
    longest
}

#[test]
fn workers_are_free_while_records_are_walked_over() {
    let flows = times("LONGSPLICE_RECORDS", FLOWS);
    let node = Namespace::new("many").unwrap();
    let pins = Pins(format!("test-many-{}", std::process::id()));
    node.run(|| leave(&pins.0, flows)).unwrap();
    let worker = Worker::start(&node);
    let mut best = Best::default();
    let mut config = SplicerConfig {
        instance: pins.0.clone(),
        max_flows: flows,
        ..SplicerConfig::default()
    };
    for n in 0..REPEATS {
        let splicer = open(&worker, &config, &mut best);
        let left = u64::from(flows) - n as u64;
        assert_eq!(splicer.health().flows, left, "all are adopted");
        ask(&worker, &splicer, &mut best);
        shut_down(&worker, splicer, &mut best);
    }
    config.idle_timeout = Duration::from_secs(3);
    let mut reaped = reap(&worker, &config, &mut best);
    for _ in 1..REPEATS {
        if reaped < LONG_STRETCH {
            break;
        }
        eprintln!("the worker computed {reaped:?} at a stretch while all were reaped");
        node.run(|| leave(&pins.0, flows)).unwrap();
        reaped = reaped.min(reap(&worker, &config, &mut best));
    }
    println!(
        "{flows} flows: the worker computed at most {best:?} at a stretch, {reaped:?} while they were reaped"
    );
    assert!(best.0.values().all(|&longest| longest < STRETCH), "{best:?}");
    assert!(reaped < LONG_STRETCH, "{reaped:?}");
}

/// Asks for a list that is many times as long as what its making may take.
#[test]
fn a_list_of_many_flows_is_made_in_parts() {
    /// Most KiB that the daemon may grow by: the text of the list is twice as long.
    const MOST: u64 = 5 << 10;
    let node = Namespace::new("many-listed").unwrap();
    let [listen, to] = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, 8_000)),
        SocketAddr::from((Ipv4Addr::LOCALHOST, 8_001)),
    ];
    let config = Config::new()
        .set(&format!("max_flows = {FLOWS}\nmax_dormant = 64"))
        .listener(listen, to, "auto", "never");
    let mut daemon = Daemon::of(&config);
    node.run(|| leave(daemon.instance(), FLOWS)).unwrap();
    daemon.start(&node);
    let before = daemon.memory_kib("VmHWM");
    let listed = daemon.cli(&["flows", "--json"]);
    let grown = daemon.memory_kib("VmHWM") - before;
    let flows: Vec<serde_json::Value> = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(flows.len(), FLOWS as usize);
    assert!(
        listed.stdout.len() as u64 >> 10 > MOST * 2,
        "{}",
        listed.stdout.len()
    );
    assert!(grown < MOST, "{grown} KiB");
    let ids: Vec<_> = flows.iter().map(|flow| flow["id"].as_u64().unwrap()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "by number, each once");
}
