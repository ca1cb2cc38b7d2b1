//! Daemon of the product in a node: started as a process, asked, and ended.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use longsplice_lab::{Namespace, Process};
use rustix::process::Signal;
use serde_json::Value;

use super::cost::Cost;
use super::remains::{file, remove};

/// Longest time until a daemon serves, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// Program `longsplice`.
#[derive(Debug, Clone)]
pub(crate) struct Program(PathBuf);

impl Program {
    /// Finds it: where it was named, or else beside this program or in PATH.
    pub(crate) fn find(named: Option<&Path>) -> anyhow::Result<Program> {
        if let Some(path) = named {
            ensure!(path.is_file(), "{} is no file", path.display());
            return Ok(Program(path.to_owned()));
        }
        let beside = std::env::current_exe()?.with_file_name("longsplice");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let others = std::env::split_paths(&path).map(|folder| folder.join("longsplice"));
        let found = [beside].into_iter().chain(others).find(|file| file.is_file());
        found.map(Program).context(
            "there is no program longsplice beside this one or in PATH: build it, or name it with --longsplice",
        )
    }
}

/// Running daemon. Dropping it ends it and removes what it pinned.
#[derive(Debug)]
pub(crate) struct Accelerator {
    process: Process,
    instance: String,
}

impl Accelerator {
    /// Starts it in a node between the devices `e0`, inside, and `e1`, outside, with more options, and waits until it
    /// serves.
    pub(crate) fn start(program: &Program, node: &Namespace, options: &[String]) -> anyhow::Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let instance = format!("lab-{}-{count}", std::process::id());
        let log = file(&instance, "log");
        let process = node
            .command(&program.0)
            .args(["accelerate", "--inside", "e0", "--outside", "e1"])
            .args(options)
            .args(["--instance", &instance, "-v", "--admin"])
            .arg(file(&instance, "sock"))
            .log_to(&log)?
            .spawn()?;
        let accelerator = Accelerator { process, instance };
        let since = Instant::now();
        while accelerator.get("/status").is_none() {
            let said = || fs::read_to_string(&log).unwrap_or_default();
            if !accelerator.process.is_running() {
                bail!("longsplice ended at once:\n{}", said());
            }
            ensure!(
                since.elapsed() < PATIENCE,
                "longsplice does not serve:\n{}",
                said()
            );
            // Poll, because no event announces the socket.
            thread::sleep(Duration::from_millis(5));
        }
        Ok(accelerator)
    }

    /// Returns the state and the counters of its accelerator; null without an answer.
    pub(crate) fn status(&self) -> Value {
        let status = self.get("/status").unwrap_or_default();
        let mut status: Value = serde_json::from_str(&status).unwrap_or_default();
        status["accelerator"].take()
    }

    /// Returns what it has cost since its start.
    pub(crate) fn cost(&self) -> anyhow::Result<Cost> {
        let status = self.get("/status").context("longsplice does not answer")?;
        let status = serde_json::from_str(&status)?;
        Cost::read(self.process.pid(), self.process.cpu_seconds()?, &status)
    }

    /// Returns its flows; none without an answer.
    pub(crate) fn flows(&self) -> Vec<Value> {
        let flows = self.get("/flows").unwrap_or_default();
        serde_json::from_str(&flows).unwrap_or_default()
    }

    /// Makes a request that changes something.
    pub(crate) fn post(&self, path: &str) -> anyhow::Result<()> {
        let (status, body) = self.ask("POST", path).context("longsplice does not answer")?;
        ensure!(status.starts_with('2'), "{path}: {status} {body}");
        Ok(())
    }

    /// Returns its answer to a GET, if its status is 200.
    fn get(&self, path: &str) -> Option<String> {
        let (status, body) = self.ask("GET", path)?;
        (status == "200").then_some(body)
    }

    /// Returns status and body of its answer; `None` without one.
    fn ask(&self, method: &str, path: &str) -> Option<(String, String)> {
        let mut socket = UnixStream::connect(file(&self.instance, "sock")).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).ok()?;
        let head = "HTTP/1.0\r\nhost: longsplice\r\ncontent-length: 0\r\n\r\n";
        write!(socket, "{method} {path} {head}").ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.to_owned(), body.to_owned()))
    }
}

impl Drop for Accelerator {
    fn drop(&mut self) {
        // Kill it: an orderly end would release the flows of a run that is over, and take seconds.
        let _ = self.process.kill(Signal::KILL);
        let _ = self.process.wait(PATIENCE);
        remove(|instance| instance == self.instance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_named_must_be_there() {
        let error = Program::find(Some(Path::new("/no/such/longsplice"))).unwrap_err();
        assert_eq!(error.to_string(), "/no/such/longsplice is no file");
        assert!(Program::find(Some(&std::env::current_exe().unwrap())).is_ok());
    }
}
