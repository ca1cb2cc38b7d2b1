//! The packets under way in one direction, between the schedule and the devices.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tun_rs::SyncDevice;

use super::report::Report;
use super::schedule::{Fate, Nanos, Schedule};

/// A packet under way. Ordered by its arrival; packets that arrive together keep their order.
#[derive(Debug)]
struct Packet {
    arrival: Nanos,
    number: u64,
    second_copy: bool,
    frame: Vec<u8>,
}

impl Packet {
    fn key(&self) -> (Nanos, u64, bool) {
        (self.arrival, self.number, self.second_copy)
    }
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Packet {}

impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Packet {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// One direction of a link at work.
#[derive(Debug)]
pub(super) struct Lane {
    schedule: Schedule,
    under_way: BinaryHeap<Reverse<Packet>>,
    count: u64,
    /// Buffers of packets that have arrived, for the next ones.
    spare: Vec<Vec<u8>>,
    /// The longest frame that the devices can carry.
    frame_len: usize,
    /// Shared with the [`super::Emulator`]. Locked for a batch of packets, not for each.
    report: SharedReport,
}

/// What happened so far in one direction.
pub(super) type SharedReport = Arc<Mutex<Report>>;

pub(super) fn lock(report: &SharedReport) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    pub(super) fn new(schedule: Schedule, frame_len: usize) -> Self {
        Lane {
            schedule,
            under_way: BinaryHeap::new(),
            count: 0,
            spare: Vec::new(),
            frame_len,
            report: SharedReport::default(),
        }
    }

    /// Where this direction keeps its report.
    pub(super) fn report(&self) -> SharedReport {
        Arc::clone(&self.report)
    }

    /// When the next packet is to arrive.
    pub(super) fn next_arrival(&self) -> Option<Nanos> {
        self.under_way.peek().map(|Reverse(packet)| packet.arrival)
    }

    /// Takes at most `limit` packets from `device`; answers whether there may be more.
    pub(super) fn collect(&mut self, device: &SyncDevice, limit: usize, clock: fn() -> Nanos) -> bool {
        let report = self.report();
        let mut report = lock(&report);
        for _ in 0..limit {
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.resize(self.frame_len, 0);
            // Any error means no packet now: `WouldBlock`, or a device that was set down.
            let Ok(len) = device.recv(&mut frame) else {
                self.spare.push(frame);
                return false;
            };
            frame.truncate(len);
            self.admit(clock(), frame, &mut report);
        }
        true
    }

    fn admit(&mut self, now: Nanos, frame: Vec<u8>, report: &mut Report) {
        match self.schedule.offer(now, frame.len()) {
            Fate::Dropped => report.dropped += 1,
            Fate::Lost => report.lost += 1,
            Fate::Delivered {
                at,
                reordered,
                duplicated,
            } => {
                report.reordered += u64::from(reordered);
                if duplicated {
                    report.duplicated += 1;
                    self.push(at, true, frame.clone());
                }
                self.push(at, false, frame);
                self.count += 1;
                return;
            }
        }
        self.spare.push(frame);
    }

    fn push(&mut self, arrival: Nanos, second_copy: bool, frame: Vec<u8>) {
        let number = self.count;
        self.under_way.push(Reverse(Packet {
            arrival,
            number,
            second_copy,
            frame,
        }));
    }

    /// Delivers to `device` what is due, at most `limit` packets; answers whether more is due.
    pub(super) fn deliver(&mut self, device: &SyncDevice, limit: usize, clock: fn() -> Nanos) -> bool {
        let report = self.report();
        let mut report = lock(&report);
        for _ in 0..limit {
            let now = clock();
            if self.next_arrival().is_none_or(|arrival| arrival > now) {
                return false;
            }
            let Some(Reverse(packet)) = self.under_way.pop() else {
                return false;
            };
            match device.send(&packet.frame) {
                Ok(_) => {
                    report.lateness.add(now - packet.arrival);
                    report.forwarded += u64::from(!packet.second_copy);
                }
                Err(_) => report.refused += 1,
            }
            self.spare.push(packet.frame);
        }
        true
    }
}
