//! The link emulator: a thread that carries packets between TAP devices, late, seldom or twice as asked.
//!
//! The kernel of the machine has no netem. What is emulated is decided in [`schedule`], which knows neither
//! devices nor clocks; this module and its other files move the packets.

mod histogram;
mod lane;
mod report;
pub mod schedule;
mod tap;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tun_rs::SyncDevice;

pub use histogram::Histogram;
pub use report::{MAX_P99_LATENESS, Report};

use crate::link::LinkSpec;
use crate::{Error, Namespace, monotonic_ns, tool};
use lane::{Lane, SharedReport, lock};
use schedule::{Nanos, Schedule};

/// How many packets are moved in one direction before the others have their turn.
const BATCH: usize = 64;

/// The lowest real-time priorities are above every ordinary thread, and that is all that is needed.
const FIFO_PRIORITY: &str = "10";

/// Bytes of an Ethernet header, with room for a VLAN tag.
const ETHERNET: usize = 14 + 4;

/// Emulated links at work, until dropped. Their devices vanish with them.
#[derive(Debug)]
pub struct Emulator {
    /// For each link: to the server, to the client.
    reports: Vec<[SharedReport; 2]>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    real_time: bool,
}

/// What happened on one link, by direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct LinkReport {
    /// From the client's side to the server's.
    pub to_server: Report,
    /// From the server's side to the client's.
    pub to_client: Report,
}

/// Where a link is to be.
#[derive(Debug)]
pub struct Span<'a> {
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
    /// [`Error::Io`] or [`Error::Tool`] when a device or the thread cannot be made.
    pub fn start(spans: &[Span<'_>]) -> Result<Self, Error> {
        let links = spans.iter().map(Link::new).collect::<Result<Vec<_>, _>>()?;
        let reports = links
            .iter()
            .map(|link| [link.to_server.report(), link.to_client.report()])
            .collect();
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::io("make an eventfd")(errno.into()))?;
        let stop = Arc::new(stop);
        let (report_thread, thread_is) = std::sync::mpsc::channel();
        let worker = Worker {
            links,
            stop: Arc::clone(&stop),
        };
        let thread = thread::Builder::new()
            .name("lab-emulator".into())
            .spawn(move || {
                // Fails only when `start` has panicked.
                let _ = report_thread.send(be_punctual());
                worker.run();
            })
            .map_err(Error::io("start the emulator thread"))?;
        let real_time = thread_is.recv().unwrap_or(false);
        Ok(Emulator {
            reports,
            stop,
            thread: Some(thread),
            real_time,
        })
    }

    /// What happened so far, all links and directions together.
    pub fn report(&self) -> Report {
        let mut sum = Report::default();
        for link in self.reports() {
            sum.merge(&link.to_server);
            sum.merge(&link.to_client);
        }
        sum
    }

    /// What happened so far on each link, in the order of the spans.
    pub fn reports(&self) -> Vec<LinkReport> {
        let link = |[to_server, to_client]: &[SharedReport; 2]| LinkReport {
            to_server: lock(to_server).clone(),
            to_client: lock(to_client).clone(),
        };
        self.reports.iter().map(link).collect()
    }

    /// Forgets what happened so far: a measurement begins after its connections are set up.
    pub fn reset(&self) {
        for report in self.reports.iter().flatten() {
            *lock(report) = Report::default();
        }
    }

    /// Whether the emulator runs under `SCHED_FIFO`; if not, expect late packets on a busy machine.
    pub fn is_real_time(&self) -> bool {
        self.real_time
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
    }
}

/// Asks the kernel to wake this thread in time; answers whether it got real-time priority.
fn be_punctual() -> bool {
    // 1 ns is the least; without it, timeouts of ordinary threads are rounded by 50 µs.
    let slack = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let tid = rustix::thread::gettid().as_raw_nonzero().to_string();
    let fifo = tool::run("chrt", &["--fifo", "--pid", FIFO_PRIORITY, &tid]);
    slack.is_ok() && fifo.is_ok()
}

/// One link: its devices, and the packets under way between them.
struct Link {
    client_side: SyncDevice,
    server_side: SyncDevice,
    to_server: Lane,
    to_client: Lane,
}

impl Link {
    fn new(span: &Span<'_>) -> Result<Self, Error> {
        let frame_len = usize::from(span.spec.mtu) + ETHERNET;
        let lane = |direction| Lane::new(Schedule::new(direction), frame_len);
        Ok(Link {
            client_side: tap::open(span.client_side.0, span.client_side.1, span.spec.mtu)?,
            server_side: tap::open(span.server_side.0, span.server_side.1, span.spec.mtu)?,
            to_server: lane(span.spec.to_server.clone()),
            to_client: lane(span.spec.to_client.clone()),
        })
    }

    /// Moves what can be moved; answers whether more can at once.
    fn work(&mut self) -> bool {
        let more = [
            self.to_server.collect(&self.client_side, BATCH, monotonic_ns),
            self.to_client.collect(&self.server_side, BATCH, monotonic_ns),
            self.to_server.deliver(&self.server_side, BATCH, monotonic_ns),
            self.to_client.deliver(&self.client_side, BATCH, monotonic_ns),
        ];
        more.contains(&true)
    }

    fn next_arrival(&self) -> Option<Nanos> {
        self.to_server
            .next_arrival()
            .into_iter()
            .chain(self.to_client.next_arrival())
            .min()
    }
}

/// The emulator's thread.
struct Worker {
    links: Vec<Link>,
    stop: Arc<OwnedFd>,
}

impl Worker {
    fn run(mut self) {
        loop {
            // Each link has its turn, however much another one has to do.
            let more = self.links.iter_mut().fold(false, |more, link| link.work() | more);
            if self.wait(more) {
                return;
            }
        }
    }

    /// Waits, unless there is `more` to do at once, for a packet or for an arrival to be due; answers whether
    /// to stop. The timeout is in nanoseconds: in milliseconds, every packet would be late by half of one.
    fn wait(&self, more: bool) -> bool {
        let due = if more {
            Some(0)
        } else {
            self.links.iter().filter_map(Link::next_arrival).min()
        };
        let timeout = due.map(|due| {
            let ns = due.saturating_sub(monotonic_ns());
            Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            }
        });
        let devices = self
            .links
            .iter()
            .flat_map(|link| [&link.client_side, &link.server_side]);
        let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
        fds.extend(devices.map(|device| PollFd::new(device, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            // A device in error was deleted by somebody else. It would stay ready for ever, and this thread,
            // with its priority, would take a processor for itself.
            Ok(_) => {
                fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) || !fds[0].revents().is_empty()
            }
            // Interrupted: look again.
            Err(_) => false,
        }
    }
}
