//! One transfer by curl, from control mode over the splice and a crash of the daemon to a right checksum.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use longsplice_engine::{FlowInfo, FlowState};
use longsplice_lab::{Line, Namespace, Process};

use super::console::{checked, run as command, say, show, step};
use crate::daemon::{Daemon, Instance, Policy};
use crate::supervise::Room;
use crate::{peers, wait};

/// Size of the file: at the pace below, the transfer lasts several times longer than the steps.
const FILE_BYTES: u64 = 512 << 20;
const PACE: &str = "48M";
/// Longest time for any step.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest time for the rest of the transfer after the last step.
const TRANSFER: Duration = Duration::from_secs(60);
/// Time for which bytes are counted, to check that they flow.
const LOOK: Duration = Duration::from_millis(500);

const POLICY: Policy<'_> = Policy::new("never", "now");

/// State that the steps share.
struct Stage<'a> {
    net: &'a Line,
    instance: Arc<Instance>,
    front: SocketAddr,
    web: SocketAddr,
}

/// Shows the transfer.
pub(super) fn run(room: &Room, net: &Line) -> Result<()> {
    let root = room.file("www");
    std::fs::create_dir(&root).context("make a directory")?;
    let (file, expected) = random_file(&root.join("file"))?;
    let stage = Stage {
        net,
        instance: Instance::new(room)?,
        front: (net.forwarder_client_addr, 8080).into(),
        web: (net.server_addr, 80).into(),
    };
    let _nginx = peers::nginx_web(room, &net.server, stage.web, &root)?;
    say(&format!(
        "An nginx serves {} MiB of random bytes, SHA-256 {expected}.",
        FILE_BYTES >> 20
    ));
    let (daemon, curl, flow) = stage.control_mode()?;
    stage.splice(&daemon, &flow)?;
    stage.crash(daemon, &curl)?;
    let daemon = stage.adopt(&flow)?;
    stage.finish(&daemon, curl, &expected)?;
    daemon.stop()?;
    drop(std::fs::remove_file(file));
    Ok(())
}

