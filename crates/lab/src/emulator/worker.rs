//! Emulator thread: visits all devices in turn, and sleeps until a packet comes or is due.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::SyncDevice;

use super::lane::Lane;
use super::schedule::{Nanos, Schedule};
use super::{Span, tap};
use crate::{Error, monotonic_ns, tool};

/// Number of packets moved in one direction before the others have their turn.
const BATCH: usize = 64;

/// Longest sleep of the thread while there is traffic. A thread that wakes too late notices it by the packets that
/// are overdue; this bound makes it notice a packet that waits at a device of a link without delay, too, on which no
/// packet is ever due.
const HEARTBEAT: Nanos = 1_000_000;

/// Time after a packet for which traffic is assumed.
const ACTIVE: Nanos = 100_000_000;

/// Priority of the thread. The lowest real-time priorities are above every ordinary thread, which is enough.
const FIFO_PRIORITY: &str = "10";

/// Bytes of an Ethernet header, with room for a VLAN tag.
const ETHERNET: usize = 14 + 4;

/// Asks the kernel to wake this thread in time. Returns the reason if it got no real-time priority.
pub(super) fn be_punctual() -> Option<String> {
    // 1 ns is the least; by default, timeouts of ordinary threads are rounded by 50 µs.
    let slack = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let tid = rustix::thread::gettid().as_raw_nonzero().to_string();
    match tool::run("chrt", &["--fifo", "--pid", FIFO_PRIORITY, &tid]) {
        Ok(()) => slack
            .err()
            .map(|errno| format!("cannot set the timer slack: {errno}")),
        Err(error) => Some(error.to_string()),
    }
}

/// Link: its devices, and the packets under way between them.
pub(super) struct Link {
    client_side: SyncDevice,
    server_side: SyncDevice,
    pub(super) to_server: Lane,
    pub(super) to_client: Lane,
}

impl Link {
    pub(super) fn new(span: &Span<'_>) -> Result<Self, Error> {
        span.spec.check()?;
        let now = monotonic_ns();
        let frame_len = usize::from(span.spec.mtu) + ETHERNET;
        let lane = |direction| Lane::new(Schedule::new(direction), frame_len, now);
        Ok(Link {
            client_side: tap::open(span.client_side.0, span.client_side.1, span.spec.mtu)?,
            server_side: tap::open(span.server_side.0, span.server_side.1, span.spec.mtu)?,
            to_server: lane(span.spec.to_server.clone()),
            to_client: lane(span.spec.to_client.clone()),
        })
    }

    /// Moves all packets that can be moved. Returns true if there is more to do at once.
    fn work(&mut self, awake: &Awake, ready: [bool; 2]) -> bool {
        let mut more = false;
        for (lane, device, ready) in [
            (&mut self.to_server, &self.client_side, ready[0]),
            (&mut self.to_client, &self.server_side, ready[1]),
        ] {
            if ready {
                more |= lane.collect(device, BATCH, awake.since, monotonic_ns);
            } else {
                lane.nothing_at(awake.now);
            }
        }
        more |= self.to_server.deliver(&self.server_side, BATCH, monotonic_ns);
        more | self.to_client.deliver(&self.client_side, BATCH, monotonic_ns)
    }

    fn next_arrival(&self) -> Option<Nanos> {
        self.to_server
            .next_arrival()
            .into_iter()
            .chain(self.to_client.next_arrival())
            .min()
    }
}

/// State of the devices when the thread woke.
struct Awake {
    now: Nanos,
    /// Earliest time at which the packets at the devices can have come: an earlier one would have ended the
    /// sleep.
    since: Nanos,
    /// For each link, true for the sides whose devices have packets.
    ready: Vec<[bool; 2]>,
}

/// State of the emulator thread.
pub(super) struct Worker {
    links: Vec<Link>,
    stop: Arc<OwnedFd>,
    /// Time until which traffic is assumed.
    active_until: Nanos,
}

impl Worker {
    pub(super) fn new(links: Vec<Link>, stop: Arc<OwnedFd>) -> Self {
        Worker {
            links,
            stop,
            active_until: 0,
        }
    }

    pub(super) fn run(mut self) {
        let mut more = false;
        while let Some(awake) = self.wait(more) {
            if awake.ready.as_flattened().contains(&true) {
                self.active_until = awake.now + ACTIVE;
            }
            // Each link has its turn, however much work another one has.
            let turns = self.links.iter_mut().zip(&awake.ready);
            more = turns.fold(false, |more, (link, ready)| link.work(&awake, *ready) | more);
        }
    }

    /// Returns the latest end of a sleep that begins at `now`; `None` for an unbounded sleep.
    fn deadline(&self, now: Nanos) -> Option<Nanos> {
        let due = self.links.iter().filter_map(Link::next_arrival).min();
        let heartbeat = (now < self.active_until).then_some(now + HEARTBEAT);
        due.into_iter().chain(heartbeat).min()
    }

    /// Waits for a packet or until an arrival is due; returns at once if there is `more` to do. Returns `None` to stop.
    /// The timeout is in nanoseconds: one in milliseconds would make every packet late by half of one.
    fn wait(&self, more: bool) -> Option<Awake> {
        let asleep = monotonic_ns();
        let deadline = if more { Some(asleep) } else { self.deadline(asleep) };
        let timeout = deadline.map(|deadline| {
            let ns = deadline.saturating_sub(asleep);
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
        let interrupted = poll(&mut fds, timeout.as_ref()).is_err();
        let now = monotonic_ns();
        let is = |fd: &PollFd<'_>, flag| !interrupted && fd.revents().contains(flag);
        // An interrupted poll says nothing of the devices: visit all of them.
        let ready = |fd| interrupted || is(fd, PollFlags::IN);
        // A device in error was deleted from outside. It would stay ready for ever, and this thread, with its
        // priority, would take a processor for itself.
        if is(&fds[0], PollFlags::IN) || fds.iter().any(|fd| is(fd, PollFlags::ERR)) {
            return None;
        }
        let sides = fds[1..].chunks_exact(2);
        Some(Awake {
            now,
            // Without a sleep, these packets may have come at any time since the device was last visited.
            since: match deadline {
                _ if more || interrupted => 0,
                Some(deadline) => deadline.min(now),
                None => now,
            },
            ready: sides.map(|side| [ready(&side[0]), ready(&side[1])]).collect(),
        })
    }
}
