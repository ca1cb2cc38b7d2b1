//! Link emulator: a thread that carries packets between TAP devices and delays, drops or duplicates them as configured.
//!
//! The kernel of the machine has no netem. [`schedule`] decides the fate of each packet and knows neither devices nor
//! clocks; this module and its other files move the packets. The thread runs under `SCHED_FIFO` where that is
//! permitted; otherwise [`Emulator::not_real_time`] gives the reason.
//!
//! # Late runs do not count
//! A user-space emulator on a busy machine is late now and then, and such a run measures the machine. So the emulator
//! records every packet's lateness: the time between its scheduled and its real delivery, and the longest time that it
//! may have waited before the emulator took it in. [`Emulator::verdict`] tells if a run counts: in every direction, the
//! 99th percentile of the lateness must keep to 1 ms or 5 % of the link's delay, whichever is more
//! ([`lateness_bound`]), and the 99.9th to five times that. (A kernel without preemption, like the one of these
//! measurements, delays even the thread of the highest priority by a few milliseconds now and then: so the 99.9th
//! percentile has a bound of its own.) [`Emulator::counted`] repeats a run until it counts. A link without a rate is as
//! fast as the emulator, and a bulk transfer over it does not count: give it a rate, such as 100 Mbit/s.
//!
//! # Repeating a run
//! A seed gives the n-th packet of a direction the same random events in every run, whatever happens to the others.
//! Every report shows the links with their seeds, and an emulator that is dropped by a panic, as of a failed test,
//! prints its reports. Two things depend on time and not on the seed: which packets a full queue drops, and how many
//! packets a TCP sends.

mod early;
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
use lane::SharedReport;
use worker::{Link, Worker, be_punctual};

/// Emulated links at work, until dropped. Dropping it removes their devices.
#[derive(Debug)]
pub struct Emulator {
    links: Vec<Known>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    not_real_time: Option<String>,
}

/// State of a link that is visible outside of the thread.
#[derive(Debug)]
struct Known {
    name: String,
    spec: LinkSpec,
    /// Reports of the direction to the server and of that to the client.
    reports: [SharedReport; 2],
}

/// Position of a link: its two devices and their namespaces.
#[derive(Debug)]
pub struct Span<'a> {
    /// Name of the link in reports.
    pub name: String,
    /// The namespace and the name of the device on the client's side.
    pub client_side: (&'a Namespace, &'a str),
    /// The namespace and the name of the device on the server's side.
    pub server_side: (&'a Namespace, &'a str),
    /// Properties of the link.
    pub spec: LinkSpec,
}

impl Emulator {
    /// Makes the devices of all `spans`, which are left down and without addresses, and starts the thread.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Tool`] when a device or the thread cannot be made; [`Error::Link`] for a link out of
    /// range.
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
                // The receiver is gone only if `start` has panicked.
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

    /// Returns one report on all links and directions together.
    pub fn report(&self) -> Report {
        let mut sum = Report::default();
        for report in self.links.iter().flat_map(|link| &link.reports) {
            sum.merge(&report.lock());
        }
        sum
    }

    /// Returns a report on each link, in the order of the spans.
    pub fn reports(&self) -> Vec<LinkReport> {
        let report = |link: &Known| {
            let [to_server, to_client] = &link.reports;
            LinkReport {
                name: link.name.clone(),
                link: link.spec.clone(),
                to_server: to_server.lock().clone(),
                to_client: to_client.lock().clone(),
            }
        };
        self.links.iter().map(report).collect()
    }

    /// Returns the verdict on the run so far.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.reports(), self.not_real_time.clone())
    }

    /// Clears the reports: a measurement begins after its connections are set up. The random sequences go on without a
    /// break.
    pub fn reset(&self) {
        for report in self.links.iter().flat_map(|link| &link.reports) {
            *report.lock() = Report::default();
        }
    }

    /// Repeats a run until one counts, and returns the value of that one. Each run begins with a
    /// [reset](Emulator::reset) of the reports.
    ///
    /// # Errors
    /// [`DoesNotCount`] when none of `attempts` runs counted.
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

    /// Returns whether the emulator runs under `SCHED_FIFO`; without it, expect late packets on a busy machine.
    pub fn is_real_time(&self) -> bool {
        self.not_real_time.is_none()
    }

    /// Returns the reason why the emulator runs without `SCHED_FIFO`; `None` if it has it.
    pub fn not_real_time(&self) -> Option<&str> {
        self.not_real_time.as_deref()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // The first write to an eventfd always succeeds.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The panic of the thread was printed when it happened, and a drop must not add another.
            let _ = thread.join();
        }
        if thread::panicking() {
            // A test has failed: these lines hold the seeds that repeat it.
            self.reports().iter().for_each(|report| eprintln!("{report}"));
            eprintln!("{}", self.verdict());
        }
    }
}
