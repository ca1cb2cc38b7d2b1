//! Description of an emulated link: its effect on the packets that pass it.
//!
//! A [`LinkSpec`] is written as text on a command line, and reports show the same text, its seeds included, so that a
//! run can be repeated: see [`LinkSpec`] for the syntax.

mod error;
mod preset;
mod text;
mod units;

use std::time::Duration;

pub use error::LinkError;
pub use preset::{PRESETS, Preset};

use crate::random::mix;

/// Syntax of a [`LinkSpec`]'s text, in words.
pub const SYNTAX: &str = include_str!("syntax.txt");

/// Limit of the queue in front of a link with a rate. A packet that finds no room is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// At most so many bytes wait, the packet that is being sent included.
    Bytes(u64),
    /// At most so many packets wait, the one that is being sent included.
    Packets(usize),
    /// At most as many bytes wait as the rate sends in this time, and at least one full frame.
    Time(Duration),
}

/// Random early detection (Floyd and Jacobson, 1993): packets are dropped at random while the average length of the queue
/// is above a threshold. Thresholds are shares, 0 to 1, of the queue's limit, in its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Red {
    /// Average below which no packet is dropped.
    pub min: f64,
    /// Average at which the probability of a drop is `probability`; from here it rises to 1 at twice this average
    /// (gentle RED).
    pub max: f64,
    /// Probability of a drop at `max`, 0 to 1.
    pub probability: f64,
}

impl Default for Red {
    /// Returns the usual thresholds of ns-2: 5 and 15 packets of a queue of 50, and one drop in ten.
    fn default() -> Self {
        Red {
            min: 0.1,
            max: 0.3,
            probability: 0.1,
        }
    }
}

/// Distribution of the jitter around the delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribution {
    /// Uniform, between `delay - jitter` and `delay + jitter`.
    #[default]
    Uniform,
    /// Normal; `jitter` is the standard deviation.
    Normal,
}

/// Losses that come in bursts: the model of Gilbert and Elliott, as in netem's `loss gemodel`.
///
/// The link is in a good or in a bad state. A packet is lost with the probability of the state that it meets, then
/// the state may change. The mean length of a bad time is `1 / leave` packets; over a long time the share `enter /
/// (enter + leave)` of all packets meets the bad state. All four are probabilities, 0 to 1. Other than in netem, 100 ms
/// without a packet end a bad time (unless `leave` is 0): a lone sender's retransmissions would otherwise be lost for
/// half a minute now and then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Burst {
    /// Probability that a good state turns bad (netem's `p`).
    pub enter: f64,
    /// Probability that a bad state turns good (netem's `r`).
    pub leave: f64,
    /// Probability that a packet is lost in the bad state (netem's `1-h`).
    pub loss_bad: f64,
    /// Probability that a packet is lost in the good state (netem's `1-k`).
    pub loss_good: f64,
}

impl Burst {
    /// Creates bursts in which every packet is lost, with times between them in which none is.
    pub fn new(enter: f64, leave: f64) -> Self {
        Burst {
            enter,
            leave,
            loss_bad: 1.0,
            loss_good: 0.0,
        }
    }
}

