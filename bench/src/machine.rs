//! Describes the machine under the measurement: its hardware, its date, and its load.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::{
    param::clock_ticks_per_second,
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};

/// Machine on which figures were measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// Host name.
    pub(crate) host: String,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Processor model.
    pub(crate) cpu: String,
    /// Number of processors online.
    pub(crate) cpus: usize,
    /// Total memory, in KiB.
    pub(crate) memory_kib: u64,
}

impl Machine {
    /// Describes this machine.
    pub(crate) fn here() -> Result<Machine> {
        let uname = rustix::system::uname();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
        Ok(Machine {
            host: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            cpu: cpu_model(&cpuinfo).unwrap_or("unknown").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_kib: meminfo("MemTotal")?,
        })
    }

    /// Formats it in one line.
    pub(crate) fn show(&self) -> String {
        let Machine {
            kernel, cpu, cpus, ..
        } = self;
        format!("Linux {kernel}, {cpus} × {cpu}")
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// Returns a line of `/proc/meminfo`, in KiB; 0 where this kernel lacks it.
pub(crate) fn meminfo(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    Ok(value.unwrap_or(0))
}

/// Returns the seconds that all processors together have been busy, from a start of its own: everything but idling, waiting
/// for a disk, and time that the hypervisor took.
///
/// The kernel samples what a processor does at the tick of its timer, which an idle one does not have: packets that wake it for
/// some microseconds escape. How long it idled is measured, not sampled (`tick_nohz_stop_idle`), so this is the rest.
pub(crate) fn busy_seconds() -> Result<f64> {
    busy_seconds_in("cpu ")
}

/// Returns the seconds that one processor has been busy, as [`busy_seconds`].
pub(crate) fn busy_seconds_of(cpu: usize) -> Result<f64> {
    busy_seconds_in(&format!("cpu{cpu} "))
}

fn busy_seconds_in(name: &str) -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    let now = clock_gettime(ClockId::Monotonic);
    let idle = idle_ticks(&stat, name).with_context(|| format!("/proc/stat has no line `{name}`"))?;
    let processors = match name {
        "cpu " => stat.lines().filter(|line| line.starts_with("cpu")).count() - 1,
        _ => 1,
    };
    let now = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    Ok(now * processors as f64 - idle as f64 * tick())
}

/// Returns the unit of /proc/stat, in seconds.
pub(crate) fn tick() -> f64 {
    1.0 / clock_ticks_per_second() as f64
}

/// Returns the sum of idle, iowait and steal of a line of proc_stat(5).
fn idle_ticks(stat: &str, name: &str) -> Option<u64> {
    let fields: Vec<u64> = stat
        .lines()
        .find_map(|line| line.strip_prefix(name))?
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    [3, 4, 7].iter().map(|&n| fields.get(n)).sum()
}

/// Returns the time in UTC, as `2026-11-20T17:05:00Z`.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the date of a day counted from 1970-01-01, by years that begin in March: their leap day is the last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_as_the_calendar_does() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_777), (2026, 11, 20));
    }

    #[test]
    fn idling_is_not_work() {
        let stat = "cpu  1 2 4 1000 200 8 16 30 0 0\ncpu0 1 1 1 9 8 1 1 7 0 0\n";
        assert_eq!(idle_ticks(stat, "cpu "), Some(1230));
        assert_eq!(idle_ticks(stat, "cpu0 "), Some(24));
        assert_eq!(idle_ticks(stat, "cpu1 "), None);
    }

    #[test]
    fn the_model_is_found() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: Fast 1\n"),
            Some("Fast 1")
        );
    }
}
