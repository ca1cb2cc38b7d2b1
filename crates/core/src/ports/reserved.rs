//! Reads and writes the list of ports that the kernel does not hand out: the text of
//! `net.ipv4.ip_local_reserved_ports`.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use super::parse_port;

/// Set of ports, in the form of `ip_local_reserved_ports`: `8080,9148-9150`.
///
/// Writing the sysctl replaces the whole list, so a change is: read, [`insert`](Self::insert) or
/// [`remove`](Self::remove), write. The text is the kernel's own: ascending, with neighbors joined.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReservedPorts {
    /// Ranges that are ascending, disjoint, not empty, and with at least one port between two of them.
    ranges: Vec<RangeInclusive<u16>>,
}

/// Error of a list of ports that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a port (0 to 65535) nor a range of ports (such as 9148-9150)")]
pub struct ParsePortsError(String);

impl ReservedPorts {
    /// Returns the ranges of ports, ascending, with a gap between each two.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u16>> {
        self.ranges.iter().cloned()
    }

    /// Returns whether this port is in the set.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.ranges.iter().any(|r| r.contains(&port))
    }

    /// Returns whether all of these ports are in the set.
    #[must_use]
    pub fn contains_all(&self, ports: &RangeInclusive<u16>) -> bool {
        // Neighbors are joined, so that one range has them all, or none.
        ports.is_empty()
            || self
                .ranges
                .iter()
                .any(|r| r.contains(ports.start()) && r.contains(ports.end()))
    }

    /// Adds ports. An empty range adds none.
    pub fn insert(&mut self, ports: RangeInclusive<u16>) {
        if ports.is_empty() {
            return;
        }
        self.ranges.push(ports);
        self.ranges.sort_unstable_by_key(|r| *r.start());
        self.ranges.dedup_by(|next, kept| {
            let joined = *next.start() <= kept.end().saturating_add(1);
            if joined {
                *kept = *kept.start()..=*kept.end().max(next.end());
            }
            joined
        });
    }

    /// Removes ports. An empty range removes none.
    pub fn remove(&mut self, ports: &RangeInclusive<u16>) {
        if ports.is_empty() {
            return;
        }
        let below =
            |r: &RangeInclusive<u16>| Some(*r.start()..=(*r.end()).min(ports.start().checked_sub(1)?));
        let above = |r: &RangeInclusive<u16>| Some((*r.start()).max(ports.end().checked_add(1)?)..=*r.end());
        self.ranges = self
            .ranges
            .iter()
            .flat_map(|r| [below(r), above(r)])
            .flatten()
            .filter(|r| !r.is_empty())
            .collect();
    }
}

impl FromStr for ReservedPorts {
    type Err = ParsePortsError;

    /// Reads a list in any order, with overlaps; blanks around an entry are ignored, and so are empty entries.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let mut ports = ReservedPorts::default();
        for entry in s.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            ports.insert(parse_entry(entry).ok_or_else(|| ParsePortsError(entry.to_owned()))?);
        }
        Ok(ports)
    }
}

fn parse_entry(entry: &str) -> Option<RangeInclusive<u16>> {
    let (start, end) = entry.split_once('-').unwrap_or((entry, entry));
    let range = parse_port(start)?..=parse_port(end)?;
    (!range.is_empty()).then_some(range)
}

impl fmt::Display for ReservedPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.ranges.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if r.start() == r.end() {
                write!(f, "{comma}{}", r.start())?;
            } else {
                write!(f, "{comma}{}-{}", r.start(), r.end())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_kernels_text_reads_back() {
        for s in ["", "8080", "8080,9148-9150", "0-65535", "0,65535"] {
            assert_eq!(s.parse::<ReservedPorts>().unwrap().to_string(), s);
        }
        let p: ReservedPorts = " 9150,8080, 9148-9149,8080-8080 ,\n".parse().unwrap();
        assert_eq!(p.to_string(), "8080,9148-9150");
    }

    #[test]
    fn what_is_no_list_of_ports_is_named() {
        for s in ["x", "65536", "-1", "1-", "9-8", "1-2-3", "+5", "1 2", "é"] {
            let e = format!("80,{s}")
                .parse::<ReservedPorts>()
                .unwrap_err()
                .to_string();
            assert!(e.starts_with(&format!("`{s}` is not a port")), "{e}");
        }
    }

    #[test]
    fn removing_splits_a_range() {
        let mut p: ReservedPorts = "10-20,30-40".parse().unwrap();
        p.remove(&(15..=16));
        assert_eq!(p.to_string(), "10-14,17-20,30-40");
        p.remove(&(0..=10));
        p.remove(&(40..=65_535));
        assert_eq!(p.to_string(), "11-14,17-20,30-39");
        assert!(p.contains_all(&(31..=39)) && !p.contains_all(&(14..=17)));
    }

    /// Yields ranges at either end of the number line, close enough to meet often.
    fn range() -> impl Strategy<Value = RangeInclusive<u16>> {
        let block = prop_oneof![Just(0u16), Just(u16::MAX - 39)];
        (block, 0..40u16, 0..40u16).prop_map(|(base, a, b)| base + a.min(b)..=base + a.max(b))
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_what_was_put_in_and_taken_out(steps in prop::collection::vec((any::<bool>(), range()), 0..12)) {
            let mut ports = ReservedPorts::default();
            let mut model = std::collections::BTreeSet::new();
            for (put, range) in steps {
                if put {
                    ports.insert(range.clone());
                    model.extend(range.clone());
                    prop_assert!(ports.contains_all(&range));
                } else {
                    ports.remove(&range);
                    model.retain(|p| !range.contains(p));
                }
            }
            prop_assert!(ports.ranges().flatten().eq(model.iter().copied()));
            for port in (0..50).chain(u16::MAX - 50..=u16::MAX) {
                prop_assert_eq!(ports.contains(port), model.contains(&port));
            }
            let gaps = ports.ranges.windows(2).all(|w| u32::from(*w[0].end()) + 1 < u32::from(*w[1].start()));
            prop_assert!(gaps, "{ports}");
            prop_assert_eq!(ports.to_string().parse(), Ok(ports));
        }
    }
}