/// One direction of a link. The default is a wire: no delay, no loss, no limit.
///
/// A packet first waits in the queue for its turn at the `rate`; then the wire may lose it, damage it, delay it, hold
/// it back (`reorder`) or deliver it twice (`duplicate`). A lost packet has used the link's capacity, a dropped one
/// has not. Jitter changes the order of packets only under `jitter_reorders`; otherwise a packet waits for the one
/// before it, which makes the mean delay a little longer than `delay`.
#[derive(Debug, Clone, PartialEq)]
pub struct Direction {
    /// Propagation delay, one way.
    pub delay: Duration,
    /// Range of the difference of a packet's delay, see [`Distribution`]. Every packet arrives after it was sent: a
    /// jitter larger than the delay is cut off there.
    pub jitter: Duration,
    /// Distribution of the jitter.
    pub distribution: Distribution,
    /// True if packets may overtake each other by their jitter.
    pub jitter_reorders: bool,
    /// Probability, 0 to 1, that a packet is lost on the wire; independent for each packet.
    pub loss: f64,
    /// Losses in bursts, in addition to `loss`.
    pub burst: Option<Burst>,
    /// Probability, 0 to 1, that a packet is held back by `reorder_delay` while later ones pass.
    pub reorder: f64,
    /// Time for which a reordered packet is held back.
    pub reorder_delay: Duration,
    /// Size of a group of packets of which only the last one may be held back; 0 and 1 mean each. With a `reorder` of 1
    /// exactly one packet of each group is.
    pub reorder_gap: u32,
    /// Probability, 0 to 1, that a packet is delivered twice.
    pub duplicate: f64,
    /// Probability, 0 to 1, that one bit of an IP packet, behind its Ethernet header, is flipped. Its checksums stay as
    /// they are.
    pub corrupt: f64,
    /// Rate in bit/s, counted over whole Ethernet frames without checksum and preamble; `None`: unlimited.
    pub rate: Option<u64>,
    /// Queue; without a `rate` it stays empty.
    pub queue: Queue,
    /// Random early detection in front of the queue; `None`: drop-tail.
    pub red: Option<Red>,
    /// Seed: it alone decides the random events of the n-th packet, whatever the other fields are.
    pub seed: u64,
}

impl Default for Direction {
    fn default() -> Self {
        Direction {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            distribution: Distribution::Uniform,
            jitter_reorders: false,
            loss: 0.0,
            burst: None,
            reorder: 0.0,
            reorder_delay: Duration::from_millis(5),
            reorder_gap: 1,
            duplicate: 0.0,
            corrupt: 0.0,
            rate: None,
            queue: Queue::Packets(1000),
            red: None,
            seed: 1,
        }
    }
}

impl Direction {
    /// Checks that all fields are in their ranges.
    ///
    /// # Errors
    /// [`LinkError::OutOfRange`] for a probability below 0 or above 1, a rate of 0, a queue without room, or thresholds of
    /// RED that do not grow.
    pub fn check(&self) -> Result<(), LinkError> {
        let burst = self.burst.unwrap_or(Burst::new(0.0, 1.0));
        let probabilities = [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("dup", self.duplicate),
            ("corrupt", self.corrupt),
            ("burst", burst.enter),
            ("burst", burst.leave),
            ("burst", burst.loss_bad),
            ("burst", burst.loss_good),
        ];
        if let Some((option, value)) = probabilities.iter().find(|(_, p)| !(0.0..=1.0).contains(p)) {
            return Err(LinkError::out_of_range(option, value));
        }
        if self.rate == Some(0) {
            return Err(LinkError::out_of_range("rate", &0));
        }
        if let Some(red) = self.red {
            let Red {
                min,
                max,
                probability,
            } = red;
            let is_share = |value| (0.0..=1.0).contains(&value);
            if !(is_share(min) && is_share(max) && min < max && is_share(probability)) {
                let value = format!("{min}:{max}:{probability}");
                return Err(LinkError::out_of_range("red", &value));
            }
        }
        match self.queue {
            Queue::Bytes(0) | Queue::Packets(0) | Queue::Time(Duration::ZERO) => {
                Err(LinkError::out_of_range("queue", &0))
            }
            _ => Ok(()),
        }
    }
}

/// Link with its two directions, named after the destination of the packets.
///
/// Its text, with the presets of [`PRESETS`]:
#[doc = concat!("```text\n", include_str!("syntax.txt"), "```")]
///
/// `Display` shows what `FromStr` reads: `20ms,100Mbit,loss=0.5%,seed=7`. The seed is always shown.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// Direction from the client's side to the server's.
    pub to_server: Direction,
    /// Direction from the server's side to the client's.
    pub to_client: Direction,
    /// MTU of the devices at both ends, in bytes.
    pub mtu: u16,
}

