//! Reports on the emulator's work, and the verdict on a run.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::histogram::Histogram;
use super::packet::Packet;
use crate::link::{Direction, LinkSpec};

/// Lateness above which a packet is late, however short the delay of its link.
pub const LATE: Duration = Duration::from_millis(1);

/// Divisor of a long link's delay that gives the lateness bound: 5 %.
pub const LATE_SHARE: u32 = 20;

/// Factor of the lateness bound above which a packet is very late.
pub const VERY_LATE: u32 = 5;

/// Returns the lateness above which a packet is late: [`LATE`], or 5 % of the delay, whichever is more.
pub fn lateness_bound(direction: &Direction) -> Duration {
    LATE.max(direction.delay / LATE_SHARE)
}

/// Counts of the packets of one direction, or of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Differences between real and scheduled arrival at a device; packets that come to a router have none.
    pub lateness: Histogram,
    /// Packets, second copies too, with a lateness above [`lateness_bound`].
    pub late: u64,
    /// Packets with a lateness above [`VERY_LATE`] times that; `late` includes them.
    pub very_late: u64,
    /// Packets that arrived, second copies not counted.
    pub forwarded: u64,
    /// Bytes of the frames of these packets.
    pub forwarded_bytes: u64,
    /// Packets that the wire lost, as configured.
    pub lost: u64,
    /// Packets for which there was no room in the queue.
    pub dropped: u64,
    /// Packets that RED dropped before the queue was full.
    pub dropped_early: u64,
    /// Packets that were held back or overtook others by their jitter, as configured.
    pub reordered: u64,
    /// Packets that arrived twice, as configured.
    pub duplicated: u64,
    /// Packets of which a bit was flipped, as configured.
    pub corrupted: u64,
    /// Packets that came to a router without a route to their destination, or that were no IP packets.
    pub unroutable: u64,
    /// Packets that the receiving device refused: it was down, or the machine out of memory.
    pub refused: u64,
}

impl Report {
    /// Returns whether the emulator did what it was told: at most one packet in a hundred was late, and at most one in
    /// a thousand very late. In other words, the 99th percentile of the lateness kept to [`lateness_bound`] and the
    /// 99.9th to five times that. Every packet must also have been delivered. Of fewer than a hundred packets none may
    /// be late.
    ///
    /// Sums of several directions can hide one that was late: for a run as a whole, use [`super::Emulator::verdict`].
    pub fn counts(&self) -> bool {
        let all = self.lateness.count();
        self.refused == 0 && self.late * 100 <= all && self.very_late * 1000 <= all
    }

    /// Adds the lateness of a packet, given the bound of its direction, both in nanoseconds.
    pub(super) fn arrived(&mut self, lateness: u64, bound: u64) {
        self.lateness.add(lateness);
        self.late += u64::from(lateness > bound);
        self.very_late += u64::from(lateness > bound.saturating_mul(VERY_LATE.into()));
    }

    /// Adds a packet that arrived.
    pub(super) fn forwarded(&mut self, packet: &Packet) {
        if !packet.second_copy {
            self.forwarded += 1;
            self.forwarded_bytes += packet.frame.len() as u64;
        }
    }

    /// Adds another report.
    pub fn merge(&mut self, other: &Report) {
        self.lateness.merge(&other.lateness);
        self.late += other.late;
        self.very_late += other.very_late;
        self.forwarded += other.forwarded;
        self.forwarded_bytes += other.forwarded_bytes;
        self.lost += other.lost;
        self.dropped += other.dropped;
        self.dropped_early += other.dropped_early;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.unroutable += other.unroutable;
        self.refused += other.refused;
    }
}

impl fmt::Display for Report {
    /// Writes one line; counts of zero are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} forwarded", self.forwarded)?;
        for (count, what) in [
            (self.lost, "lost"),
            (self.dropped, "dropped"),
            (self.dropped_early, "dropped early"),
            (self.reordered, "reordered"),
            (self.duplicated, "duplicated"),
            (self.corrupted, "corrupted"),
            (self.unroutable, "unroutable"),
            (self.refused, "refused"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        write!(f, "; lateness: {}", self.lateness)?;
        if self.late > 0 {
            write!(f, "; {} late, {} very late", self.late, self.very_late)?;
        }
        Ok(())
    }
}

/// Report on one link, by direction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkReport {
    /// Name of the link: the node that it connects to the forwarder.
    pub name: String,
    /// Properties of the link, with the seeds that repeat the run.
    pub link: LinkSpec,
    /// From the client's side to the server's.
    pub to_server: Report,
    /// From the server's side to the client's.
    pub to_client: Report,
}

impl LinkReport {
    /// Returns the name, the properties and the report of each direction.
    pub fn directions(&self) -> [(&'static str, &Direction, &Report); 2] {
        [
            ("to the server", &self.link.to_server, &self.to_server),
            ("to the client", &self.link.to_client, &self.to_client),
        ]
    }
}

impl fmt::Display for LinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.link)?;
        for (way, _, report) in self.directions() {
            write!(f, "\n  {way}: {report}")?;
        }
        Ok(())
    }
}

/// Verdict on a run: true to the links, or spoiled by a late emulator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// True if the run counts.
    counts: bool,
    /// Reason why the emulator runs without `SCHED_FIFO`. A run without it may still count, but this is the likely
    /// cause of one that does not.
    not_real_time: Option<String>,
    /// Reasons against the run, in words.
    against: Vec<String>,
}

