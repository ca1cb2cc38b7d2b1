//! The emulator's thread: it looks at all devices in turn, and sleeps until a packet comes or is due.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::SyncDevice;

use super::lane::Lane;
use super::schedule::{Nanos, Schedule};
use super::{Span, tap};
use crate::{Error, monotonic_ns, tool};

/// How many packets are moved in one direction before the others have their turn.
const BATCH: usize = 64;

/// While there is traffic the thread sleeps no longer than this at a time. That it wakes too late is seen by what
/// it finds overdue; so a packet that waits at a device is noticed to have waited, even on a link without delay,
/// on which nothing is ever due.
const HEARTBEAT: Nanos = 1_000_000;

/// For how long there is traffic after a packet.
const ACTIVE: Nanos = 100_000_000;

/// The lowest real-time priorities are above every ordinary thread, and that is all that is needed.
const FIFO_PRIORITY: &str = "10";

/// Bytes of an Ethernet header, with room for a VLAN tag.
const ETHERNET: usize = 14 + 4;

/// Asks the kernel to wake this thread in time; answers why it did not get real-time priority, if so.
pub(super) fn be_punctual() -> Option<String> {
    // 1 ns is the least; without it, timeouts of ordinary threads are rounded by 50 µs.
    let slack = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let tid = rustix::thread::gettid().as_raw_nonzero().to_string();
    match tool::run("chrt", &["--fifo", "--pid", FIFO_PRIORITY, &tid]) {
        Ok(()) => slack
            .err()
            .map(|errno| format!("cannot set the timer slack: {errno}")),
        Err(error) => Some(error.to_string()),
    }
}

/// One link: its devices, and the packets under way between them.
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

    /// Moves what can be moved; answers whether more can at once.
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

/// What the thread found when it woke.
struct Awake {
    now: Nanos,
    /// What is found at the devices came no earlier: had it come before, it would have ended the sleep.
    since: Nanos,
    /// For each link, whether the devices of its sides have packets.
    ready: Vec<[bool; 2]>,
}

/// The emulator's thread.
pub(super) struct Worker {
    links: Vec<Link>,
    stop: Arc<OwnedFd>,
    /// Until when there is traffic.
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
            // Each link has its turn, however much another one has to do.
            let turns = self.links.iter_mut().zip(&awake.ready);
            more = turns.fold(false, |more, (link, ready)| link.work(&awake, *ready) | more);
        }
    }

    /// When the sleep that begins `now` ends at the latest, if ever.
    fn deadline(&self, now: Nanos) -> Option<Nanos> {
        let due = self.links.iter().filter_map(Link::next_arrival).min();
        let heartbeat = (now < self.active_until).then_some(now + HEARTBEAT);
        due.into_iter().chain(heartbeat).min()
    }

    /// Waits, unless there is `more` to do at once, for a packet or for an arrival to be due; `None`: to stop. The
    /// timeout is in nanoseconds: in milliseconds, every packet would be late by half of one.
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
        // Nothing is known then: it looks.
        let ready = |fd| interrupted || is(fd, PollFlags::IN);
        // A device in error was deleted by somebody else. It would stay ready for ever, and this thread, with its
        // priority, would take a processor for itself.
        if is(&fds[0], PollFlags::IN) || fds.iter().any(|fd| is(fd, PollFlags::ERR)) {
            return None;
        }
        let sides = fds[1..].chunks_exact(2);
        Some(Awake {
            now,
            // Without a sleep, what is here may have come at any time since the device was last looked at.
            since: match deadline {
                _ if more || interrupted => 0,
                Some(deadline) => deadline.min(now),
                None => now,
            },
            ready: sides.map(|side| [ready(&side[0]), ready(&side[1])]).collect(),
        })
    }
}
