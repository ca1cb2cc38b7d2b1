//! Runs the daemon of Longsplice as a user does, and queries it.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use longsplice::admin::{Places, Status, client};
use longsplice_engine::{FlowId, FlowInfo};
use longsplice_lab::topology::{F0, F1};
use longsplice_lab::{Namespace, NsCommand, Process};
use rustix::process::Signal;
use serde::de::DeserializeOwned;

use crate::supervise::{self, Room};
use crate::wait;

/// Longest time until the daemon has loaded its programs, on a busy machine.
const START: Duration = Duration::from_secs(30);
/// Longest time until its open connections are detached.
pub(crate) const DETACH: Duration = Duration::from_secs(60);
/// Longest time until it has ended, its grace included.
const STOP: Duration = Duration::from_secs(15);

/// Name of an instance. Dropping it removes the pins of its daemon.
#[derive(Debug)]
pub(crate) struct Instance {
    name: String,
    files: PathBuf,
    program: PathBuf,
}

impl Instance {
    /// Creates a name that no daemon had before.
    pub(crate) fn new(room: &Room) -> Result<Arc<Self>> {
        Ok(Instance::of(room, room.program("longsplice")?))
    }

    /// Creates a name for a daemon of another program.
    pub(crate) fn of(room: &Room, program: PathBuf) -> Arc<Self> {
        let name = room.instance();
        Arc::new(Instance {
            files: room.file(&name),
            program,
            name,
        })
    }

    /// Returns the name for `--instance`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    fn file(&self, extension: &str) -> PathBuf {
        self.files.with_extension(extension)
    }

    /// Returns the last lines of the daemon's log.
    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.file("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        for (dir, name) in [
            ("/sys/fs/bpf", format!("longsplice-{}", self.name)),
            ("/run/longsplice", format!("{}.", self.name)),
        ] {
            // The supervisor tries again, and reports a failure.
            let _ = supervise::remove_all(Path::new(dir), &name);
        }
    }
}

/// Running daemon. Dropping it kills it, and leaves its pins to the [`Instance`].
#[derive(Debug)]
pub(crate) struct Daemon {
    process: Process,
    instance: Arc<Instance>,
}

/// Policy of a listener: the values of options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy<'a> {
    /// Value of `--splice`.
    pub(crate) splice: &'a str,
    /// Value of `--detach`.
    pub(crate) detach: &'a str,
    /// Value of `--unsplice`.
    pub(crate) unsplice: Option<&'a str>,
}

impl<'a> Policy<'a> {
    /// Creates a policy whose connections stay spliced.
    pub(crate) const fn new(splice: &'a str, detach: &'a str) -> Self {
        Policy {
            splice,
            detach,
            unsplice: None,
        }
    }

    /// Returns the policy with conditions under which connections come back.
    pub(crate) const fn until(self, unsplice: &'a str) -> Self {
        Policy {
            unsplice: Some(unsplice),
            ..self
        }
    }
}

impl Daemon {
    /// Starts `longsplice forward`, and waits until it is ready.
    pub(crate) fn forward(
        instance: &Arc<Instance>,
        namespace: &Namespace,
        listen: SocketAddr,
        to: SocketAddr,
        policy: Policy<'_>,
    ) -> Result<Self> {
        let command = namespace
            .command(instance.program())
            .args([
                "forward",
                "--listen",
                &listen.to_string(),
                "--to",
                &to.to_string(),
            ])
            .args(["--splice", policy.splice, "--detach", policy.detach])
            .args(policy.unsplice.map(|until| format!("--unsplice={until}")))
            .args(["--instance", instance.name()]);
        Self::start(command, instance)
    }

    /// Starts `longsplice accelerate` between both sides of a forwarder, with more options, and waits until it is ready.
    pub(crate) fn accelerate(
        instance: &Arc<Instance>,
        namespace: &Namespace,
        options: &[&str],
    ) -> Result<Self> {
        let command = namespace
            .command(instance.program())
            .args(["accelerate", "--inside", F0, "--outside", F1])
            .args(options)
            .args(["--instance", instance.name()]);
        Self::start(command, instance)
    }

