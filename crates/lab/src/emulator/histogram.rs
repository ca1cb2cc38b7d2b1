//! Histogram of durations in bounded memory.

use std::fmt;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

/// Number of buckets for each power of two (a power of two itself): quantiles are accurate to 1/16.
const SUB: u64 = 16;
const SUB_BITS: u32 = SUB.trailing_zeros();

/// Counts of values in nanoseconds, in buckets whose width grows with the value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Histogram {
    /// Adds a value.
    pub fn add(&mut self, ns: u64) {
        let bucket = bucket(ns);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum += u128::from(ns);
        self.max = self.max.max(ns);
    }

    /// Adds all values of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean in nanoseconds; 0 for an empty histogram.
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 {
            0.0
        } else {
            self.sum as f64 / self.count as f64
        }
    }

    /// Returns the largest value in nanoseconds; 0 for an empty histogram.
    pub fn max_ns(&self) -> u64 {
        self.max
    }

    /// Returns the quantile `q` (0 to 1) in nanoseconds, rounded up by at most 1/16; 0 for an empty histogram.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = ((q * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_end(bucket as u64).min(self.max);
            }
        }
        self.max
    }

    /// Returns the median in nanoseconds.
    pub fn p50_ns(&self) -> u64 {
        self.quantile_ns(0.5)
    }

    /// Returns the 99th percentile in nanoseconds.
    pub fn p99_ns(&self) -> u64 {
        self.quantile_ns(0.99)
    }
}

impl fmt::Display for Histogram {
    /// Writes the quantiles in milliseconds, and short ones in microseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantiles =
            [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)].map(|(name, q)| (name, self.quantile_ns(q)));
        for (name, ns) in quantiles {
            write!(f, "{name} {}, ", short(ns))?;
        }
        write!(f, "max {}", short(self.max))
    }
}

/// Formats a duration for a reader.
fn short(ns: u64) -> String {
    match ns {
        100_000.. => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.1} µs", ns as f64 / 1e3),
    }
}

impl Serialize for Histogram {
    /// Writes the figures that a report shows, without the buckets.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Histogram", 6)?;
        fields.serialize_field("count", &self.count)?;
        fields.serialize_field("mean_ns", &self.mean_ns())?;
        fields.serialize_field("p50_ns", &self.p50_ns())?;
        fields.serialize_field("p99_ns", &self.p99_ns())?;
        fields.serialize_field("p999_ns", &self.quantile_ns(0.999))?;
        fields.serialize_field("max_ns", &self.max)?;
        fields.end()
    }
}

/// Returns the bucket of a value. Each value below `SUB` has a bucket of its own; from there, the top bits below the
/// leading one choose the bucket.
fn bucket(ns: u64) -> usize {
    if ns < SUB {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    (u64::from(shift) * SUB + (ns >> shift)) as usize
}

/// Returns the largest value of a bucket.
fn upper_end(bucket: u64) -> u64 {
    if bucket < SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    let start = (bucket - shift * SUB) << shift;
    start + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_its_bucket_and_close_to_its_end() {
        for ns in (0..5000).chain([1 << 20, (1 << 20) + 1, u64::from(u32::MAX), 1 << 40]) {
            let end = upper_end(bucket(ns) as u64);
            assert!(ns <= end && end - ns <= ns / SUB, "{ns} {end}");
        }
    }

    #[test]
    fn quantiles_mean_and_maximum() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.p99_ns(), histogram.max_ns()), (0, 0));
        for ns in 1..=1000 {
            histogram.add(ns * 1000);
        }
        assert_eq!(histogram.mean_ns(), 500_500.0);
        assert_eq!(histogram.max_ns(), 1_000_000);
        assert!(
            (990_000..=1_000_000).contains(&histogram.p99_ns()),
            "{}",
            histogram.p99_ns()
        );
        assert!((500_000..540_000).contains(&histogram.p50_ns()));
        assert_eq!(
            histogram.to_string(),
            "p50 0.51 ms, p99 1.00 ms, p99.9 1.00 ms, max 1.00 ms"
        );
    }

    #[test]
    fn merging_is_adding() {
        let (mut left, mut right, mut both) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        for ns in 0..100 {
            left.add(ns);
            right.add(ns * 1000);
            both.add(ns);
            both.add(ns * 1000);
        }
        left.merge(&right);
        assert_eq!(left, both);
    }
}
