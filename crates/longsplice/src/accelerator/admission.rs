//! Decides which connections are taken over.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use longsplice_engine::{
    Distance,
    handshake::{Admission, Step},
    intercept::Way,
};
use parking_lot::Mutex;

use super::{Accelerator, PassReason, distances::Distance as KnownDistance};
use crate::config::{AccelerateConfig, EarlyAccept};

/// Time for which the numbers of interfaces are remembered.
const FRESH: Duration = Duration::from_secs(1);

/// Time after which they are read again for a number that is not among them: the interface may have been made since.
const FRESH_FOR_UNKNOWN: Duration = Duration::from_millis(100);

/// Number of measurements of each end before one leg counts as nearly all of the path: a single one may have met a queue,
/// or a radio that slept.
const MEASUREMENTS: u32 = 3;

/// Side of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Inside,
    Outside,
}

/// Knows on which side an interface is.
#[derive(Debug)]
pub(super) struct Interfaces {
    names: Vec<(String, Place)>,
    numbers: Mutex<Option<(Instant, HashMap<u32, Place>)>>,
}

impl Interfaces {
    pub(super) fn new(config: &AccelerateConfig) -> Interfaces {
        let at = |names: &[String], place| -> Vec<(String, Place)> {
            names.iter().map(|name| (name.clone(), place)).collect()
        };
        Interfaces {
            names: [
                at(&config.inside, Place::Inside),
                at(&config.outside, Place::Outside),
            ]
            .concat(),
            numbers: Mutex::default(),
        }
    }

    /// Returns the side of an interface, by its number; `None`: it is neither inside nor outside now.
    pub(super) fn place(&self, interface: u32) -> Option<Place> {
        let mut numbers = self.numbers.lock();
        let is_old = |(at, all): &(Instant, HashMap<u32, Place>)| {
            let is_known = all.contains_key(&interface);
            at.elapsed() >= if is_known { FRESH } else { FRESH_FOR_UNKNOWN }
        };
        if numbers.as_ref().is_none_or(is_old) {
            let number = |(name, place): &(String, Place)| {
                Some((nix::net::if_::if_nametoindex(name.as_str()).ok()?, *place))
            };
            *numbers = Some((Instant::now(), self.names.iter().filter_map(number).collect()));
        }
        numbers.as_ref().and_then(|(_, all)| all.get(&interface).copied())
    }
}

impl Accelerator {
    /// Decides on a connection, as far as a segment of its handshake shows; counts the reason if it is passed through.
    pub(super) fn admission(self: &Arc<Self>, step: &Step) -> Admission {
        let objection = self
            .objection(step)
            .or_else(|| (!self.has_room(step)).then_some(PassReason::Limit))
            // Ask last: a trial is one that is taken over.
            .or_else(|| {
                self.firewall
                    .objects(step.answer.is_some())
                    .then_some(PassReason::Firewall)
            });
        if let Some(reason) = objection {
            self.pass_through((step.client, step.server), reason);
            return Admission::PassThrough;
        }
        self.passed.lock().remove((step.client, step.server));
        let is_early = match self.config.early_accept {
            EarlyAccept::Never => false,
            EarlyAccept::Known => step.is_known_server,
            EarlyAccept::Always => true,
        };
        // Clients that may be forged addresses take a part of the room only.
        let may_be_early = step.answer.is_none()
            && self.early.connecting() < self.most_unconfirmed()
            && !self.firewall.is_closed();
        match is_early && may_be_early && self.early.admits() {
            true => {
                if self.holds_at(step) >= self.config.max_connections as usize {
                    self.make_room(self.class_of(step));
                }
                Admission::AnswerEarly
            }
            false => Admission::TakeOver,
        }
    }

    /// Returns whether there is room for a connection. Makes it at the answer of the server, when nothing else speaks
    /// against the connection: many a SYN is never answered.
    fn has_room(self: &Arc<Self>, step: &Step) -> bool {
        let most = self.config.max_connections as usize;
        let open = self.holds_at(step);
        // A released connection counts until its old bytes are delivered: leave some room for that.
        open < most
            || open < most + most.div_ceil(8)
                && match &step.answer {
                    None => self.can_make_room(self.class_of(step)),
                    Some(_) => self.make_room(self.class_of(step)),
                }
    }

    /// Returns the number of connections that have sockets here, as a handshake comes to this step.
    fn holds_at(&self, step: &Step) -> usize {
        self.carried.lock().len() + step.unconfirmed + self.early.connecting()
    }