    /// Starts `longsplice run` with a listener for each policy, and waits until it is ready; returns their
    /// addresses, too.
    pub(crate) fn listeners(
        instance: &Arc<Instance>,
        namespace: &Namespace,
        first: SocketAddr,
        to: SocketAddr,
        policies: &[Policy<'_>],
    ) -> Result<(Self, Vec<SocketAddr>)> {
        let mut config = format!("instance = \"{}\"\n", instance.name());
        let mut at = Vec::new();
        for (port, policy) in (first.port()..).zip(policies) {
            let Policy { splice, detach, .. } = policy;
            let listen = SocketAddr::new(first.ip(), port);
            config += &format!(
                "[[listener]]\nname = \"l{port}\"\nlisten = \"{listen}\"\nto = \"{to}\"\n\
                 splice = \"{splice}\"\ndetach = \"{detach}\"\n"
            );
            if let Some(until) = policy.unsplice {
                config += &format!("unsplice = \"{until}\"\n");
            }
            at.push(listen);
        }
        Ok((Self::run(instance, namespace, &config)?, at))
    }

    /// Starts `longsplice run` with this configuration, and waits until it is ready.
    pub(crate) fn run(instance: &Arc<Instance>, namespace: &Namespace, config: &str) -> Result<Self> {
        let file = instance.file("toml");
        fs::write(&file, config).with_context(|| format!("write {}", file.display()))?;
        let command = namespace
            .command(instance.program())
            .arg("run")
            .arg("--config")
            .arg(&file);
        Self::start(command, instance)
    }

    /// Starts it, and waits for the notification that services send to systemd.
    fn start(command: NsCommand<'_>, instance: &Arc<Instance>) -> Result<Self> {
        let path = instance.file("notify");
        // The socket exists if a daemon of this instance ran before.
        let _ = fs::remove_file(&path);
        let ready = UnixDatagram::bind(&path).with_context(|| format!("bind {}", path.display()))?;
        ready.set_read_timeout(Some(Duration::from_millis(100)))?;
        let process = command
            .env("NOTIFY_SOCKET", &path)
            .log_to(instance.file("log"))?
            .spawn()?;
        let daemon = Daemon {
            process,
            instance: Arc::clone(instance),
        };
        let deadline = Instant::now() + START;
        let mut word = [0; 256];
        loop {
            // An error is the timeout: time to check that it still runs.
            let said = ready.recv(&mut word).map_or(&[][..], |len| &word[..len]);
            if said.starts_with(b"READY=1") {
                return Ok(daemon);
            }
            if !daemon.process.is_running() || Instant::now() > deadline {
                bail!("longsplice did not start:\n{}", instance.last_words());
            }
        }
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns its status.
    pub(crate) fn status(&self) -> Result<Status> {
        self.ask("GET", "/status")
    }

    /// Waits until it has detached so many connections.
    pub(crate) fn detached(&self, connections: usize) -> Result<()> {
        wait::until("connections to be detached", DETACH, || {
            let detached = self.status()?.counters.detached_total as usize;
            Ok((detached >= connections).then_some(()))
        })
    }

    /// Returns its connections.
    pub(crate) fn flows(&self) -> Result<Vec<FlowInfo>> {
        self.ask("GET", "/flows")
    }

    /// Has a connection spliced (`splice`) or brought back (`unsplice`). Fails if the daemon cannot do that now.
    pub(crate) fn order(&self, id: FlowId, what: &str) -> Result<()> {
        self.request("POST", &format!("/flows/{id}/{what}")).map(drop)
    }

    fn ask<T: DeserializeOwned>(&self, method: &str, path: &str) -> Result<T> {
        let answer = self.request(method, path)?;
        serde_json::from_str(&answer).with_context(|| format!("understand the answer to {method} {path}"))
    }

    fn request(&self, method: &str, path: &str) -> Result<String> {
        let instance = self.instance.name().parse()?;
        let answer = client::request(&Places::of_this_user(), &instance, None, method, path, "");
        answer.with_context(|| format!("{method} {path}:\n{}", self.instance.last_words()))
    }

    /// Returns one of its connections.
    pub(crate) fn flow(&self, id: FlowId) -> Result<Option<FlowInfo>> {
        Ok(self.flows()?.into_iter().find(|flow| flow.id == id))
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(self) -> Result<()> {
        self.process.kill(Signal::KILL)?;
        self.process.wait(STOP)?.context("it survived SIGKILL")?;
        Ok(())
    }

    /// Ends it with SIGTERM, and waits until it has ended.
    pub(crate) fn stop(self) -> Result<()> {
        self.process.kill(Signal::TERM)?;
        let ended = self.process.wait(STOP)?;
        ended.with_context(|| format!("longsplice did not end:\n{}", self.instance.last_words()))?;
        Ok(())
    }
}
