//! Costs of a node's work, read from its daemon and the kernel.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

/// Switch of the kernel's clock for eBPF programs.
const CLOCK: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Folder that only root writes to.
const KEPT: &str = "/run";

/// Payload of a full segment with timestamps, at an MTU of 1,500.
const SEGMENT: f64 = 1448.0;

/// Operations of the table whose costs a case measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operations {
    Short,
    TakenOver,
    Released,
    PassedThrough,
    Turns,
}

impl Operations {
    /// Returns the number of each operation and its cost in microseconds, given the cost of a run, its flows and their bytes.
    pub(crate) fn costs(self, cost: &Cost, flows: usize, bytes: u64) -> Vec<(f64, f64)> {
        let segments = (bytes as f64 / SEGMENT).max(1.0);
        let programs = cost.programs_seconds * 1e6 / segments;
        match self {
            Operations::Short => vec![
                (1.0, cost.take_over_us),
                (2.0, cost.daemon_seconds * 1e6 / flows.max(1) as f64),
            ],
            Operations::TakenOver => vec![(3.0, cost.daemon_seconds * 1e6 / segments), (4.0, programs)],
            Operations::Released => vec![(5.0, programs)],
            Operations::PassedThrough => vec![(6.0, programs)],
            Operations::Turns => vec![(7.0, cost.release_us), (8.0, cost.return_us)],
        }
    }
}

/// Cost of a run at the first node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Cost {
    /// Processor time of the daemon, user and system.
    pub(crate) daemon_seconds: f64,
    /// Time of its eBPF programs.
    pub(crate) programs_seconds: f64,
    /// Medians of the daemon's own times, in microseconds; 0 without any.
    pub(crate) take_over_us: f64,
    pub(crate) release_us: f64,
    pub(crate) return_us: f64,
}

impl Cost {
    /// Reads the costs of a daemon since its start.
    pub(super) fn read(pid: u32, daemon_seconds: f64, status: &Value) -> anyhow::Result<Cost> {
        let median = |name: &str| status[name]["median_ns"].as_f64().unwrap_or_default() / 1e3;
        Ok(Cost {
            daemon_seconds,
            programs_seconds: programs_seconds(pid)?,
            take_over_us: median("take_over"),
            release_us: median("transition_to_dormant"),
            return_us: median("rebuild"),
        })
    }

    /// Returns the costs since another reading.
    pub(super) fn since(self, before: &Cost) -> Cost {
        Cost {
            daemon_seconds: self.daemon_seconds - before.daemon_seconds,
            programs_seconds: self.programs_seconds - before.programs_seconds,
            ..self
        }
    }
}

/// Clock of the kernel's eBPF programs, which costs them some 20 ns each time. Dropping it sets it as it was.
#[derive(Debug)]
pub(super) struct Clock;

impl Clock {
    pub(super) fn start() -> anyhow::Result<Clock> {
        let before = fs::read_to_string(CLOCK).context("cannot read kernel.bpf_stats_enabled")?;
        let kept = kept(std::process::id());
        fs::write(&kept, before).with_context(|| format!("cannot write {}", kept.display()))?;
        fs::write(CLOCK, "1").context("cannot set kernel.bpf_stats_enabled")?;
        Ok(Clock)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        restore_clock(|pid| pid == std::process::id());
    }
}

/// Returns the file that holds the setting of before, while a process has the clock on. A restart of the machine takes
/// both away.
fn kept(pid: u32) -> PathBuf {
    Path::new(KEPT).join(format!("longsplice-lab-{pid}.clock"))
}

/// Sets the clock as it was before processes that are over had it on.
pub(super) fn restore_clock(is_over: impl Fn(u32) -> bool) {
    for entry in fs::read_dir(KEPT).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            name.strip_prefix("longsplice-lab-")?
                .strip_suffix(".clock")?
                .parse()
                .ok()
        });
        if pid.is_some_and(&is_over)
            && let Ok(before) = fs::read_to_string(entry.path())
        {
            // It could be set before, so this works, too.
            let _ = fs::write(CLOCK, before.trim());
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the time of all eBPF programs that a process has open.
fn programs_seconds(pid: u32) -> anyhow::Result<f64> {
    let folder = format!("/proc/{pid}/fdinfo");
    let files = fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
    let mut seen = Vec::new();
    let mut sum = 0;
    for file in files.flatten() {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        // A program may be open twice.
        if let Some((program, ns)) = parse(&text)
            && !seen.contains(&program)
        {
            seen.push(program);
            sum += ns;
        }
    }
    Ok(sum as f64 / 1e9)
}

/// Returns the number of a program and its time in nanoseconds; `None` for other descriptors.
fn parse(fdinfo: &str) -> Option<(u64, u64)> {
    let value = |name: &str| {
        let line = fdinfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some((value("prog_id:")?, value("run_time_ns:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_from_other_descriptors() {
        let program = "pos:\t0\nprog_type:\t3\nprog_id:\t17\nrun_time_ns:\t2500\nrun_cnt:\t3\n";
        assert_eq!(parse(program), Some((17, 2500)));
        assert_eq!(parse("pos:\t0\nlink_type:\ttcx\nprog_id:\t17\n"), None);
    }

    #[test]
    fn costs_are_those_of_a_segment_or_a_connection() {
        let cost = Cost {
            daemon_seconds: 0.002,
            programs_seconds: 0.001,
            take_over_us: 50.0,
            release_us: 7.0,
            return_us: 8.0,
        };
        let costs = |operations: Operations| operations.costs(&cost, 100, 1_448_000);
        assert_eq!(costs(Operations::Short), [(1.0, 50.0), (2.0, 20.0)]);
        assert_eq!(costs(Operations::TakenOver), [(3.0, 2.0), (4.0, 1.0)]);
        assert_eq!(costs(Operations::Turns), [(7.0, 7.0), (8.0, 8.0)]);
        let before = Cost {
            daemon_seconds: 0.001,
            ..Cost::default()
        };
        assert_eq!(cost.since(&before).daemon_seconds, 0.001);
    }
}
