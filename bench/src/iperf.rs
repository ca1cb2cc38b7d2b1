//! Measures one bulk stream by iperf3, and its cost for the machine.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use longsplice_lab::{Namespace, Process};
use serde_json::Value;

use crate::machine;

/// Longest time for the server to end after its one test.
const STOP: Duration = Duration::from_secs(5);

/// Figure of a stream's throughput ([`Bulk::gbps`]).
pub(crate) const GBPS: &str = "Gbit/s";

/// Result of one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bulk {
    /// Received bytes per time of the transfer, in Gbit/s.
    pub(crate) gbps: f64,
    /// Busy time of all processors, for any work, per received bytes, in seconds for 10^9.
    pub(crate) cpu_s_per_gb: f64,
    /// Number of segments that the sender retransmitted.
    pub(crate) retransmits: u64,
    /// Number of received bytes, in 10^9.
    pub(crate) gigabytes: f64,
    /// Number of the contender's splices, if it splices.
    pub(crate) splices: Option<u64>,
}

/// Sends for `seconds` from `client` to `to`, which leads to `at` in `server`.
pub(crate) fn bulk(
    client: &Namespace,
    server: &Namespace,
    at: SocketAddr,
    to: SocketAddr,
    seconds: u32,
) -> Result<Bulk> {
    let serving = serve_once(server, at)?;
    let busy = machine::busy_seconds()?;
    let output = client
        .command("iperf3")
        .args(["-c", &to.ip().to_string(), "-p", &to.port().to_string()])
        .args(["-t", &seconds.to_string(), "--connect-timeout", "5000", "-J"])
        .output()?;
    let busy = machine::busy_seconds()? - busy;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("iperf3: {}", String::from_utf8_lossy(&output.stderr)))?;
    if let Some(error) = report.get("error") {
        bail!("iperf3 to {to}: {error}");
    }
    serving.wait(STOP)?.context("the server of iperf3 did not end")?;
    let number = |path: &str| {
        let found = report.pointer(path).and_then(Value::as_f64);
        found.with_context(|| format!("iperf3 does not tell {path}"))
    };
    let bytes = number("/end/sum_received/bytes")?.max(1.0);
    Ok(Bulk {
        gbps: number("/end/sum_received/bits_per_second")? / 1e9,
        cpu_s_per_gb: busy * 1e9 / bytes,
        retransmits: number("/end/sum_sent/retransmits")? as u64,
        gigabytes: bytes / 1e9,
        splices: None,
    })
}

/// Starts a server for one test, and waits until it listens.
fn serve_once(namespace: &Namespace, at: SocketAddr) -> Result<Process> {
    let serving = namespace
        .command("iperf3")
        .args(["-s", "-1", "--forceflush"])
        .args(["-B", &at.ip().to_string(), "-p", &at.port().to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = serving.take_stdout().context("iperf3 has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next() {
        if line?.contains("Server listening") {
            // Drain its output: the server must be able to write until it ends.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(serving);
        }
    }
    bail!("the server of iperf3 did not start")
}
