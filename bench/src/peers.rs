//! Programs beside which Longsplice is measured, configured by the files in `bench/peers`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_lab::{Namespace, NsCommand, Process};
use rustix::process::Signal;

use crate::supervise::Room;
use crate::wait;

const HAPROXY: &str = include_str!("../peers/haproxy.cfg");
const HAPROXY_SPLICE: &str = include_str!("../peers/haproxy-splice.cfg");
const HAPROXY_COPY: &str = include_str!("../peers/haproxy-copy.cfg");
const NGINX_STREAM: &str = include_str!("../peers/nginx-stream.conf");
const NGINX_TRANSPARENT: &str = include_str!("../peers/nginx-transparent.conf");
const HAPROXY_HTTP: &str = include_str!("../peers/haproxy-http.cfg");
const NGINX_PROXY: &str = include_str!("../peers/nginx-proxy.conf");
const NGINX_FILES: &str = include_str!("../peers/nginx-files.conf");
const NGINX_WEB: &str = include_str!("../peers/nginx-web.conf");

/// Longest time for a peer to end.
const STOP: Duration = Duration::from_secs(5);

/// Size of nginx's buffer for each direction in user space, for speed and for size (its own default).
pub(crate) const FAST: &str = "256k";
pub(crate) const SMALL: &str = "16k";

/// Running peer. Dropping it ends it and its workers, which would survive their master's SIGKILL and keep its port.
#[derive(Debug)]
pub(crate) struct Peer(Process);

impl Peer {
    /// Returns its process id, the parent of all others.
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both programs end at once on SIGTERM. The guard then kills a process that stays, and the namespace's end the
        // rest.
        if self.0.kill(Signal::TERM).is_ok() {
            let _ = self.0.wait(STOP);
        }
    }
}

/// Way of a stream's bytes through HAProxy in TCP mode.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bytes {
    /// HAProxy chooses (`splice-auto`).
    Auto,
    /// They stay in the kernel.
    Splice,
    /// They are copied through large buffers.
    Copy,
}

/// Starts HAProxy in TCP mode, and waits until it listens.
pub(crate) fn haproxy(
    room: &Room,
    at: &Namespace,
    listen: SocketAddr,
    to: SocketAddr,
    bytes: Bytes,
) -> Result<Peer> {
    let template = match bytes {
        Bytes::Auto => HAPROXY,
        Bytes::Splice => HAPROXY_SPLICE,
        Bytes::Copy => HAPROXY_COPY,
    };
    start_haproxy(room, at, listen, to, template)
}

/// Starts HAProxy in HTTP mode, splicing in the kernel, and waits until it listens.
pub(crate) fn haproxy_http(room: &Room, at: &Namespace, listen: SocketAddr, to: SocketAddr) -> Result<Peer> {
    start_haproxy(room, at, listen, to, HAPROXY_HTTP)
}

fn start_haproxy(
    room: &Room,
    at: &Namespace,
    listen: SocketAddr,
    to: SocketAddr,
    template: &str,
) -> Result<Peer> {
    let values = [("TO", to.to_string())];
    let file = configuration(room, "haproxy.cfg", template, listen, &values)?;
    // Debug mode only keeps it in the foreground.
    let command = at.command("haproxy").args(["-q", "-db", "-f"]).arg(&file);
    start(room, at, command, "haproxy", listen)
}

/// Starts nginx as an HTTP proxy, and waits until it listens.
pub(crate) fn nginx_proxy(room: &Room, at: &Namespace, listen: SocketAddr, to: SocketAddr) -> Result<Peer> {
    let values = [("TO", to.to_string())];
    start_nginx(room, at, listen, ("nginx-proxy", NGINX_PROXY), &values)
}

/// Starts nginx as a server of the files of `root` to thousands of connections, and waits until it listens.
pub(crate) fn nginx_files(room: &Room, at: &Namespace, listen: SocketAddr, root: &Path) -> Result<Peer> {
    let values = [("ROOT", root.display().to_string())];
    start_nginx(room, at, listen, ("nginx-files", NGINX_FILES), &values)
}

/// Starts nginx as a forwarder of streams, and waits until it listens.
pub(crate) fn nginx_stream(
    room: &Room,
    at: &Namespace,
    listen: SocketAddr,
    to: SocketAddr,
    buffer: &str,
) -> Result<Peer> {
    let values = [("TO", to.to_string()), ("BUFFER", buffer.to_owned())];
    start_nginx(room, at, listen, ("nginx-stream", NGINX_STREAM), &values)
}

/// Starts nginx as a transparent relay of what a [`Diversion`](crate::diversion::Diversion) brings it, and waits until it
/// listens.
pub(crate) fn nginx_transparent(
    room: &Room,
    at: &Namespace,
    listen: SocketAddr,
    to: SocketAddr,
    buffer: &str,
) -> Result<Peer> {
    let values = [("TO", to.to_string()), ("BUFFER", buffer.to_owned())];
    start_nginx(
        room,
        at,
        listen,
        ("nginx-transparent", NGINX_TRANSPARENT),
        &values,
    )
}

/// Starts nginx as a web server with the files of `root`, and waits until it listens.
pub(crate) fn nginx_web(room: &Room, at: &Namespace, listen: SocketAddr, root: &Path) -> Result<Peer> {
    let values = [("ROOT", root.display().to_string())];
    start_nginx(room, at, listen, ("nginx-web", NGINX_WEB), &values)
}

/// Starts nginx by a template, which is named after its use, and waits until it listens.
fn start_nginx(
    room: &Room,
    at: &Namespace,
    listen: SocketAddr,
    (name, template): (&str, &str),
    values: &[(&str, String)],
) -> Result<Peer> {
    let file = configuration(room, &format!("{name}.conf"), template, listen, values)?;
    let command = at.command("nginx").args(["-e", "stderr", "-c"]).arg(&file);
    start(room, at, command, name, listen)
}

/// Writes a configuration to a directory of its own (`@DIR@`), with an address (`@LISTEN@`) and the number of its processors
/// (`@WORKERS@`), its other `@NAMES@` replaced by values.
fn configuration(
    room: &Room,
    name: &str,
    template: &str,
    listen: SocketAddr,
    values: &[(&str, String)],
) -> Result<PathBuf> {
    let dir = room.file(&format!("peer-{}", room.number()));
    fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
    // Count the processors that this thread may run on.
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let mut text = template
        .replace("@WORKERS@", &workers.to_string())
        .replace("@DIR@", &dir.display().to_string())
        .replace("@LISTEN@", &listen.to_string());
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    let file = dir.join(name);
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

fn start(
    room: &Room,
    at: &Namespace,
    command: NsCommand<'_>,
    name: &str,
    listen: SocketAddr,
) -> Result<Peer> {
    let log = room.file(&format!("{name}.log"));
    let process = command.log_to(&log)?.spawn()?;
    wait::listening(at, &process, listen).with_context(|| {
        let said = fs::read_to_string(&log).unwrap_or_default();
        format!("start {name}:\n{}", said.trim())
    })?;
    Ok(Peer(process))
}
