//! Runs the work in a child process, whose parent removes all remains after any end of the child: success, an error,
//! a panic, Ctrl-C or SIGKILL.

use std::env;
use std::fs;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use longsplice_lab::{Process, cleanup};
use rustix::process::{Resource, Signal, geteuid, getrlimit, set_parent_process_death_signal, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

/// Variable that makes a process the child, and holds the directory of its files.
const ROOM: &str = "LONGSPLICE_BENCH_ROOM";
const PINS: &str = "/sys/fs/bpf";
const SOCKETS: &str = "/run/longsplice";
const NAMESPACES: &str = "/run/netns";
/// The only setting of the machine that the laboratory changes.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Directory of the work's files, and prefix of the names of its other objects.
#[derive(Debug)]
pub(crate) struct Room {
    dir: PathBuf,
    prefix: String,
    next: AtomicU32,
}

impl Room {
    /// Returns the path of a file that is removed with the room.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns a new number, for names.
    pub(crate) fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a name for an instance of Longsplice; its pins are removed in the end.
    pub(crate) fn instance(&self) -> String {
        format!("{}-{}", self.prefix, self.number())
    }

    /// Returns the path of a program of the same build.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        let own = env::current_exe().context("find this program")?;
        let program = own.with_file_name(name);
        if !program.exists() {
            bail!("{} is missing: `make build` makes it", program.display());
        }
        Ok(program)
    }
}

/// Runs `work` as a child of this process, and removes everything after it. `name` becomes part of the names of
/// namespaces and instances.
pub(crate) fn supervised(name: &str, work: impl FnOnce(&Room) -> Result<()>) -> ExitCode {
    let done = match env::var_os(ROOM) {
        Some(dir) => inside(name, dir.into(), work).map(|()| ExitCode::SUCCESS),
        None => outside(name),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{name}: {error:#}");
        ExitCode::FAILURE
    })
}

fn inside(name: &str, dir: PathBuf, work: impl FnOnce(&Room) -> Result<()>) -> Result<()> {
    cleanup::install()?;
    // The child must clean up as far as it can once its parent is dead.
    set_parent_process_death_signal(Some(Signal::TERM)).context("follow the parent")?;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raise the limit of descriptors")?;
    work(&Room {
        dir,
        prefix: prefix(name, parent_id()),
        next: AtomicU32::new(0),
    })
}

fn prefix(name: &str, pid: u32) -> String {
    format!("{name}-{pid}")
}

fn outside(name: &str) -> Result<ExitCode> {
    if !geteuid().is_root() {
        bail!("needs root: it makes network namespaces");
    }
    let traces = Traces::new(name)?;
    let mut command = Command::new(env::current_exe().context("find this program")?);
    command.args(env::args_os().skip(1)).env(ROOM, traces.dir.path());
    let child = Arc::new(Process::spawn(&mut command)?);
    pass_signals_on(&child)?;
    let status = child.wait(None)?;
    let left = traces.remove(name, child.pid());
    for what in &left {
        eprintln!("{name}: left behind and not to be removed: {what}");
    }
    if left.is_empty() {
        println!("{name}: no namespace, process, pin or file is left behind.");
    }
    let code = status
        .and_then(|status| status.code())
        .and_then(|code| u8::try_from(code).ok());
    match code {
        Some(0) if left.is_empty() => Ok(ExitCode::SUCCESS),
        Some(0) | None => Ok(ExitCode::FAILURE),
        Some(code) => Ok(ExitCode::from(code)),
    }
}

/// Passes signals on: the child can end itself; this process stays to clean up.
fn pass_signals_on(child: &Arc<Process>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("catch signals")?;
    let child = Arc::downgrade(child);
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                let signal = if signal == SIGINT {
                    Signal::INT
                } else {
                    Signal::TERM
                };
                let Some(child) = child.upgrade() else { return };
                if let Err(error) = child.kill(signal) {
                    eprintln!("{error}");
                }
            }
        })
        .context("start the signal thread")?;
    Ok(())
}

/// Objects to remove, and state to restore.
struct Traces {
    dir: TempDir,
    instances: String,
    congestion: String,
    had_sockets: bool,
}

impl Traces {
    fn new(name: &str) -> Result<Self> {
        Ok(Traces {
            dir: TempDir::with_prefix(format!("longsplice-{name}-")).context("make a directory")?,
            instances: format!("{}-", prefix(name, std::process::id())),
            congestion: fs::read_to_string(CONGESTION).context("read the allowed congestion controls")?,
            had_sockets: Path::new(SOCKETS).exists(),
        })
    }

    /// Removes everything; returns a list of what could not be removed.
    fn remove(self, name: &str, child: u32) -> Vec<String> {
        let mut failed = Vec::new();
        let mut check = |what: &str, result: Result<()>| {
            if let Err(error) = result {
                failed.push(format!("{what}: {error:#}"));
            }
        };
        let swept = cleanup::sweep(name).context("remove the namespaces of a dead process");
        check("namespaces", swept.map(drop));
        let pins = format!("longsplice-{}", self.instances);
        check(PINS, remove_all(Path::new(PINS), &pins));
        check(SOCKETS, remove_all(Path::new(SOCKETS), &self.instances));
        if !self.had_sockets && Path::new(SOCKETS).exists() {
            check(SOCKETS, fs::remove_dir(SOCKETS).map_err(Into::into));
        }
        check(CONGESTION, restore(CONGESTION, &self.congestion));
        check("temporary files", self.dir.close().map_err(Into::into));
        let mark = format!("-{child}-");
        let namespaces = names(Path::new(NAMESPACES)).unwrap_or_default();
        failed.extend(namespaces.into_iter().filter(|found| found.contains(&mark)));
        failed
    }
}

/// Removes the files and directories in `dir` whose names start with `prefix`.
pub(crate) fn remove_all(dir: &Path, prefix: &str) -> Result<()> {
    for name in names(dir)?.iter().filter(|name| name.starts_with(prefix)) {
        let path = dir.join(name);
        let removed = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}

/// Returns the names in a directory; none if it does not exist.
fn names(dir: &Path) -> Result<Vec<String>> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    Ok(entries.flatten().map(name).collect())
}

fn restore(path: &str, value: &str) -> Result<()> {
    let now = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    if now != value {
        fs::write(path, value).with_context(|| format!("write {path}"))?;
    }
    Ok(())
}
