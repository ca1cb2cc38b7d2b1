//! Devices, lanes and routers of an emulator, and the packets that move between them.
//!
//! A lane is one direction of a link. It begins at a device or at a router, and ends at one. A packet that comes to a
//! router goes on at its scheduled time, not at the time at which the thread gets to it: so only the arrival at a device
//! can be late.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tun_rs::SyncDevice;

use super::frame::{address_to, destination, flip};
use super::packet::{Packet, UnderWay};
use super::report::{Report, lateness_bound};
use super::schedule::{Fate, Nanos, Schedule};

/// Report of one lane, shared with the [`super::Emulator`].
pub(super) type SharedReport = Arc<Mutex<Report>>;

/// Routes of a router: the lane to each address.
pub(super) type Routes = HashMap<IpAddr, usize>;

/// End of a lane: an index among the ports or among the routers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Port(usize),
    Router(usize),
}

/// Device, and the lane that its packets enter.
pub(super) struct Port {
    pub(super) device: SyncDevice,
    pub(super) lane: usize,
    /// Address that frames get before they are delivered here; `None`: they have it already.
    pub(super) mac: Option<[u8; 6]>,
    /// Last time at which the device was seen empty: the packets that it holds now came later.
    pub(super) empty_at: Nanos,
}

impl Port {
    /// Creates the port of a device that is empty at `now`.
    pub(super) fn new(device: SyncDevice, lane: usize, mac: Option<[u8; 6]>, now: Nanos) -> Self {
        Port {
            device,
            lane,
            mac,
            empty_at: now,
        }
    }
}

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Lane {
    schedule: Schedule,
    end: End,
    /// Lateness above which a packet is counted as late.
    bound: Nanos,
    report: SharedReport,
}

impl Lane {
    /// Creates an idle direction that ends at `end`.
    pub(super) fn new(schedule: Schedule, end: End) -> Self {
        let bound = lateness_bound(schedule.spec()).as_nanos();
        Lane {
            schedule,
            end,
            bound: Nanos::try_from(bound).unwrap_or(Nanos::MAX),
            report: SharedReport::default(),
        }
    }

    /// Returns the report of this direction.
    pub(super) fn report(&self) -> SharedReport {
        Arc::clone(&self.report)
    }
}

/// Everything between the devices.
pub(super) struct Network {
    pub(super) ports: Vec<Port>,
    lanes: Vec<Lane>,
    routers: Vec<Routes>,
    under_way: UnderWay,
    /// Buffers of delivered packets, for reuse.
    spare: Vec<Vec<u8>>,
    /// Longest frame that the devices can carry.
    frame_len: usize,
}

impl Network {
    pub(super) fn new(ports: Vec<Port>, lanes: Vec<Lane>, routers: Vec<Routes>, frame_len: usize) -> Self {
        Network {
            ports,
            lanes,
            routers,
            under_way: UnderWay::default(),
            spare: Vec::new(),
            frame_len,
        }
    }

    /// Returns the lanes, in the order in which they were given.
    pub(super) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Returns the time of the next arrival.
    pub(super) fn next_arrival(&self) -> Option<Nanos> {
        self.under_way.next_arrival()
    }

    /// Takes at most `limit` packets from the device of a port, all of which came after `since`. Returns true if it may
    /// hold more.
    pub(super) fn collect(&mut self, port: usize, limit: usize, since: Nanos, clock: fn() -> Nanos) -> bool {
        let (lane, since) = (self.ports[port].lane, since.max(self.ports[port].empty_at));
        for _ in 0..limit {
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.resize(self.frame_len, 0);
            // Any error means no packet now: `WouldBlock`, or a device that was set down.
            let Ok(len) = self.ports[port].device.recv(&mut frame) else {
                self.spare.push(frame);
                self.ports[port].empty_at = clock();
                return false;
            };
            frame.truncate(len);
            let now = clock();
            self.admit(lane, now, now.saturating_sub(since), frame);
        }
        true
    }

    /// Handles at most `limit` due packets. Returns true if more are due.
    pub(super) fn deliver(&mut self, limit: usize, clock: fn() -> Nanos) -> bool {
        for _ in 0..limit {
            let now = clock();
            let Some(packet) = self.under_way.due(now) else {
                return false;
            };
            match self.lanes[packet.lane].end {
                End::Port(port) => self.arrive(port, packet, now),
                End::Router(router) => self.route(router, packet),
            }
        }
        true
    }

    /// Decides the fate of a packet that comes to a lane at `now`, and may have waited before.
    fn admit(&mut self, index: usize, now: Nanos, waited: Nanos, mut frame: Vec<u8>) {
        let lane = &mut self.lanes[index];
        let mut report = lane.report.lock();
        match lane.schedule.offer(now, frame.len()) {
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
                report.duplicated += u64::from(duplicated);
                let copy = duplicated.then(|| frame.clone());
                for (second_copy, frame) in [(false, Some(frame)), (true, copy)] {
                    let Some(frame) = frame else { continue };
                    self.under_way.push(Packet {
                        arrival: at,
                        second_copy,
                        lane: index,
                        waited,
                        frame,
                    });
                }
                return;
            }
        }
        self.spare.push(frame);
    }

    /// Hands a packet to the device that it has come to.
    fn arrive(&mut self, port: usize, mut packet: Packet, now: Nanos) {
        let (port, lane) = (&self.ports[port], &self.lanes[packet.lane]);
        if let Some(mac) = port.mac {
            address_to(&mut packet.frame, mac);
        }
        let sent = port.device.send(&packet.frame).is_ok();
        let mut report = lane.report.lock();
        if sent {
            report.arrived(now - packet.arrival + packet.waited, lane.bound);
            report.forwarded(&packet);
        } else {
            report.refused += 1;
        }
        drop(report);
        self.spare.push(packet.frame);
    }

    /// Sends a packet on from the router that it has come to.
    fn route(&mut self, router: usize, packet: Packet) {
        let next = destination(&packet.frame).and_then(|to| self.routers[router].get(&to).copied());
        let mut report = self.lanes[packet.lane].report.lock();
        let Some(next) = next else {
            report.unroutable += 1;
            drop(report);
            self.spare.push(packet.frame);
            return;
        };
        report.forwarded(&packet);
        drop(report);
        self.admit(next, packet.arrival, packet.waited, packet.frame);
    }
}
