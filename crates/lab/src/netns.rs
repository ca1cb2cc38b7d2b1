//! Network namespaces: guards for new ones, and access to any by name.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{io, panic, thread};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::wait_readable;
use crate::registry::{self, Remove, Ticket};
use crate::{Counters, Error, sockets, tool};

/// Directory in which `ip netns` keeps its namespaces.
pub(crate) const NETNS_DIR: &str = "/run/netns";

/// Longest time for which a killed process may still live: it may be deep in the kernel, writing out a core or a
/// socket.
const DEATH: Duration = Duration::from_secs(5);

/// Named network namespace, with `lo` up; `ip netns` shows it.
///
/// Dropping it kills the processes that are still inside and removes the name. Sockets that this process opened
/// in it keep the kernel's half of it alive until they are closed.
#[derive(Debug)]
pub struct Namespace {
    inner: Arc<Inner>,
    ticket: Ticket,
}

#[derive(Debug)]
struct Inner {
    name: String,
    /// True while the name exists. Locked while it is created and removed, so that an interruption waits for a
    /// creation under way, and then removes it.
    exists: Mutex<bool>,
}

impl Remove for Inner {
    fn remove(&self) {
        let mut exists = self.exists.lock();
        if std::mem::take(&mut *exists)
            && let Err(error) = destroy(&self.name)
        {
            // A drop cannot return an error; print a leftover rather than ignore it.
            eprintln!("longsplice-lab: {}: {error}", self.name);
        }
    }
}

impl Namespace {
    /// Makes a namespace named `PREFIX-PID-N`, which no other guard uses.
    ///
    /// # Errors
    /// [`Error::NeedsRoot`] for an ordinary user, [`Error::Tool`] when `ip` refuses, [`Error::Closing`] during
    /// an interruption.
    pub fn new(prefix: &str) -> Result<Self, Error> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        if !geteuid().is_root() {
            return Err(Error::NeedsRoot);
        }
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{}-{count}", std::process::id());
        let inner = Arc::new(Inner {
            name,
            exists: Mutex::new(false),
        });
        let weak = Arc::downgrade(&inner);
        let ticket = registry::remember(weak)?;
        let namespace = Namespace { inner, ticket };
        {
            let mut exists = namespace.inner.exists.lock();
            tool::ip(&format!("netns add {}", namespace.name()))?;
            *exists = true;
        }
        tool::ip(&format!("-n {} link set lo up", namespace.name()))?;
        Ok(namespace)
    }

    /// Returns the name under which `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Runs `work` on a thread inside the namespace, and returns its value. A socket that `work` opens stays in the
    /// namespace wherever it is used later.
    ///
    /// # Errors
    /// [`Error::Io`] when the namespace cannot be entered.
    ///
    /// # Panics
    /// Panics when `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        enter(self.name(), work)
    }

    /// Sets a sysctl of the namespace; `path` has slashes or dots, as in `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel has no such sysctl in a namespace, or refuses the value.
    pub fn sysctl(&self, path: &str, value: &str) -> Result<(), Error> {
        let file = Path::new("/proc/sys").join(path.replace('.', "/"));
        self.run(|| fs::write(&file, value))?
            .map_err(Error::io(format!("set {path} to {value:?}")))
    }

    /// Reads the TCP and IP counters of the namespace.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Parse`] when `/proc/net` cannot be read.
    pub fn snmp(&self) -> Result<Counters, Error> {
        self.run(Counters::read)?
    }

    /// Returns whether a TCP socket listens at `port` in the namespace now, at any address.
    ///
    /// # Errors
    /// [`Error::Io`] when `/proc/net` cannot be read.
    pub fn listens_at(&self, port: u16) -> Result<bool, Error> {
        self.run(|| sockets::listens_at(port))?
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.inner.remove();
        registry::forget(self.ticket);
    }
}

