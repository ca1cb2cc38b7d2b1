//! The link emulator: a thread that carries packets between TAP devices, late, seldom or twice as asked.
//!
//! The kernel of the machine has no netem. What is emulated is decided in [`schedule`], which knows neither
//! devices nor clocks; this module and its other files move the packets. The thread runs under `SCHED_FIFO` where
//! that is permitted, and [`Emulator::not_real_time`] says why it does not otherwise.
//!
//! # Late runs do not count
//! A user-space emulator on a busy machine is late now and then, and then a run measures the machine. So every
//! packet's lateness is known: how much later than scheduled it was delivered, and how long, at most, it had waited
//! before the emulator took it in. [`Emulator::verdict`] says whether a run counts: in every direction, the 99th
//! percentile of the lateness must keep to 1 ms or 5 % of the link's delay, whichever is more
//! ([`lateness_bound`]), and the 99.9th to five times that. (A kernel without preemption, as where this was
//! measured, holds even the first of all threads back for a few milliseconds now and then: so the 99.9th percentile
//! has a bound of its own.) [`Emulator::counted`] repeats a run until it counts. A link without a rate is as fast as
//! the emulator, and a bulk transfer over it does not count: give it a rate, of 100 Mbit/s say.
//!
//! # Repeating a run
//! The same seed has the same luck in store for the n-th packet of a direction, whatever happens to the others.
//! Every report shows the links with their seeds, and an emulator that is dropped by a panic, a failed test that
//! is, prints its reports. What is not decided by luck depends on time: which packets a full queue drops, and how
//! many packets a TCP sends.

mod histogram;
mod lane;
mod lots;
mod queue;
mod report;
pub mod schedule;
mod tap;
mod worker;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

pub use histogram::Histogram;
pub use report::{DoesNotCount, LATE, LATE_SHARE, LinkReport, Report, VERY_LATE, Verdict, lateness_bound};

use crate::link::LinkSpec;
use crate::{Error, Namespace};
use lane::{SharedReport, lock};
use worker::{Link, Worker, be_punctual};

/// Emulated links at work, until dropped. Their devices vanish with them.
#[derive(Debug)]
pub struct Emulator {
    links: Vec<Known>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    not_real_time: Option<String>,
}

/// What is known of a link outside of the thread.
#[derive(Debug)]
struct Known {
    name: String,
    spec: LinkSpec,
    /// To the server, to the client.
    reports: [SharedReport; 2],
}

/// Where a link is to be.
#[derive(Debug)]
pub struct Span<'a> {
    /// What reports call it.
    pub name: String,
    /// The namespace and the name of the device on the client's side.
    pub client_side: (&'a Namespace, &'a str),
    /// The namespace and the name of the device on the server's side.
    pub server_side: (&'a Namespace, &'a str),
    /// What the link does to packets.
    pub spec: LinkSpec,
}

impl Emulator {
    /// Makes the devices of all `spans`, which are left down and without addresses, and begins.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Tool`] when a device or the thread cannot be made; [`Error::Link`] for a link that
    /// makes no sense.
    pub fn start(spans: &[Span<'_>]) -> Result<Self, Error> {
        let links = spans.iter().map(Link::new).collect::<Result<Vec<_>, _>>()?;
        let known = |(link, span): (&Link, &Span<'_>)| Known {
            name: span.name.clone(),
            spec: span.spec.clone(),
            reports: [link.to_server.report(), link.to_client.report()],
        };
        let known = links.iter().zip(spans).map(known).collect();
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::io("make an eventfd")(errno.into()))?;
        let stop = Arc::new(stop);
        let (report_thread, thread_is) = std::sync::mpsc::channel();
        let worker = Worker::new(links, Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("lab-emulator".into())
            .spawn(move || {
                // Fails only when `start` has panicked.
                let _ = report_thread.send(be_punctual());
                worker.run();
            })
            .map_err(Error::io("start the emulator thread"))?;
        let not_real_time = thread_is.recv().unwrap_or(None);
        if let Some(why) = &not_real_time {
            eprintln!("longsplice-lab: the emulator runs without SCHED_FIFO, and may be late: {why}");
        }
        Ok(Emulator {
            links: known,
            stop,
            thread: Some(thread),
            not_real_time,
        })
    }

    /// What happened so far, all links and directions together.
    pub fn report(&self) -> Report {
        let mut sum = Report::default();
        for report in self.links.iter().flat_map(|link| &link.reports) {
            sum.merge(&lock(report));
        }
        sum
    }

    /// What happened so far on each link, in the order of the spans.
    pub fn reports(&self) -> Vec<LinkReport> {
        let report = |link: &Known| {
            let [to_server, to_client] = &link.reports;
            LinkReport {
                name: link.name.clone(),
                link: link.spec.clone(),
                to_server: lock(to_server).clone(),
                to_client: lock(to_client).clone(),
            }
        };
        self.links.iter().map(report).collect()
    }

    /// Whether what happened so far counts.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.reports(), self.not_real_time.clone())
    }

    /// Forgets what happened so far: a measurement begins after its connections are set up. The luck goes on where
    /// it was.
    pub fn reset(&self) {
        for report in self.links.iter().flat_map(|link| &link.reports) {
            *lock(report) = Report::default();
        }
    }

    /// Makes a run with the reports [reset](Emulator::reset) before it, again and again until one counts, and
    /// answers what that one answered.
    ///
    /// # Errors
    /// [`DoesNotCount`] when none of so many `attempts` did.
    pub fn counted<T>(&self, attempts: usize, mut run: impl FnMut() -> T) -> Result<T, DoesNotCount> {
        for _ in 0..attempts {
            self.reset();
            let value = run();
            let verdict = self.verdict();
            if verdict.counts() {
                return Ok(value);
            }
            eprintln!("longsplice-lab: {verdict}");
        }
        Err(DoesNotCount {
            attempts,
            verdict: self.verdict(),
        })
    }

    /// Whether the emulator runs under `SCHED_FIFO`; if not, expect late packets on a busy machine.
    pub fn is_real_time(&self) -> bool {
        self.not_real_time.is_none()
    }

    /// Why the emulator does not run under `SCHED_FIFO`, if it does not.
    pub fn not_real_time(&self) -> Option<&str> {
        self.not_real_time.as_deref()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // An eventfd takes any first write.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened, and a drop must not add another.
            let _ = thread.join();
        }
        if thread::panicking() {
            // A test has failed: this repeats it.
            self.reports().iter().for_each(|report| eprintln!("{report}"));
            eprintln!("{}", self.verdict());
        }
    }
}
