//! What the emulator did, and whether it was on time.

use std::time::Duration;

use serde::Serialize;

use super::histogram::Histogram;

/// A run whose 99th percentile of lateness is above this measured the emulator, not the links.
pub const MAX_P99_LATENESS: Duration = Duration::from_millis(1);

/// What became of the packets of one direction, or of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// By how much packets arrived later than they should have.
    pub lateness: Histogram,
    /// Packets that arrived, second copies not counted.
    pub forwarded: u64,
    /// Packets that the wire lost, as asked.
    pub lost: u64,
    /// Packets for which there was no room in the queue.
    pub dropped: u64,
    /// Packets that were held back, as asked.
    pub reordered: u64,
    /// Packets that arrived twice, as asked.
    pub duplicated: u64,
    /// Packets that the receiving device refused: it was down, or the machine out of memory.
    pub refused: u64,
}

impl Report {
    /// Whether the emulator kept its times: at most [`MAX_P99_LATENESS`], and every packet could be delivered.
    pub fn is_valid(&self) -> bool {
        self.refused == 0 && u128::from(self.lateness.p99_ns()) <= MAX_P99_LATENESS.as_nanos()
    }

    /// Takes in another report.
    pub fn merge(&mut self, other: &Report) {
        self.lateness.merge(&other.lateness);
        self.forwarded += other.forwarded;
        self.lost += other.lost;
        self.dropped += other.dropped;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.refused += other.refused;
    }
}
