//! Emulator thread: visits the devices that have packets, delivers what is due, and sleeps until there is more to do.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use super::network::Network;
use super::schedule::Nanos;
use crate::{Error, monotonic_ns, tool};

/// Number of packets taken from one device, and of those delivered, before others have their turn.
const BATCH: usize = 64;

/// Longest sleep of the thread while there is traffic. A thread that wakes too late notices it by the packets that
/// are overdue; this bound makes it notice a packet that waits at a device of a link without delay, too, on which no
/// packet is ever due.
const HEARTBEAT: Nanos = 1_000_000;

/// Time after a packet for which traffic is assumed.
const ACTIVE: Nanos = 100_000_000;

/// Priority of the thread. The lowest real-time priorities are above every ordinary thread, which is enough.
const FIFO_PRIORITY: &str = "10";

/// Mark of the descriptor that ends the thread, among the indices of ports.
const STOP: u64 = u64::MAX;

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

/// State of the emulator thread.
pub(super) struct Worker {
    network: Network,
    /// Descriptor that becomes readable to end the thread; `events` refers to it.
    _stop: Arc<OwnedFd>,
    /// Readiness of all devices.
    events: OwnedFd,
    /// For each port, true if its device has packets.
    ready: Vec<bool>,
    /// Time until which traffic is assumed.
    active_until: Nanos,
}

/// State of the devices when the thread woke.
struct Awake {
    now: Nanos,
    /// Earliest time at which the packets at the devices can have come: an earlier one would have ended the
    /// sleep.
    since: Nanos,
}

impl Worker {
    /// Creates the state of a thread that ends when `stop` becomes readable.
    pub(super) fn new(network: Network, stop: Arc<OwnedFd>) -> Result<Self, Error> {
        let failed = |errno: Errno| Error::io("watch the devices")(errno.into());
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&events, &stop, epoll::EventData::new_u64(STOP), readable).map_err(failed)?;
        for (n, port) in network.ports.iter().enumerate() {
            let data = epoll::EventData::new_u64(n as u64);
            epoll::add(&events, &port.device, data, readable).map_err(failed)?;
        }
        Ok(Worker {
            ready: vec![false; network.ports.len()],
            network,
            _stop: stop,
            events,
            active_until: 0,
        })
    }

    pub(super) fn run(mut self) {
        let mut more = false;
        while let Some(awake) = self.wait(more) {
            if self.ready.contains(&true) {
                self.active_until = awake.now + ACTIVE;
            }
            more = self.network.deliver(BATCH, monotonic_ns);
            // Each device has its turn, however much work another one makes.
            for port in 0..self.ready.len() {
                if self.ready[port] {
                    more |= self.network.collect(port, BATCH, awake.since, monotonic_ns);
                    more |= self.network.deliver(BATCH, monotonic_ns);
                } else {
                    self.network.ports[port].empty_at = awake.now;
                }
            }
        }
    }

    /// Returns the latest end of a sleep that begins at `now`; `None` for an unbounded sleep.
    fn deadline(&self, now: Nanos) -> Option<Nanos> {
        let heartbeat = (now < self.active_until).then_some(now + HEARTBEAT);
        self.network.next_arrival().into_iter().chain(heartbeat).min()
    }

    /// Waits for a packet or until an arrival is due, and notes which devices are ready; returns at once if there is
    /// `more` to do. Returns `None` to stop.
    fn wait(&mut self, more: bool) -> Option<Awake> {
        let asleep = monotonic_ns();
        let deadline = if more { Some(asleep) } else { self.deadline(asleep) };
        let timeout = deadline.map(|deadline| {
            let ns = deadline.saturating_sub(asleep);
            Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            }
        });
        // Sleep in poll(2), whose timeout is in nanoseconds: epoll_wait(2) has one in milliseconds, which would make
        // every packet late by half of one.
        let interrupted = poll(&mut [PollFd::new(&self.events, PollFlags::IN)], timeout.as_ref()).is_err();
        let now = monotonic_ns();
        // An interrupted poll says nothing of the devices: visit all of them.
        self.ready.fill(interrupted);
        if !self.note_ready() {
            return None;
        }
        Some(Awake {
            now,
            // Without a sleep, these packets may have come at any time since the device was last visited.
            since: match deadline {
                _ if more || interrupted => 0,
                Some(deadline) => deadline.min(now),
                None => now,
            },
        })
    }

    /// Notes which devices have packets. Returns false to stop: on request, and when a device is in error because it was
    /// deleted from outside. It would stay ready for ever, and this thread, with its priority, would take a processor for
    /// itself.
    fn note_ready(&mut self) -> bool {
        let mut events = Vec::with_capacity(self.ready.len() + 1);
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if epoll::wait(
            &self.events,
            rustix::buffer::spare_capacity(&mut events),
            Some(&now),
        )
        .is_err()
        {
            return true;
        }
        for event in events {
            // Copy the fields of a packed structure.
            let (flags, data) = (event.flags, event.data);
            match usize::try_from(data.u64()) {
                Ok(port) if port < self.ready.len() && !flags.contains(epoll::EventFlags::ERR) => {
                    self.ready[port] = true;
                }
                _ => return false,
            }
        }
        true
    }
}
