//! Remembers how far networks are, so that a connection between near ones is not taken over only to be released.
//!
//! The round-trip time toward a server is measured by every handshake, that toward a client by those of taken-over
//! connections. A network's entry ends a minute after its first measurement; the next connection is measured again.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use ipnet::IpNet;

/// Largest number of networks that are remembered. An entry takes some 80 bytes.
const MOST: usize = 4_096;

/// Time for which a measurement counts.
const FRESH: Duration = Duration::from_secs(60);

/// Time between two measurements that count as two: those of one moment may have met the same queue.
const APART: Duration = Duration::from_secs(1);

/// Time for which a network counts as lossy after a connection with it had to be taken over for its losses.
const LOSSY: Duration = Duration::from_secs(600);

/// Lengths of the prefixes of networks whose hosts count as equally far: what is commonly the smallest routed one.
const PREFIX_V4: u8 = 24;
const PREFIX_V6: u8 = 64;

/// Round-trip times toward the hosts of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Distance {
    pub(super) least: Duration,
    pub(super) most: Duration,
    /// Number of measurements, of which each is some time after the one before.
    pub(super) measurements: u32,
}

impl Distance {
    pub(super) fn of(round_trip: Duration) -> Distance {
        Distance {
            least: round_trip,
            most: round_trip,
            measurements: 1,
        }
    }

    /// Returns the distance with those of further measurements.
    pub(super) fn and(self, other: Distance) -> Distance {
        Distance {
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            measurements: self.measurements.saturating_add(other.measurements),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Known {
    distance: Distance,
    since: Instant,
    /// Time of the last measurement that was counted.
    counted: Instant,
}

/// Distances of networks from this node.
#[derive(Debug, Default)]
pub(super) struct Distances {
    known: HashMap<IpNet, Known>,
    lossy: HashMap<IpNet, Instant>,
}

fn network(address: IpAddr) -> IpNet {
    let prefix = match address {
        IpAddr::V4(_) => PREFIX_V4,
        IpAddr::V6(_) => PREFIX_V6,
    };
    IpNet::new_assert(address, prefix).trunc()
}

impl Distances {
    /// Notes a measurement.
    pub(super) fn note(&mut self, address: IpAddr, round_trip: Duration, now: Instant) {
        let is_old = |known: &Known| now.duration_since(known.since) >= FRESH;
        let (network, distance) = (network(address), Distance::of(round_trip));
        let fresh = Known {
            distance,
            since: now,
            counted: now,
        };
        match self.known.get_mut(&network) {
            Some(known) if is_old(known) => *known = fresh,
            Some(known) => {
                let is_apart = now.duration_since(known.counted) >= APART;
                known.counted = if is_apart { now } else { known.counted };
                let measurements = u32::from(is_apart);
                known.distance = known.distance.and(Distance {
                    measurements,
                    ..distance
                });
            }
            None => {
                if self.known.len() >= MOST {
                    self.known.retain(|_, known| !is_old(known));
                }
                if self.known.len() < MOST {
                    self.known.insert(network, fresh);
                }
            }
        }
    }

    /// Notes that a connection between these ends lost so many segments that it was taken over again: the distance alone
    /// does not decide there.
    pub(super) fn note_lossy(&mut self, ends: [IpAddr; 2], now: Instant) {
        if self.lossy.len() + ends.len() > MOST {
            self.lossy.retain(|_, at| now.duration_since(*at) < LOSSY);
        }
        if self.lossy.len() + ends.len() <= MOST {
            self.lossy.extend(ends.map(|end| (network(end), now)));
        }
    }

    /// Returns the distance of an address, if its network was measured lately and is not known to lose
    /// segments.
    pub(super) fn of(&self, address: IpAddr, now: Instant) -> Option<Distance> {
        let network = network(address);
        let lossy = self.lossy.get(&network);
        if lossy.is_some_and(|at| now.duration_since(*at) < LOSSY) {
            return None;
        }
        let known = self.known.get(&network)?;
        (now.duration_since(known.since) < FRESH).then_some(known.distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_is_as_far_as_its_hosts_for_a_minute() {
        let (mut distances, start) = (Distances::default(), Instant::now());
        distances.note(address("198.18.1.1"), 2 * MS, start);
        distances.note(address("198.18.1.9"), MS, start + FRESH / 2);
        distances.note(address("198.18.1.7"), 3 * MS, start + FRESH / 2 + APART / 2);
        distances.note(address("2001:db8:1::1"), 5 * MS, start);
        let whole = |distances: &Distances, text: &str, at| distances.of(address(text), at);
        let all = Distance {
            least: MS,
            most: 3 * MS,
            // Two of them may have met the same queue.
            measurements: 2,
        };
        assert_eq!(whole(&distances, "198.18.1.200", start + FRESH / 2), Some(all));
        let of = |distances: &Distances, text: &str, at| Some(whole(distances, text, at)?.most);
        assert_eq!(of(&distances, "198.18.2.1", start), None);
        assert_eq!(of(&distances, "2001:db8:1::ffff", start), Some(5 * MS));
        assert_eq!(
            of(&distances, "198.18.1.1", start + FRESH),
            None,
            "measured again"
        );
        distances.note(address("198.18.1.1"), MS, start + FRESH);
        assert_eq!(of(&distances, "198.18.1.1", start + FRESH), Some(MS));
    }

    #[test]
    fn a_lossy_network_has_no_distance() {
        let (mut distances, start) = (Distances::default(), Instant::now());
        let ends = [address("198.18.1.1"), address("198.18.2.1")];
        ends.iter().for_each(|end| distances.note(*end, MS, start));
        distances.note_lossy(ends, start);
        assert_eq!(ends.map(|end| distances.of(end, start)), [None, None]);
        let later = start + LOSSY;
        distances.note(ends[0], MS, later);
        assert_eq!(distances.of(ends[0], later), Some(Distance::of(MS)));
    }

    #[test]
    fn the_number_of_networks_is_limited() {
        let (mut distances, start) = (Distances::default(), Instant::now());
        let nth = |n: usize| IpAddr::from([198, (n >> 8) as u8, n as u8, 1]);
        for n in 0..=MOST {
            distances.note(nth(n), MS, start);
            distances.note_lossy([nth(n), nth(n)], start);
        }
        assert_eq!(
            (distances.known.len(), distances.of(nth(MOST), start)),
            (MOST, None)
        );
        assert!(distances.lossy.len() <= MOST);
        distances.note(nth(MOST), MS, start + FRESH);
        assert_eq!(distances.known.len(), 1, "old ones have gone");
    }
}
