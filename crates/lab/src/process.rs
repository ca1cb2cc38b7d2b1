//! Guard of a child process.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::Error;
use crate::registry::{self, Remove, Ticket};

/// Running program. Dropping it kills the program with SIGKILL and reaps it.
#[derive(Debug)]
pub struct Process {
    inner: Arc<Inner>,
    ticket: Option<Ticket>,
    pid: u32,
}

#[derive(Debug)]
struct Inner {
    /// Handle of the kernel: unlike the number, it never comes to mean another process.
    handle: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    /// Processor time in seconds that the program had used when it ended: the kernel forgets it as the child is
    /// reaped.
    cpu_at_end: Option<f64>,
}

impl Process {
    /// Starts `command` in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be started, [`Error::Closing`] during an interruption.
    pub fn spawn(command: &mut Command) -> Result<Self, Error> {
        let what = format!("start {:?}", command.get_program());
        let child = command.spawn().map_err(Error::io(what))?;
        let pid = child.id();
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|errno| Error::io("open a handle to a child")(errno.into()))?;
        let state = Mutex::new(State {
            child,
            cpu_at_end: None,
        });
        let inner = Arc::new(Inner { handle, state });
        let mut process = Process {
            inner,
            ticket: None,
            pid,
        };
        let weak = Arc::downgrade(&process.inner);
        process.ticket = Some(registry::remember(weak)?);
        Ok(process)
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it a signal; a program that has ended already is no error.
    ///
    /// # Errors
    /// [`Error::Io`] when the kernel refuses.
    pub fn kill(&self, signal: Signal) -> Result<(), Error> {
        match pidfd_send_signal(&self.inner.handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(Error::io(format!("send {signal:?} to {}", self.pid))(
                errno.into(),
            )),
        }
    }

    /// Waits until it ends, at most for `timeout` (`None`: for ever). Returns `None` when it still runs.
    ///
    /// # Errors
    /// [`Error::Io`] when waiting fails.
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<ExitStatus>, Error> {
        let ended =
            wait_readable(&self.inner.handle, timeout.into()).map_err(Error::io("wait for a child"))?;
        if !ended {
            return Ok(None);
        }
        self.inner.reap().map(Some).map_err(Error::io("reap a child"))
    }

    /// Returns whether it still runs.
    pub fn is_running(&self) -> bool {
        matches!(self.wait(Duration::ZERO), Ok(None))
    }

    /// Returns the processor time that all its threads have used so far, user and system, in seconds, with the
    /// resolution of the kernel's clock tick (10 ms); after its end, the total.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Parse`] when `/proc` cannot be read.
    pub fn cpu_seconds(&self) -> Result<f64, Error> {
        let state = self.inner.state.lock();
        match state.cpu_at_end {
            Some(seconds) => Ok(seconds),
            None => cpu_seconds(self.pid),
        }
    }

    /// Takes the writing end of its standard input, once, if that was [`std::process::Stdio::piped`].
    pub fn take_stdin(&self) -> Option<ChildStdin> {
        self.inner.state.lock().child.stdin.take()
    }

    /// Takes the reading end of its standard output, once, if that was [`std::process::Stdio::piped`].
    pub fn take_stdout(&self) -> Option<ChildStdout> {
        self.inner.state.lock().child.stdout.take()
    }

    /// Takes the reading end of its standard error, once, if that was [`std::process::Stdio::piped`].
    pub fn take_stderr(&self) -> Option<ChildStderr> {
        self.inner.state.lock().child.stderr.take()
    }
}

impl Inner {
    /// Waits for the end and collects the exit status. `Child` remembers it, so this may be called again.
    fn reap(&self) -> io::Result<ExitStatus> {
        let mut state = self.state.lock();
        if state.cpu_at_end.is_none() {
            state.cpu_at_end = cpu_seconds(state.child.id()).ok();
        }
        // Avoid `Child::wait` for an ended child: it would close a standard input that the caller has not taken
        // yet.
        match state.child.try_wait()? {
            Some(status) => Ok(status),
            None => state.child.wait(),
        }
    }
}

impl Remove for Inner {
    fn remove(&self) {
        // Both fail only for a process that is gone.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        if wait_readable(&self.handle, None).unwrap_or(false) {
            let _ = self.reap();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.inner.remove();
        if let Some(ticket) = self.ticket {
            registry::forget(ticket);
        }
    }
}

/// Waits until `fd` is readable; a process handle is readable once that process has ended. Returns whether it is
/// readable.
pub(crate) fn wait_readable(fd: impl AsFd, timeout: Option<Duration>) -> io::Result<bool> {
    let deadline = timeout.map(|timeout| std::time::Instant::now() + timeout);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Reads user and system time of all threads of a process, those that have ended included.
fn cpu_seconds(pid: u32) -> Result<f64, Error> {
    let stat =
        fs::read_to_string(format!("/proc/{pid}/stat")).map_err(Error::io("read the times of a process"))?;
    let ticks = parse_ticks(&stat).ok_or_else(|| Error::Parse {
        what: "/proc/PID/stat",
        text: stat.clone(),
    })?;
    Ok(ticks as f64 / clock_ticks_per_second() as f64)
}

/// Returns the sum of fields 14 and 15 of proc_pid_stat(5).
fn parse_ticks(stat: &str) -> Option<u64> {
    // The second field is the name of the program, which may hold blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_an_awkward_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 31 11 5 6 20 0 1 0 100 0 0";
        assert_eq!(parse_ticks(stat), Some(42));
        assert_eq!(parse_ticks("42 (x) S 1"), None);
    }

    #[test]
    fn waiting_ends_with_the_process_and_keeps_its_status() {
        let process = Process::spawn(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        let status = process.wait(None).unwrap().unwrap();
        assert_eq!(status.code(), Some(7));
        assert_eq!(process.wait(Duration::ZERO).unwrap(), Some(status));
        assert!(!process.is_running());
    }

    #[test]
    fn waiting_gives_up_and_dropping_kills() {
        let process = Process::spawn(Command::new("sleep").arg("1000")).unwrap();
        assert_eq!(process.wait(Duration::from_millis(20)).unwrap(), None);
        let proc = format!("/proc/{}", process.pid());
        assert!(fs::exists(&proc).unwrap());
        drop(process);
        assert!(!fs::exists(&proc).unwrap(), "killed and reaped");
    }

    #[test]
    fn processor_time_is_counted_and_survives_the_end() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let process = Process::spawn(Command::new("sh").args(["-c", busy])).unwrap();
        process.wait(None).unwrap().unwrap();
        assert!(process.cpu_seconds().unwrap() > 0.0);
    }
}
