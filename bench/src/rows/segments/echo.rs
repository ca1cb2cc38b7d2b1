//! Sends segments of one size, each answered by one like it, over some connections at a time; and measures the busy
//! time of the middle.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use longsplice_lab::Namespace;

use super::Scope;
use crate::contender::{Rig, Standing};
use crate::cores::{MIDDLE, Watch, Work};
use crate::holder::Held;

/// Number of segments on their way at a time, on as many connections.
const CONNECTIONS: usize = 32;

/// Counts of segments, and their cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Echo {
    /// Number of segments with payload that came to the middle, both ways.
    pub(super) segments: u64,
    /// Number of packets that came: they include pure acknowledgements, which should be few.
    pub(super) packets: u64,
    /// Work of the cores.
    pub(super) work: Work,
}

impl Echo {
    /// Returns the busy time of the middle's core for each segment.
    pub(super) fn microseconds(&self) -> f64 {
        self.work.busy[MIDDLE] * 1e6 / self.segments as f64
    }
}

/// Sends segments with `size` bytes of payload, and as many back.
pub(super) fn run(scope: &Scope<'_>, rig: &Rig<'_>, standing: &Standing<'_>, size: usize) -> Result<Echo> {
    let before = match &standing.daemon {
        Some(daemon) => daemon.status()?.counters.detached_total,
        None => 0,
    };
    let mut held = Held::open(rig.nodes, rig.server(), standing.at, CONNECTIONS)?;
    standing.detached_or_nudged(&mut held, before as usize + CONNECTIONS)?;
    held.set_nodelay()?;
    let background = scope.background()?;
    let time = scope.count(Duration::from_secs(3), Duration::from_millis(400));
    let packets = received(&rig.nodes.forwarder)?;
    let watch = Watch::start()?;
    let (start, mut rounds) = (Instant::now(), 0);
    while start.elapsed() < time {
        held.exchange(size, rounds as u8)?;
        rounds += 1;
    }
    let work = watch.stop(background)?.seen()?;
    Ok(Echo {
        segments: 2 * CONNECTIONS as u64 * rounds,
        packets: received(&rig.nodes.forwarder)? - packets,
        work,
    })
}

/// Returns the number of packets that came to the node from both sides.
fn received(node: &Namespace) -> Result<u64> {
    let table = node.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
    let table = table.context("read the devices' counters")?;
    Ok(["f0", "f1"]
        .into_iter()
        .filter_map(|device| packets(&table, device))
        .sum())
}

/// Returns the second counter of a line.
fn packets(table: &str, device: &str) -> Option<u64> {
    let line = table
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
    line?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::packets;

    #[test]
    fn received_packets_are_the_second_number() {
        let table =
            "Inter-|   Receive\n face |bytes packets\n    lo: 1 2 3\n    f0: 1000 17 0 0\n    f1:90 4 0\n";
        assert_eq!(packets(table, "f0"), Some(17));
        assert_eq!(packets(table, "f1"), Some(4));
        assert_eq!(packets(table, "c0"), None);
    }
}
