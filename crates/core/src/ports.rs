//! Chooses the source ports of the legs to the targets.
//!
//! Once a spliced flow's sockets are gone the kernel considers its port free, and would give it to another connection,
//! whose SYN would reset the live one. So the legs' ports are chosen here, from a range that the kernel does not hand
//! out by itself: `ip_local_port_range` does not reach it, or `ip_local_reserved_ports` keeps it free.

mod reserved;

use std::ops::RangeInclusive;

pub use reserved::{ParsePortsError, ReservedPorts};

/// Parses the digits of a port: `u16::from_str` alone would accept `+80`.
pub fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Lowest port that needs no privilege to bind.
const UNPRIVILEGED: u16 = 1024;
/// Upper bound of the ports that often belong to services, configured by hand.
const SERVICES_BELOW: u16 = 15_000;
/// Smallest useful size of a block.
const ENOUGH: usize = 1024;

/// Range of source ports. The kernel may use it, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRange {
    /// Ports of the range.
    pub ports: RangeInclusive<u16>,
    /// True if the kernel gives ports of this range to other sockets: they must be reserved first
    /// (`ip_local_reserved_ports`).
    pub overlaps: bool,
}

/// Chooses source ports, given the kernel's own range (`ip_local_port_range`).
///
/// Returns the largest block from 15,000 up that the kernel does not use, if it has 1,024 ports; else the largest from
/// 1,024 up, if it has as many; else the upper quarter of the kernel's range, with `overlaps` set.
#[must_use]
pub fn default_range(ephemeral: &RangeInclusive<u16>) -> SourceRange {
    let beside = [SERVICES_BELOW, UNPRIVILEGED].into_iter().find_map(|lowest| {
        let below = ephemeral.start().checked_sub(1).map(|end| lowest..=end);
        let above = ephemeral
            .end()
            .checked_add(1)
            .map(|start| start.max(lowest)..=u16::MAX);
        [below, above]
            .into_iter()
            .flatten()
            .max_by_key(ExactSizeIterator::len)
            .filter(|r| r.len() >= ENOUGH)
    });
    match beside {
        Some(ports) => SourceRange {
            ports,
            overlaps: false,
        },
        None => {
            // The range has at least 15,000 ports: both blocks beside it are small.
            let quarter = (ephemeral.end() - ephemeral.start()) / 4;
            SourceRange {
                ports: ephemeral.end() - quarter..=*ephemeral.end(),
                overlaps: true,
            }
        }
    }
}

/// Iterates over the ports of a range, each once, in an order that differs for each seed.
///
/// The iteration walks with a stride that has no common divisor with the size of the range, from a random start: it
/// takes constant memory, and each port comes up once. The seed should be unpredictable for others (RFC 6056 section
/// 3.1) and different for each target, so that two connections to different targets seldom try the same ports.
#[derive(Debug, Clone)]
pub struct Candidates {
    first: u16,
    /// Number of ports of the range, at most 65,536.
    size: u32,
    position: u32,
    stride: u32,
    left: u32,
}

impl Candidates {
    /// Makes the order of `range` for this seed. An empty range has no candidates.
    #[must_use]
    pub fn new(range: &RangeInclusive<u16>, seed: u64) -> Self {
        let size = if range.is_empty() {
            0
        } else {
            u32::from(range.end() - range.start()) + 1
        };
        let (low, high) = (scramble(seed) as u32, (scramble(seed) >> 32) as u32);
        let within = size.max(1);
        let stride = (0..within)
            .map(|i| (high % within).wrapping_add(i) % within)
            .find(|&s| gcd(s, within) == 1);
        Candidates {
            first: *range.start(),
            size,
            position: low % within,
            stride: stride.unwrap_or(1),
            left: size,
        }
    }
}

impl Iterator for Candidates {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        self.left = self.left.checked_sub(1)?;
        let port = self.first + self.position as u16;
        self.position = (self.position + self.stride) % self.size;
        Some(port)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Spreads a seed of few bits over 64 (the finalizer of SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_range_lies_beside_the_kernels() {
        for (ephemeral, ports, overlaps) in [
            (32_768..=60_999, 15_000..=32_767, false), // Linux's default
            (49_152..=65_535, 15_000..=49_151, false), // RFC 6335's
            (15_000..=40_000, 40_001..=65_535, false),
            (15_500..=65_535, 1_024..=15_499, false), // 500 ports above 15,000 are too few
            (10_000..=65_000, 1_024..=9_999, false),
            (1_024..=65_535, 49_408..=65_535, true),
            (2_000..=65_000, 49_250..=65_000, true),
            (1..=65_535, 49_152..=65_535, true),
        ] {
            assert_eq!(
                default_range(&ephemeral),
                SourceRange { ports, overlaps },
                "{ephemeral:?}"
            );
        }
    }

    #[test]
    fn small_ranges_are_walked_whole() {
        assert_eq!(Candidates::new(&(9..=9), 7).collect::<Vec<_>>(), [9]);
        assert_eq!(
            Candidates::new(&(65_535..=65_535), 7).collect::<Vec<_>>(),
            [65_535]
        );
        #[expect(clippy::reversed_empty_ranges)]
        let empty = 9..=8;
        assert_eq!(Candidates::new(&empty, 7).count(), 0);
        assert_eq!(
            Candidates::new(&(0..=65_535), 7).collect::<HashSet<_>>().len(),
            65_536
        );
    }

    #[test]
    fn seeds_differ_in_where_they_start() {
        let starts: HashSet<_> = (0..1000)
            .filter_map(|s| Candidates::new(&(15_000..=32_767), s).next())
            .collect();
        assert!(starts.len() > 900, "{}", starts.len());
    }

    proptest! {
        #[test]
        fn the_default_range_is_usable(a: u16, b: u16) {
            let ephemeral = a.min(b)..=a.max(b);
            let SourceRange { ports, overlaps } = default_range(&ephemeral);
            prop_assert!(ports.len() >= ENOUGH && *ports.start() >= UNPRIVILEGED);
            prop_assert_eq!(overlaps, ports.start() <= ephemeral.end() && ephemeral.start() <= ports.end());
        }

        #[test]
        fn each_port_comes_once(start: u16, size in 1..3000u16, seed: u64) {
            let range = start..=start.saturating_add(size - 1);
            let candidates = Candidates::new(&range, seed);
            prop_assert_eq!(candidates.clone().count(), range.len());
            let seen: HashSet<u16> = candidates.collect();
            prop_assert_eq!(seen.len(), range.len());
            prop_assert!(seen.iter().all(|p| range.contains(p)));
        }
    }
}