impl Stage<'_> {
    fn start(&self) -> Result<Daemon> {
        let (instance, front, web) = (&self.instance, self.front, self.web);
        show(
            "forwarder",
            &format!(
                "longsplice forward --listen {front} --to {web} --splice {} --detach {} --instance {} &",
                POLICY.splice,
                POLICY.detach,
                instance.name()
            ),
        );
        Daemon::forward(instance, &self.net.forwarder, front, web, POLICY)
    }

    fn longsplice(&self, args: &[&str]) -> Result<String> {
        let program = self.instance.program().display().to_string();
        let line = [&[&program[..]], args, &["--instance", self.instance.name()]].concat();
        command("forwarder", &self.net.forwarder, &line)
    }

    /// Returns the number of established sockets of the forwarder.
    fn sockets(&self) -> Result<usize> {
        let line = ["ss", "-Htn", "state", "established"];
        Ok(command("forwarder", &self.net.forwarder, &line)?.lines().count())
    }

    fn control_mode(&self) -> Result<(Daemon, Process, FlowInfo)> {
        step(
            1,
            "A connection in control mode: two sockets, and the daemon between them",
        );
        let daemon = self.start()?;
        let fetch = format!(
            "curl -sS --limit-rate {PACE} http://{}/file | sha256sum",
            self.front
        );
        show("client", &format!("{fetch} &"));
        let curl = self
            .net
            .client
            .command("sh")
            .args(["-c", &fetch])
            .stdout(Stdio::piped())
            .spawn()?;
        let flow = wait::until("bytes that are relayed", PATIENCE, || {
            let relayed = |flow: &FlowInfo| flow.state == FlowState::Relay && flow.to_client.bytes > 0;
            Ok(daemon.flows()?.into_iter().find(relayed))
        })?;
        self.longsplice(&["flows"])?;
        let sockets = self.sockets()?;
        ensure!(sockets == 2, "{sockets} sockets instead of two");
        checked("the flow is relayed, over two sockets");
        Ok((daemon, curl, flow))
    }

    fn splice(&self, daemon: &Daemon, flow: &FlowInfo) -> Result<()> {
        step(2, "The splice, in mid-transfer");
        let id = flow.id.to_string();
        let answer = self.longsplice(&["splice", &id])?;
        wait::until("the flow to be detached", PATIENCE, || {
            let now = daemon.flow(flow.id)?;
            let now = now.with_context(|| format!("flow {id} is gone: {answer}"))?;
            Ok((now.state == FlowState::Detached).then_some(()))
        })?;
        self.longsplice(&["flows"])?;
        let sockets = self.sockets()?;
        ensure!(sockets == 0, "{sockets} sockets are still there");
        checked("the flow is detached, and its two sockets are gone");
        Ok(())
    }

    fn crash(&self, daemon: Daemon, curl: &Process) -> Result<()> {
        step(3, "The daemon is killed, the transfer goes on");
        show("forwarder", &format!("kill -KILL {}", daemon.pid()));
        daemon.kill()?;
        self.longsplice(&["flows"])?;
        let before = received(&self.net.client)?;
        // Let bytes flow for a while: there is no event to wait for.
        thread::sleep(LOOK);
        let mib = (received(&self.net.client)? - before) >> 20;
        ensure!(curl.is_running(), "the transfer has ended");
        ensure!(mib > 0, "no bytes without the daemon");
        checked(&format!(
            "without a daemon {mib} MiB reached the client in {LOOK:?}, and the transfer is still running"
        ));
        Ok(())
    }

    fn adopt(&self, flow: &FlowInfo) -> Result<Daemon> {
        step(4, "The daemon is back, and in charge");
        let daemon = self.start()?;
        let look = || -> Result<FlowInfo> {
            let same = |found: &FlowInfo| {
                found.client.peer == flow.client.peer && found.server.local == flow.server.local
            };
            let found = daemon.flows()?.into_iter().find(same);
            found.context("the new daemon does not know the flow")
        };
        let first = look()?;
        self.longsplice(&["flows"])?;
        ensure!(
            first.state == FlowState::Detached,
            "adopted, but {:?}",
            first.state
        );
        let counters = daemon.status()?.counters;
        ensure!(
            counters.adopted_total == 1,
            "{} flows adopted",
            counters.adopted_total
        );
        checked("the flow was adopted");
        let counted = wait::until("its counters to move", PATIENCE, || {
            let now = look()?;
            let more = now.to_client.bytes.saturating_sub(first.to_client.bytes);
            Ok((more > 0).then_some((more, now.to_client.bytes)))
        })?;
        let (more, all) = counted;
        checked(&format!("its counters move: {more} more bytes, {all} so far"));
        Ok(daemon)
    }

    fn finish(&self, daemon: &Daemon, curl: Process, expected: &str) -> Result<()> {
        let mut sum = String::new();
        let stdout = curl.take_stdout().context("curl has no output")?;
        let Some(status) = curl.wait(TRANSFER)? else {
            bail!("the transfer does not end");
        };
        let mut stdout = stdout;
        stdout
            .read_to_string(&mut sum)
            .context("read the sum of the client")?;
        println!("     {}", sum.trim());
        ensure!(status.success(), "the transfer failed: {status}");
        ensure!(
            sum.split_whitespace().next() == Some(expected),
            "the client has other bytes than the server"
        );
        checked("every byte arrived: the SHA-256 is the server's");
        wait::until("the end of the flow", PATIENCE, || {
            let open = daemon
                .flows()?
                .iter()
                .any(|flow| flow.state != FlowState::Closing);
            Ok((!open).then_some(()))
        })?;
        self.longsplice(&["status"])?;
        checked("both FINs passed, and the daemon saw the flow close");
        Ok(())
    }
}

/// Writes the file; returns its path and its SHA-256 as `sha256sum` prints it.
fn random_file(path: &std::path::Path) -> Result<(std::path::PathBuf, String)> {
    let mut random = File::open("/dev/urandom")
        .context("open /dev/urandom")?
        .take(FILE_BYTES);
    let mut file = File::create(path).context("create the file")?;
    io::copy(&mut random, &mut file).context("write the file")?;
    let output = Command::new("sha256sum")
        .arg(path)
        .output()
        .context("run sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let sum = text.split_whitespace().next().context("sha256sum says nothing")?;
    Ok((path.to_owned(), sum.to_owned()))
}

/// Returns the number of bytes that all devices of a namespace have received.
fn received(namespace: &Namespace) -> Result<u64> {
    let table = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
    let of = |line: &str| -> Option<u64> { line.split_once(':')?.1.split_whitespace().next()?.parse().ok() };
    Ok(table.lines().filter_map(of).sum())
}
