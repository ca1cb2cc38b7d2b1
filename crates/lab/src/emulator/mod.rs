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
mod frame;
mod histogram;
mod loss_model;
mod network;
mod packet;
mod queue;
mod report;
pub mod schedule;
mod tap;
mod worker;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

pub use histogram::Histogram;
pub use report::{DoesNotCount, LATE, LATE_SHARE, LinkReport, Report, VERY_LATE, Verdict, lateness_bound};

use crate::link::LinkSpec;
use crate::{Error, Namespace, monotonic_ns};
use network::{End, Lane, Network, Port, Routes, SharedReport};
use schedule::Schedule;
use worker::{Worker, be_punctual};

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

/// End of a link.
#[derive(Debug, Clone, Copy)]
pub enum SpanEnd<'a> {
    /// Device of this name in a namespace.
    Device(&'a Namespace, &'a str),
    /// Router inside the emulator, by its number.
    Router(usize),
}

/// Position of a link: its two ends.
#[derive(Debug)]
pub struct Span<'a> {
    /// Name of the link in reports.
    pub name: String,
    /// End on the client's side.
    pub client_side: SpanEnd<'a>,
    /// End on the server's side.
    pub server_side: SpanEnd<'a>,
    /// Properties of the link.
    pub spec: LinkSpec,
}

/// Direction of a link, as the next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// Index of the link among the spans.
    pub span: usize,
    /// True for the direction to the server's side.
    pub to_server: bool,
}

impl Hop {
    /// Returns the index of the lane: each link has two, that to the server's side first.
    fn lane(self) -> usize {
        self.span * 2 + usize::from(!self.to_server)
    }
}

/// Routers inside the emulator: for each one, the next hop to each address. A packet to another address is dropped.
pub type Routers = Vec<HashMap<IpAddr, Hop>>;

/// Bytes of an Ethernet header, with room for a VLAN tag.
const ETHERNET: usize = 14 + 4;

impl Emulator {
    /// Makes the devices of all `spans`, which are left down and without addresses, and starts the thread.
    ///
    /// With `routers`, of which there may be none, each frame is addressed to the device to which it is delivered: so
    /// namespaces may reach all others by one neighbor entry, whatever its Ethernet address is.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Tool`] when a device or the thread cannot be made; [`Error::Link`] for a link out of
    /// range.
    ///
    /// # Panics
    /// Panics when a hop or the end of a span names a span or router that is not there.
    pub fn start(spans: &[Span<'_>], routers: Option<&Routers>) -> Result<Self, Error> {
        let network = network(spans, routers)?;
        let known = spans
            .iter()
            .zip(network.lanes().chunks(2))
            .map(|(span, lanes)| Known {
                name: span.name.clone(),
                spec: span.spec.clone(),
                reports: [lanes[0].report(), lanes[1].report()],
            });
        let known = known.collect();
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::io("make an eventfd")(errno.into()))?;
        let stop = Arc::new(stop);
        let (report_thread, thread_is) = std::sync::mpsc::channel();
        let worker = Worker::new(network, Arc::clone(&stop))?;
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

    /// Returns the reason why the emulator runs without `SCHED_FIFO`, where packets are late on a busy machine; `None` if
    /// it has it.
    pub fn not_real_time(&self) -> Option<&str> {
        self.not_real_time.as_deref()
    }
}

/// Makes the devices of all spans, and connects them.
fn network(spans: &[Span<'_>], routers: Option<&Routers>) -> Result<Network, Error> {
    let (addresses, routers) = (routers.is_some(), routers.map_or(&[][..], Vec::as_slice));
    let (mut ports, mut lanes) = (Vec::new(), Vec::new());
    for (n, span) in spans.iter().enumerate() {
        span.spec.check()?;
        let ends = [(span.client_side, true), (span.server_side, false)];
        let [client_side, server_side] = ends.map(|(end, to_server)| {
            Ok::<End, Error>(match end {
                SpanEnd::Router(router) => {
                    assert!(
                        router < routers.len(),
                        "{}: there is no router {router}",
                        span.name
                    );
                    End::Router(router)
                }
                SpanEnd::Device(namespace, device) => {
                    let (device, mac) = tap::open(namespace, device, span.spec.mtu)?;
                    let lane = Hop { span: n, to_server }.lane();
                    let mac = addresses.then_some(mac);
                    ports.push(Port::new(device, lane, mac, monotonic_ns()));
                    End::Port(ports.len() - 1)
                }
            })
        });
        lanes.push(Lane::new(
            Schedule::new(span.spec.to_server.clone()),
            server_side?,
        ));
        lanes.push(Lane::new(
            Schedule::new(span.spec.to_client.clone()),
            client_side?,
        ));
    }
    let routes = |routes: &HashMap<IpAddr, Hop>| -> Routes {
        let lane = |(to, hop): (&IpAddr, &Hop)| {
            assert!(hop.span < spans.len(), "there is no link {}", hop.span);
            (*to, hop.lane())
        };
        routes.iter().map(lane).collect()
    };
    let routers = routers.iter().map(routes).collect();
    let mtu = spans.iter().map(|span| span.spec.mtu).max().unwrap_or_default();
    Ok(Network::new(ports, lanes, routers, usize::from(mtu) + ETHERNET))
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