impl Default for Verdict {
    /// Returns the verdict on a run without emulated links, which counts.
    fn default() -> Self {
        Verdict::of(&[], None)
    }
}

impl Verdict {
    pub(super) fn of(reports: &[LinkReport], not_real_time: Option<String>) -> Self {
        let against = reports.iter().flat_map(|link| {
            let directions = link.directions().into_iter();
            let bad = directions.filter(|(_, _, report)| !report.counts());
            bad.map(|(way, direction, report)| {
                format!(
                    "{}, {way}: of {} packets {} were more than {:?} late and {} more than {:?}, {} were refused; \
                     lateness: {}",
                    link.name,
                    report.lateness.count(),
                    report.late,
                    lateness_bound(direction),
                    report.very_late,
                    lateness_bound(direction) * VERY_LATE,
                    report.refused,
                    report.lateness
                )
            })
        });
        let against: Vec<String> = against.collect();
        Verdict {
            counts: against.is_empty(),
            not_real_time,
            against,
        }
    }

    /// Returns whether the run counts: every direction of every link [did what it was told](Report::counts).
    pub fn counts(&self) -> bool {
        self.counts
    }

    /// Returns the reasons against the run, one for each direction that was late.
    pub fn against(&self) -> &[String] {
        &self.against
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.counts {
            write!(f, "the emulator was in time: this run counts")?;
        } else {
            write!(f, "the emulator was late: this run does not count")?;
        }
        for reason in &self.against {
            write!(f, "\n  {reason}")?;
        }
        match &self.not_real_time {
            Some(why) => write!(f, "\n  the emulator runs without SCHED_FIFO: {why}"),
            None => Ok(()),
        }
    }
}

/// Error: a run was repeated, and none counted.
#[derive(Debug, Clone, thiserror::Error)]
#[error("none of {attempts} runs counts; the last one: {verdict}")]
pub struct DoesNotCount {
    /// Number of runs.
    pub attempts: usize,
    /// Verdict on the last run.
    pub verdict: Verdict,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a report of a direction with so many packets that were 20 µs, 2 ms and 6 ms late.
    fn report(in_time: u64, late: u64, very_late: u64) -> Report {
        let mut report = Report::default();
        for (count, lateness) in [(in_time, 20_000), (late, 2_000_000), (very_late, 6_000_000)] {
            (0..count).for_each(|_| report.arrived(lateness, 1_000_000));
        }
        report
    }

    fn link(to_server: Report, to_client: Report) -> LinkReport {
        LinkReport {
            name: "client".into(),
            link: LinkSpec::delay(Duration::from_millis(10)),
            to_server,
            to_client,
        }
    }

    #[test]
    fn one_in_a_hundred_may_be_late_and_one_in_a_thousand_very_late() {
        assert!(report(0, 0, 0).counts());
        assert!(report(99, 1, 0).counts());
        assert!(!report(98, 1, 0).counts());
        assert!(report(990, 9, 1).counts());
        assert!(!report(990, 10, 1).counts(), "the very late ones are late, too");
        assert!(!report(998, 0, 1).counts());
        let refused = Report {
            refused: 1,
            ..report(1000, 0, 0)
        };
        assert!(!refused.counts());
    }

    #[test]
    fn the_bound_grows_with_the_delay() {
        let bound = |ms| {
            lateness_bound(&Direction {
                delay: Duration::from_millis(ms),
                ..Direction::default()
            })
        };
        assert_eq!(bound(0), Duration::from_millis(1));
        assert_eq!(bound(20), Duration::from_millis(1));
        assert_eq!(bound(150), Duration::from_micros(7500));
    }

    #[test]
    fn a_late_direction_is_not_hidden_by_the_others() {
        let good = link(report(100_000, 0, 0), report(100_000, 0, 0));
        assert!(Verdict::of(std::slice::from_ref(&good), None).counts());
        assert!(Verdict::default().counts());
        let bad = link(report(100_000, 0, 0), report(8, 1, 1));
        let verdict = Verdict::of(&[good, bad], Some("not permitted".into()));
        assert!(!verdict.counts());
        assert_eq!(
            verdict.to_string(),
            "the emulator was late: this run does not count\n  \
             client, to the client: of 10 packets 2 were more than 1ms late and 1 more than 5ms, 0 were refused; \
             lateness: p50 20.5 µs, p99 6.00 ms, p99.9 6.00 ms, max 6.00 ms\n  \
             the emulator runs without SCHED_FIFO: not permitted"
        );
    }

    #[test]
    fn a_report_shows_the_link_with_its_seeds() {
        let mut report = link(report(0, 0, 0), Report::default());
        report.to_client.lost = 3;
        assert_eq!(
            report.to_string(),
            "client: 10ms,seed=1\n  \
             to the server: 0 forwarded; lateness: p50 0.0 µs, p99 0.0 µs, p99.9 0.0 µs, max 0.0 µs\n  \
             to the client: 0 forwarded, 3 lost; lateness: p50 0.0 µs, p99 0.0 µs, p99.9 0.0 µs, max 0.0 µs"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["link"], "10ms,seed=1");
    }
}
