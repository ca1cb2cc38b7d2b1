//! Counts the system calls of running processes with strace.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use longsplice_lab::Process;
use rustix::process::Signal;

use crate::supervise::Room;
use crate::wait;

/// Longest time until every thread is traced.
const ATTACH: Duration = Duration::from_secs(10);
/// Longest time until strace has detached from them and written its summary.
const STOP: Duration = Duration::from_secs(10);

/// Numbers of system calls, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Calls(BTreeMap<String, f64>);

/// strace that counts. Dropping it lets the processes run on untraced.
#[derive(Debug)]
pub(crate) struct Strace {
    process: Process,
    summary: PathBuf,
}

impl Strace {
    /// Attaches strace to all threads of these processes, and waits until each of them is traced.
    pub(crate) fn attach(room: &Room, pids: &[u32]) -> Result<Self> {
        let number = room.number();
        let summary = room.file(&format!("strace-{number}"));
        let log = room.file(&format!("strace-{number}.log"));
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-q", "-o"]).arg(&summary);
        for pid in pids {
            command.args(["-p", &pid.to_string()]);
        }
        let errors = File::create(&log).with_context(|| format!("write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let process = Process::spawn(&mut command)?;
        wait::until("strace to attach", ATTACH, || {
            if !process.is_running() {
                bail!("{}", fs::read_to_string(&log).unwrap_or_default().trim());
            }
            Ok(pids
                .iter()
                .all(|&pid| is_traced(pid, process.pid()))
                .then_some(()))
        })?;
        Ok(Strace { process, summary })
    }

    /// Detaches strace; returns what it counted.
    pub(crate) fn stop(self) -> Result<Calls> {
        self.process.kill(Signal::INT)?;
        self.process.wait(STOP)?.context("strace did not end")?;
        let summary =
            fs::read_to_string(&self.summary).with_context(|| format!("read {}", self.summary.display()))?;
        Ok(Calls::parse(&summary))
    }
}

/// Returns whether `tracer` traces all threads of a process.
fn is_traced(pid: u32, tracer: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let line = format!("TracerPid:\t{tracer}");
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status.lines().any(|found| found == line)
    })
}

impl Calls {
    /// Parses the summary of `strace -c`, which is empty for processes that called nothing.
    fn parse(summary: &str) -> Self {
        let call = |line: &str| {
            // Share, seconds, microseconds for each, calls, errors if there were any, and the name.
            let fields: Vec<&str> = line.split_whitespace().collect();
            let calls: u32 = fields.get(3)?.parse().ok()?;
            let name = fields.last().filter(|name| **name != "total")?;
            Some(((*name).to_owned(), f64::from(calls)))
        };
        Calls(summary.lines().filter_map(call).collect())
    }

    /// Subtracts `idle`, and divides the rest by a number of connections.
    pub(crate) fn less(mut self, idle: &Calls, connections: usize) -> Self {
        for (name, calls) in &idle.0 {
            *self.0.entry(name.clone()).or_default() -= calls;
        }
        for calls in self.0.values_mut() {
            *calls /= connections as f64;
        }
        self
    }

    /// Returns the mean of some counts.
    pub(crate) fn mean<'a>(all: impl ExactSizeIterator<Item = &'a Calls>) -> Self {
        let count = all.len() as f64;
        let mut mean = Calls::default();
        for (name, calls) in all.flat_map(|one| &one.0) {
            *mean.0.entry(name.clone()).or_default() += calls / count;
        }
        mean
    }

    /// Returns the number of all calls.
    pub(crate) fn total(&self) -> f64 {
        self.0.values().sum()
    }

    /// Formats the five most frequent calls.
    pub(crate) fn show(&self) -> String {
        let mut calls: Vec<_> = self.0.iter().collect();
        calls.sort_by(|a, b| b.1.total_cmp(a.1));
        let most = calls.iter().take(5).filter(|(_, calls)| **calls > 0.0);
        let most: Vec<String> = most.map(|(name, calls)| format!("{name} {calls:.1}")).collect();
        most.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Summary of strace 6.1.
    const SUMMARY: &str = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ------------------
 62.86    0.000071          10        80           epoll_wait
 20.35    0.000023          23        41         1 recvfrom
 16.79    0.000019          19         2           futex
------ ----------- ----------- --------- --------- ------------------
100.00    0.000113           9       123         1 total
";

    #[test]
    fn the_summary_is_counted_without_its_total() {
        let calls = Calls::parse(SUMMARY);
        assert_eq!(calls.total(), 123.0);
        assert_eq!(calls.show(), "epoll_wait 80.0, recvfrom 41.0, futex 2.0");
        assert_eq!(Calls::parse(""), Calls::default());
    }

    #[test]
    fn an_idle_time_is_subtracted_and_the_rest_divided() {
        let idle = Calls::parse(" 9.00 0.000001 1 1 recvfrom\n 9.00 0.000001 1 4 futex\n");
        let calls = Calls::parse(SUMMARY).less(&idle, 40);
        assert_eq!(calls.show(), "epoll_wait 2.0, recvfrom 1.0");
        assert_eq!(calls.total(), (123.0 - 5.0) / 40.0);
        let mean = Calls::mean([&calls, &Calls::default()].into_iter());
        assert_eq!(mean.total(), calls.total() / 2.0);
    }
}