    fn objection(self: &Arc<Self>, step: &Step) -> Option<PassReason> {
        if self.closing.load(Ordering::Relaxed) {
            return Some(PassReason::Shutdown);
        }
        if step.is_beyond_limit || step.unconfirmed >= self.most_unconfirmed() {
            return Some(PassReason::Limit);
        }
        if step.has_unknown_options {
            return Some(PassReason::Options);
        }
        let Some(answer) = &step.answer else {
            let of_kernel = self.objection_of_kernel(step);
            if let Some(reason) = of_kernel.or_else(|| self.objection_of_distance(step, None)) {
                return Some(reason);
            }
            if self.buffers.are_short() {
                return Some(PassReason::Memory);
            }
            let all = self.holds_at(step) + self.shared.tracker.count();
            return (!self.shared.memory.admits_taken_over(all)).then_some(PassReason::Memory);
        };
        if !self.buffers.can_gain(step.window) {
            return Some(PassReason::Buffers);
        }
        let sides = (
            self.interfaces.place(step.client_interface),
            self.interfaces.place(answer.interface),
        );
        match sides {
            (Some(one), Some(other)) if one != other => self.objection_of_distance(step, answer.round_trip),
            _ => Some(PassReason::OneSide),
        }
    }

    /// Objects to a SYN that the kernel would not forward: it is sent on as a packet of this host, which passes none of the
    /// kernel's checks of what comes in.
    fn objection_of_kernel(&self, step: &Step) -> Option<PassReason> {
        let (client, server) = (step.client.ip(), step.server.ip());
        match self.local.way(client, server, step.client_interface) {
            Way::Here => Some(PassReason::OwnAddress),
            _ if self.local.contains(client) => Some(PassReason::OwnAddress),
            Way::Nowhere => Some(PassReason::NotForwarded),
            Way::Onward => None,
        }
    }

    /// Returns how many connections may wait for their client's acknowledgement: a part of `max_connections`, since the
    /// clients may be forged addresses.
    fn most_unconfirmed(&self) -> usize {
        (self.config.max_connections as usize / 4).max(16)
    }

    /// Objects to a connection that would gain nothing, if the distances of both ends are known: by this measurement of
    /// the server's, or by those of the last minute.
    fn objection_of_distance(&self, step: &Step, to_server: Option<Duration>) -> Option<PassReason> {
        let (client, server) = {
            let (distances, now) = (self.distances.lock(), Instant::now());
            let measured = to_server.map(KnownDistance::of);
            let known = distances.of(step.server.ip(), now);
            let server = known.into_iter().chain(measured).reduce(KnownDistance::and);
            (distances.of(step.client.ip(), now)?, server?)
        };
        let thresholds = self.config.thresholds();
        // The farthest hosts decide whether the path is short.
        if thresholds.judge(client.most, server.most) == Distance::Short {
            return Some(PassReason::ShortPath);
        }
        // A congestion control of its own may make a leg faster than the ends can, whatever the distance.
        let is_one_leg = !self.config.has_congestion_control()
            && client.measurements.min(server.measurements) >= MEASUREMENTS
            && [(client.most, server.least), (client.least, server.most)]
                .iter()
                .all(|(client, server)| thresholds.judge(*client, *server) == Distance::OneLeg);
        is_one_leg.then_some(PassReason::NoGain)
    }

    /// Counts and lists a connection that is passed through.
    pub(super) fn pass_through(&self, ends: (SocketAddr, SocketAddr), reason: PassReason) {
        self.counts.passed_through(reason);
        self.passed.lock().note(ends, reason, Instant::now());
        tracing::debug!(client = %ends.0, server = %ends.1, reason = reason.as_str(), "passed through");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interface that was made a moment ago has its side, without a look at each packet of another one.
    #[test]
    fn a_new_interface_is_looked_for_soon_and_not_at_once() {
        const LOOPBACK: u32 = 1;
        let place = |read_at| {
            let interfaces = Interfaces {
                names: vec![("lo".to_owned(), Place::Inside)],
                numbers: Mutex::new(Some((read_at, HashMap::new()))),
            };
            interfaces.place(LOOPBACK)
        };
        let now = Instant::now();
        assert_eq!(place(now - FRESH_FOR_UNKNOWN), Some(Place::Inside));
        assert_eq!(place(now + FRESH), None, "they were read a moment ago");
    }
}