impl Default for LinkSpec {
    fn default() -> Self {
        LinkSpec::symmetric(Direction::default())
    }
}

impl LinkSpec {
    /// Creates a link with the same properties in both directions, each with a seed of its own.
    pub fn symmetric(direction: Direction) -> Self {
        let back = Direction {
            seed: seed_of_the_way_back(direction.seed),
            ..direction.clone()
        };
        LinkSpec {
            to_server: direction,
            to_client: back,
            mtu: 1500,
        }
    }

    /// Creates a link with nothing but `delay` each way.
    pub fn delay(delay: Duration) -> Self {
        LinkSpec::symmetric(Direction {
            delay,
            ..Direction::default()
        })
    }

    /// Returns the link with other seeds: `seed` to the server, and one derived from it to the client.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.to_server.seed = seed;
        self.to_client.seed = seed_of_the_way_back(seed);
        self
    }

    /// Gives `links` seeds of their own where several have the same one: two links that are alike would lose the same
    /// packets.
    pub fn tell_apart<'a>(links: impl IntoIterator<Item = &'a mut LinkSpec>) {
        let mut taken = Vec::new();
        for link in links {
            let mut seed = link.to_server.seed;
            while taken.contains(&seed) {
                seed = mix(seed);
            }
            if seed != link.to_server.seed {
                *link = link.clone().with_seed(seed);
            }
            taken.push(seed);
        }
    }

    /// Checks that all fields of both directions are in their ranges.
    ///
    /// # Errors
    /// Those of [`Direction::check`]; [`LinkError::OutOfRange`] for an MTU below the least one of IPv4.
    pub fn check(&self) -> Result<(), LinkError> {
        if self.mtu < MIN_MTU {
            return Err(LinkError::out_of_range("mtu", &self.mtu));
        }
        self.to_server.check()?;
        self.to_client.check()
    }
}

/// Least MTU of IPv4 (RFC 791); the kernel enforces it, too.
const MIN_MTU: u16 = 68;

/// Derives a seed by an arbitrary constant, so that consecutive seeds given by a caller differ from the derived
/// ones.
fn seed_of_the_way_back(seed: u64) -> u64 {
    seed ^ 0x9e37_79b9_7f4a_7c15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_with_the_same_seed_are_told_apart_and_others_left_alone() {
        let mut links = [
            LinkSpec::default(),
            LinkSpec::default(),
            LinkSpec::default().with_seed(9),
            LinkSpec::default(),
        ];
        LinkSpec::tell_apart(&mut links);
        let seeds: Vec<u64> = links
            .iter()
            .flat_map(|link| [link.to_server.seed, link.to_client.seed])
            .collect();
        let mut different = seeds.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), 8, "{seeds:?}");
        assert_eq!((seeds[0], seeds[4]), (1, 9));
        let again = links.clone();
        LinkSpec::tell_apart(&mut links);
        assert_eq!(links, again, "what a report shows can be given again");
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let of = |change: fn(&mut Direction)| {
            let mut direction = Direction::default();
            change(&mut direction);
            LinkSpec::symmetric(direction).check().unwrap_err().to_string()
        };
        assert_eq!(of(|d| d.loss = 1.5), "loss cannot be 1.5");
        assert_eq!(of(|d| d.duplicate = f64::NAN), "dup cannot be NaN");
        assert_eq!(
            of(|d| d.burst = Some(Burst::new(0.1, -1.0))),
            "burst cannot be -1"
        );
        assert_eq!(of(|d| d.rate = Some(0)), "rate cannot be 0");
        assert_eq!(of(|d| d.queue = Queue::Packets(0)), "queue cannot be 0");
        assert_eq!(of(|d| d.queue = Queue::Time(Duration::ZERO)), "queue cannot be 0");
        let flat = |d: &mut Direction| {
            d.red = Some(Red {
                min: 0.3,
                ..Red::default()
            });
        };
        assert_eq!(of(flat), "red cannot be 0.3:0.3:0.1");
        assert!(LinkSpec::default().check().is_ok());
    }
}