/// Runs `work` on a thread inside the namespace that `ip netns` knows as `name`, and returns its value. Any process
/// may have made the namespace.
///
/// # Errors
/// [`Error::Io`] when the namespace cannot be entered.
///
/// # Panics
/// Panics when `work` does.
pub fn enter<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let file = open(name)?;
    thread::scope(|scope| {
        // Use a thread of its own, because a thread that has entered a namespace stays there.
        let inside = thread::Builder::new()
            .name(format!("in {name}"))
            .spawn_scoped(scope, || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok::<T, Errno>(work())
            })
            .map_err(Error::io("start a thread"))?;
        match inside.join() {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(errno)) => Err(Error::io(format!("enter {name}"))(io::Error::from(errno))),
            Err(payload) => panic::resume_unwind(payload),
        }
    })
}

/// Returns the full name of the namespace that a living process made with the prefix `name`; or `name` itself, if it is
/// a full name.
///
/// # Errors
/// [`Error::NoNamespace`] when there is none, or more than one.
pub fn find(name: &str) -> Result<String, Error> {
    let mut names = names()?;
    names.sort();
    let made = names
        .iter()
        .filter(|full| parts(full).is_some_and(|(prefix, _)| prefix == name));
    let mut found: Vec<&String> = made.filter(|full| !is_left_over(full)).collect();
    found.extend(names.iter().find(|full| *full == name));
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        _ => Err(Error::NoNamespace {
            name: name.to_owned(),
            there: names.join(", "),
        }),
    }
}

/// Returns the names of all namespaces that `ip netns` knows.
pub(crate) fn names() -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(NETNS_DIR) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list network namespaces")(error)),
    };
    let names = entries.flatten().map(|entry| entry.file_name().into_string());
    // The laboratory's names are all valid text.
    Ok(names.filter_map(Result::ok).collect())
}

fn open(name: &str) -> Result<File, Error> {
    File::open(Path::new(NETNS_DIR).join(name)).map_err(Error::io(format!("open namespace {name}")))
}

/// Returns whether the process that made the namespace `name` is gone. A process id that was given to a new process
/// hides that.
pub(crate) fn is_left_over(name: &str) -> bool {
    parts(name).is_some_and(|(_, owner)| !fs::exists(format!("/proc/{owner}")).unwrap_or(true))
}

/// Returns the prefix that the namespace `name` was made with, and the id of the process that made it; `None` if the name
/// lacks the form that [`Namespace::new`] gives.
fn parts(name: &str) -> Option<(&str, u32)> {
    let (rest, count) = name.rsplit_once('-')?;
    let (prefix, pid) = rest.rsplit_once('-')?;
    count.parse::<u32>().ok()?;
    Some((prefix, pid.parse().ok()?))
}

/// Kills the processes in the namespace and removes its name.
pub(crate) fn destroy(name: &str) -> Result<(), Error> {
    kill_inside(name)?;
    tool::ip(&format!("netns delete {name}"))
}

/// Kills every process in the namespace, until none is left: one may fork while another is killed.
fn kill_inside(name: &str) -> Result<(), Error> {
    let inside = open(name)?
        .metadata()
        .map_err(Error::io(format!("look at namespace {name}")))?;
    loop {
        let mut killed = 0;
        for pid in pids_in(inside.ino()) {
            // The handle names this very process: its number cannot be given to another one between the two calls. A
            // process without a handle is gone already, as wanted.
            let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
                continue;
            };
            if pids_in(inside.ino()).contains(&pid) && pidfd_send_signal(&handle, Signal::KILL).is_ok() {
                // A readable handle means a dead process; its parent reaps it, a `Process` guard or init.
                killed += usize::from(wait_readable(&handle, Some(DEATH)).unwrap_or(false));
            }
        }
        if killed == 0 {
            return Ok(());
        }
    }
}

/// Returns the processes, except this one, whose network namespace has this inode number (unique in the machine).
fn pids_in(inode: u64) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|&pid| pid.unsigned_abs() != std::process::id())
        // The link of a zombie cannot be followed any more, so killed processes do not count.
        .filter(|pid| fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|meta| meta.ino() == inode))
        .filter_map(Pid::from_raw)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn the_owner_and_the_prefix_are_read_from_the_name() {
        assert_eq!(parts("my-test-client-4711-2"), Some(("my-test-client", 4711)));
        assert_eq!(parts("t-1-0"), Some(("t", 1)));
        for foreign in ["default", "a-b", "a-1-b", "1-2"] {
            assert_eq!(parts(foreign), None, "{foreign}");
        }
    }
}
