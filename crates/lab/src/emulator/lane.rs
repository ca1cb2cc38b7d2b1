//! Packets under way in one direction, between the schedule and the devices.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use parking_lot::Mutex;
use tun_rs::SyncDevice;

use super::report::{Report, lateness_bound};
use super::schedule::{Fate, Nanos, Schedule};

/// Packet under way. Packets are ordered by arrival; those that arrive together keep their order.
#[derive(Debug)]
struct Packet {
    arrival: Nanos,
    number: u64,
    second_copy: bool,
    /// Longest time that it may have waited at the device before it was taken in: it is delivered late by that much.
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

/// State of one direction of a link.
#[derive(Debug)]
pub(super) struct Lane {
    schedule: Schedule,
    under_way: BinaryHeap<Reverse<Packet>>,
    count: u64,
    /// Buffers of delivered packets, for reuse.
    spare: Vec<Vec<u8>>,
    /// Longest frame that the devices can carry.
    frame_len: usize,
    /// Last time at which the device was seen empty: the packets that it holds now came later.
    empty_at: Nanos,
    /// Lateness above which a packet is counted as late.
    bound: Nanos,
    /// Report shared with the [`super::Emulator`]. It is locked for a batch of packets, not for each one.
    report: SharedReport,
}

/// Report of one direction, shared between threads.
pub(super) type SharedReport = Arc<Mutex<Report>>;

impl Lane {
    /// Creates an idle direction at the time `now`.
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

    /// Returns the report of this direction.
    pub(super) fn report(&self) -> SharedReport {
        Arc::clone(&self.report)
    }

    /// Returns the arrival time of the next packet.
    pub(super) fn next_arrival(&self) -> Option<Nanos> {
        self.under_way.peek().map(|Reverse(packet)| packet.arrival)
    }

    /// Notes that the device was empty at `now`.
    pub(super) fn nothing_at(&mut self, now: Nanos) {
        self.empty_at = now;
    }

    /// Takes at most `limit` packets from `device`, all of which came after `since`. Returns true if the device may
    /// hold more.
    pub(super) fn collect(
        &mut self,
        device: &SyncDevice,
        limit: usize,
        since: Nanos,
        clock: fn() -> Nanos,
    ) -> bool {
        let report = self.report();
        let mut report = report.lock();
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

    /// Decides the fate of a packet that was read at `now` and came after `since`.
    fn admit(&mut self, now: Nanos, since: Nanos, mut frame: Vec<u8>, report: &mut Report) {
        match self.schedule.offer(now, frame.len()) {
            Fate::Dropped => report.dropped += 1,
            Fate::DroppedEarly => report.dropped_early += 1,
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

    /// Delivers at most `limit` due packets to `device`. Returns true if more are due.
    pub(super) fn deliver(&mut self, device: &SyncDevice, limit: usize, clock: fn() -> Nanos) -> bool {
        let report = self.report();
        let mut report = report.lock();
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

/// Flips one bit of the packet in the frame, `bit` modulo the number of its bits. Returns false, and changes nothing,
/// for an ARP or empty packet: ARP has no checksum, so its receiver would accept the damage and the link would be dead
/// for a while.
fn flip(frame: &mut [u8], bit: u64) -> bool {
    let Some((header, payload)) = frame.split_at_mut_checked(ETHERNET_HEADER) else {
        return false;
    };
    if header[12..] == ETHERTYPE_ARP || payload.is_empty() {
        return false;
    }
    let bit = bit % (payload.len() as u64 * 8);
    payload[(bit / 8) as usize] ^= 1 << (bit % 8);
    true
}

/// Length of an Ethernet header without a VLAN tag; the laboratory uses none.
const ETHERNET_HEADER: usize = 14;
/// Ethertype of ARP: the last two bytes of the header.
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];

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
        let mut arp = [0; ETHERNET_HEADER + 28];
        arp[12..14].copy_from_slice(&ETHERTYPE_ARP);
        assert!(!flip(&mut arp, 3) && arp[ETHERNET_HEADER..].iter().all(|byte| *byte == 0));
        assert!(!flip(&mut [0; 3], 3));
    }
}
