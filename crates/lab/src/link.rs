//! What an emulated link does to the packets that pass it.

use std::time::Duration;

/// The limit of a drop-tail queue in front of a link with a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// At most so many bytes wait, the packet that is being sent included.
    Bytes(u64),
    /// At most so many packets wait, the one that is being sent included.
    Packets(usize),
}

/// One direction of a link. The default is a wire: no delay, no loss, no limit.
///
/// A packet first waits in the queue for its turn at the `rate`; then the wire may lose it, delay it, deliver
/// it late (`reorder`) or twice (`duplicate`). A lost packet has used the link's capacity, a dropped one has
/// not. Jitter alone never changes the order of packets; reordering does, and only that.
#[derive(Debug, Clone, PartialEq)]
pub struct Direction {
    /// The propagation delay.
    pub delay: Duration,
    /// Up to this much is added to the delay, evenly distributed, as far as the order of packets permits.
    pub jitter: Duration,
    /// The probability, 0 to 1, that a packet is lost on the wire; independent for each packet.
    pub loss: f64,
    /// The probability, 0 to 1, that a packet is held back by `reorder_delay` while later ones pass.
    pub reorder: f64,
    /// How long a reordered packet is held back.
    pub reorder_delay: Duration,
    /// The probability, 0 to 1, that a packet is delivered twice.
    pub duplicate: f64,
    /// The rate in bit/s, counted over whole Ethernet frames without checksum and preamble; `None`: unlimited.
    pub rate: Option<u64>,
    /// The queue; without a `rate` nothing ever waits in it.
    pub queue: Queue,
    /// The seed: with the same one, the n-th packet meets the same luck.
    pub seed: u64,
}

impl Default for Direction {
    fn default() -> Self {
        Direction {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            reorder_delay: Duration::ZERO,
            duplicate: 0.0,
            rate: None,
            queue: Queue::Packets(1000),
            seed: 1,
        }
    }
}

/// A link: its two directions, named after where the packets go.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// From the client's side to the server's.
    pub to_server: Direction,
    /// From the server's side to the client's.
    pub to_client: Direction,
    /// The MTU of the devices at both ends, in bytes.
    pub mtu: u16,
}

impl LinkSpec {
    /// A link that treats both directions alike, each with luck of its own.
    pub fn symmetric(direction: Direction) -> Self {
        // An arbitrary constant, so that consecutive seeds given by a caller do not meet the derived ones.
        let back = Direction {
            seed: direction.seed ^ 0x9e37_79b9_7f4a_7c15,
            ..direction.clone()
        };
        LinkSpec {
            to_server: direction,
            to_client: back,
            mtu: 1500,
        }
    }

    /// A link with nothing but `delay` each way.
    pub fn delay(delay: Duration) -> Self {
        LinkSpec::symmetric(Direction {
            delay,
            ..Direction::default()
        })
    }
}
