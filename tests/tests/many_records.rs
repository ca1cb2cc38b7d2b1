//! A table with very many records: to adopt them, to walk over them, to look for one among them and to reap them all takes its
//! time, but not that of the runtime's workers, which connections wait for.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use longsplice_dataplane::{Dataplane, Leg, LegStart, Mapping, Mode, Options, Peek, Side};
use longsplice_engine::{FlowId, RequestError, Shutdown, Splicer, SplicerConfig};
use longsplice_lab::Namespace;
use longsplice_tests::eventually;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;

/// How many flows there are; LONGSPLICE_RECORDS sets another number.
const FLOWS: u32 = 100_000;
/// What a worker may compute at a stretch: 100 000 records take ten times as long, and more.
const STRETCH: Duration = Duration::from_millis(25);

/// Pins that go with the test.
struct Pins(String);

impl Drop for Pins {
    fn drop(&mut self) {
        let place = PathBuf::from(format!("/sys/fs/bpf/longsplice-{}", self.0));
        // Mostly the splicer has removed them.
        let _ = fs::remove_dir_all(place);
    }
}

fn start(leg: Leg) -> LegStart {
    LegStart {
        leg,
        seq_off: 0,
        tsval_off: 0,
        wscale_in: 7,
        wscale_out: 7,
        blank_sack: false,
        ended: false,
        peek: Peek::at_rest(1000, 1000, [65_000; 2]),
        mapping: Mapping::default(),
        alone: false,
        mss: 1460,
        sack: true,
        ecn: false,
        ts_high: 0,
    }
}

/// The n-th flow: clients of many addresses, one server.
fn legs(n: u32) -> [Leg; 2] {
    let at = |a: [u8; 4], port: u32| SocketAddr::from((Ipv4Addr::from(a), port as u16));
    let (high, low) = (n >> 14, 1024 + (n & 0x3fff));
    [
        Leg {
            peer: at([198, 18, 1, 2 + high as u8], low),
            local: at([198, 18, 1, 1], 80),
        },
        Leg {
            peer: at([198, 19, 1, 2 + high as u8], 80),
            local: at([198, 19, 1, 1], low),
        },
    ]
}

/// What a predecessor leaves that had so many flows.
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
        assert!(slot.switch(Mode::Track, Mode::Drain) && slot.switch(Mode::Drain, Mode::Final));
        plane.release(&slot, legs(n), [0; 2]).unwrap();
    }
    assert_eq!(plane.direction(legs(0)[1]).unwrap().side, Side::Server);
}

/// The longest that the only worker was not free: in time that it computed, and in all.
async fn beat(over: Arc<AtomicBool>) -> [Duration; 2] {
    let now = || {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    let mut longest = [Duration::ZERO; 2];
    let mut last = (now(), Instant::now());
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let this = (now(), Instant::now());
        longest = [longest[0].max(this.0 - last.0), longest[1].max(this.1 - last.1)];
        last = this;
    }
    longest
}

#[test]
fn workers_are_free_while_records_are_walked_over() {
    let flows = env::var("LONGSPLICE_RECORDS").map_or(FLOWS, |word| word.parse().unwrap());
    let node = Namespace::new("many").unwrap();
    let pins = Pins(format!("test-many-{}", std::process::id()));
    node.run(|| leave(&pins.0, flows)).unwrap();
    let config = SplicerConfig {
        instance: pins.0.clone(),
        max_flows: flows,
        idle_timeout: Duration::from_secs(3),
        ..SplicerConfig::default()
    };
    let build = || Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = node.run(build).unwrap().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let beats = runtime.spawn(beat(over.clone()));
    let opened = runtime.block_on(runtime.spawn(Splicer::open(config)));
    let splicer = opened.unwrap().unwrap();
    assert_eq!(splicer.health().flows, u64::from(flows), "all are adopted");
    let asking = splicer.clone();
    let asked = runtime.spawn(async move {
        let last = FlowId(1_000_000_000);
        let none = asking.request_unsplice(last).await;
        assert!(matches!(none, Err(RequestError::NoSuchFlow(_))), "{none:?}");
        asking.request_end(FlowId(1)).await.unwrap();
        asking.request_splice(FlowId(2)).await
    });
    let asked = runtime.block_on(asked).unwrap();
    assert!(matches!(asked, Err(RequestError::AlreadySpliced(_))), "{asked:?}");
    eventually("all to be reaped", Duration::from_secs(60), || {
        (splicer.health().flows == 0).then_some(())
    });
    let ending = splicer.clone();
    runtime
        .block_on(runtime.spawn(async move { ending.shutdown(Shutdown::KeepSpliced, Duration::ZERO).await }))
        .unwrap();
    over.store(true, Ordering::Relaxed);
    let [computed, all] = runtime.block_on(beats).unwrap();
    println!("{flows} flows: a worker was not free for {computed:?} of its own time, {all:?} in all");
    assert!(computed < STRETCH, "{computed:?}");
}
