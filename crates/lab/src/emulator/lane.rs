//! The packets under way in one direction, between the schedule and the devices.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tun_rs::SyncDevice;

use super::report::{Report, lateness_bound};
use super::schedule::{Fate, Nanos, Schedule};

/// A packet under way. Ordered by its arrival; packets that arrive together keep their order.
#[derive(Debug)]
struct Packet {
    arrival: Nanos,
    number: u64,
    second_copy: bool,
    /// For how long, at most, it had waited at the device before it was taken in: it will be late by that.
    waited: Nanos,
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
    /// When the device was last seen to have nothing: what it has now came later.
    empty_at: Nanos,
    /// A packet that comes later than it should by more than this is late.
    bound: Nanos,
    /// Shared with the [`super::Emulator`]. Locked for a batch of packets, not for each.
    report: SharedReport,
}

/// What happened so far in one direction.
pub(super) type SharedReport = Arc<Mutex<Report>>;

pub(super) fn lock(report: &SharedReport) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    /// A direction at rest, `now`.
    pub(super) fn new(schedule: Schedule, frame_len: usize, now: Nanos) -> Self {
        let bound = lateness_bound(schedule.spec()).as_nanos();
        Lane {
            schedule,
            under_way: BinaryHeap::new(),
            count: 0,
            spare: Vec::new(),
            frame_len,
            empty_at: now,
            bound: Nanos::try_from(bound).unwrap_or(Nanos::MAX),
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

    /// The device was seen to have nothing.
    pub(super) fn nothing_at(&mut self, now: Nanos) {
        self.empty_at = now;
    }

    /// Takes at most `limit` packets from `device`, none of which came before `since`; answers whether there may
    /// be more.
    pub(super) fn collect(
        &mut self,
        device: &SyncDevice,
        limit: usize,
        since: Nanos,
        clock: fn() -> Nanos,
    ) -> bool {
        let report = self.report();
        let mut report = lock(&report);
        let since = since.max(self.empty_at);
        for _ in 0..limit {
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.resize(self.frame_len, 0);
            // Any error means no packet now: `WouldBlock`, or a device that was set down.
            let Ok(len) = device.recv(&mut frame) else {
                self.spare.push(frame);
                self.empty_at = clock();
                return false;
            };
            frame.truncate(len);
            self.admit(clock(), since, frame, &mut report);
        }
        true
    }

    /// Decides about a packet that is here `now`, and came after `since`.
    fn admit(&mut self, now: Nanos, since: Nanos, mut frame: Vec<u8>, report: &mut Report) {
        match self.schedule.offer(now, frame.len()) {
            Fate::Dropped => report.dropped += 1,
            Fate::Lost => report.lost += 1,
            Fate::Delivered {
                at,
                reordered,
                duplicated,
                corrupted,
            } => {
                report.reordered += u64::from(reordered);
                report.corrupted += u64::from(corrupted.is_some_and(|bit| flip(&mut frame, bit)));
                let packet = Packet {
                    arrival: at,
                    number: self.count,
                    second_copy: false,
                    waited: now.saturating_sub(since),
                    frame,
                };
                if duplicated {
                    report.duplicated += 1;
                    self.under_way.push(Reverse(Packet {
                        second_copy: true,
                        frame: packet.frame.clone(),
                        ..packet
                    }));
                }
                self.under_way.push(Reverse(packet));
                self.count += 1;
                return;
            }
        }
        self.spare.push(frame);
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
                    report.arrived(now - packet.arrival + packet.waited, self.bound);
                    report.forwarded += u64::from(!packet.second_copy);
                }
                Err(_) => report.refused += 1,
            }
            self.spare.push(packet.frame);
        }
        true
    }
}

/// Changes a bit of what the frame carries, this one modulo their number; answers whether it carries anything.
fn flip(frame: &mut [u8], bit: u64) -> bool {
    let Some(payload) = frame
        .get_mut(ETHERNET_HEADER..)
        .filter(|payload| !payload.is_empty())
    else {
        return false;
    };
    let bit = bit % (payload.len() as u64 * 8);
    payload[(bit / 8) as usize] ^= 1 << (bit % 8);
    true
}

/// Without a VLAN tag, which the laboratory does not use.
const ETHERNET_HEADER: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_behind_the_ethernet_header_is_flipped() {
        for bit in [0, 7, 8, 799, 800, u64::MAX] {
            let mut frame = [0; ETHERNET_HEADER + 100];
            assert!(flip(&mut frame, bit));
            assert!(frame[..ETHERNET_HEADER].iter().all(|byte| *byte == 0));
            let ones: u32 = frame.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(ones, 1, "{bit}");
        }
        assert!(!flip(&mut [0; ETHERNET_HEADER], 3), "nothing to change");
        assert!(!flip(&mut [0; 3], 3));
    }
}
