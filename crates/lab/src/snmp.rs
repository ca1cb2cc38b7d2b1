//! Kernel counters of a namespace: `/proc/net/snmp`, `snmp6` and `netstat`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::{fmt, fs};

use serde::Serialize;

use crate::Error;

/// Counters by their kernel names, the group in front: `Tcp.RetransSegs`, `TcpExt.TCPTimeouts`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters(BTreeMap<String, i64>);

impl Counters {
    /// Reads them for the namespace of the calling thread. (`/proc/net` would be that of the main thread.)
    pub(crate) fn read() -> Result<Self, Error> {
        let mut counters = Counters::default();
        for file in ["/proc/thread-self/net/snmp", "/proc/thread-self/net/netstat"] {
            let text = fs::read_to_string(file).map_err(Error::io(format!("read {file}")))?;
            counters.parse(&text).ok_or(Error::Parse {
                what: "/proc/net/{snmp,netstat}",
                text,
            })?;
        }
        match fs::read_to_string("/proc/thread-self/net/snmp6") {
            Ok(text) => counters.parse_v6(&text),
            // This kernel has no IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read /proc/net/snmp6")(error)),
        }
        Ok(counters)
    }

    /// Parses lines `Ip6Name 1`, of which the group ends with the 6.
    fn parse_v6(&mut self, text: &str) {
        for line in text.lines() {
            let words = line.split_once(char::is_whitespace);
            let Some((name, value)) =
                words.and_then(|(name, value)| Some((name, value.trim().parse().ok()?)))
            else {
                continue;
            };
            if let Some((group, name)) = name.split_once('6') {
                self.0.insert(format!("{group}6.{name}"), value);
            }
        }
    }

    /// Parses pairs of lines: `Group: Name Name …` and `Group: 1 2 …`.
    fn parse(&mut self, text: &str) -> Option<()> {
        let mut lines = text.lines();
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let (group, names) = names.split_once(':')?;
            let (_, values) = values.split_once(':')?;
            for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
                self.0.insert(format!("{group}.{name}"), value.parse().ok()?);
            }
        }
        Some(())
    }

    /// Returns the counter `name`, with or without its group; 0 for one that this kernel lacks. A bare name that
    /// several groups have means the first group in alphabetical order: write `Tcp.InErrs`.
    pub fn get(&self, name: &str) -> i64 {
        if name.contains('.') {
            return self.0.get(name).copied().unwrap_or(0);
        }
        let found = self
            .0
            .iter()
            .find(|(key, _)| key.split_once('.').is_some_and(|(_, bare)| bare == name));
        found.map_or(0, |(_, value)| *value)
    }

    /// Returns the changes since `before`; unchanged counters are left out.
    pub fn diff(&self, before: &Counters) -> Counters {
        let changed = self
            .0
            .iter()
            .map(|(name, value)| (name.clone(), value - before.get(name)));
        Counters(changed.filter(|(_, change)| *change != 0).collect())
    }

    /// Returns the counters that tests and reports use most.
    pub fn tally(&self) -> Tally {
        Tally {
            sent_again: self.get("Tcp.RetransSegs"),
            timeouts: self.get("TcpExt.TCPTimeouts"),
            resets_sent: self.get("Tcp.OutRsts"),
            bad_checksums: self.get("Tcp.InCsumErrors"),
        }
    }

    /// Returns all counters in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

/// Counts of TCP trouble in a namespace; those of a [difference](Counters::diff) cover that time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Segments that were sent again.
    pub sent_again: i64,
    /// Retransmission timers that expired. (The kernel counts those that hit in the middle of a recovery under other
    /// names: a socket's own count, [`crate::traffic::EndReport::timeouts`], has them all.)
    pub timeouts: i64,
    /// Resets that were sent.
    pub resets_sent: i64,
    /// Segments that came with a wrong checksum.
    pub bad_checksums: i64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} segments sent again, {} timeouts, {} resets sent, {} wrong checksums",
            self.sent_again, self.timeouts, self.resets_sent, self.bad_checksums
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(text: &str) -> Counters {
        let mut counters = Counters::default();
        counters.parse(text).unwrap();
        counters
    }

    #[test]
    fn values_are_found_by_name_and_compared() {
        let before = counters("Tcp: MaxConn RetransSegs InErrs\nTcp: -1 5 0\n");
        let after =
            counters("Tcp: MaxConn RetransSegs InErrs\nTcp: -1 12 0\nTcpExt: TCPTimeouts\nTcpExt: 3\n");
        assert_eq!(after.get("RetransSegs"), 12);
        assert_eq!(after.get("Tcp.MaxConn"), -1);
        assert_eq!(after.get("NoSuchThing"), 0);
        let diff = after.diff(&before);
        assert_eq!(
            diff.iter().collect::<Vec<_>>(),
            [("Tcp.RetransSegs", 7), ("TcpExt.TCPTimeouts", 3)]
        );
        let tally = diff.tally();
        assert_eq!((tally.sent_again, tally.timeouts, tally.resets_sent), (7, 3, 0));
    }

    #[test]
    fn counters_of_ipv6_have_a_group_of_their_own() {
        let mut counters = counters("Ip: ReasmOKs\nIp: 1\n");
        counters.parse_v6("Ip6ReasmOKs                     \t7\nIcmp6OutType135  2\nodd\n");
        assert_eq!(counters.get("Ip.ReasmOKs"), 1);
        assert_eq!(counters.get("Ip6.ReasmOKs"), 7);
        assert_eq!(counters.get("Icmp6.OutType135"), 2);
    }

    #[test]
    fn this_kernel_has_the_counters_that_tests_ask_for() {
        let now = Counters::read().unwrap();
        for name in [
            "Tcp.RetransSegs",
            "Tcp.OutRsts",
            "Tcp.InCsumErrors",
            "TcpExt.TCPTimeouts",
        ] {
            assert!(now.0.contains_key(name), "{name}");
        }
        for name in ["TcpExt.PAWSEstab", "TcpExt.TCPLostRetransmit"] {
            assert!(now.0.contains_key(name), "{name}");
        }
    }
}
