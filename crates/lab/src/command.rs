//! Starts a program inside a namespace.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::{Error, Namespace, Process};

/// Program to be started inside a [`Namespace`]. Standard input is empty; output and errors go to those of this
/// process unless they are redirected.
///
/// Only the network namespace is entered, as by `nsenter --net`. (`ip netns exec` also makes a new mount namespace
/// with a fresh `/sys`, in which pins under `/sys/fs/bpf` cannot be seen.)
#[derive(Debug)]
pub struct NsCommand<'ns> {
    namespace: &'ns Namespace,
    command: Command,
}

impl Namespace {
    /// Returns a command that will run inside the namespace.
    pub fn command(&self, prog: impl AsRef<OsStr>) -> NsCommand<'_> {
        let mut command = Command::new(prog);
        command.stdin(Stdio::null());
        NsCommand {
            namespace: self,
            command,
        }
    }
}

impl NsCommand<'_> {
    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets a variable of the environment, which is otherwise that of this process.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Gives the program an input: a [`File`] or [`Stdio::piped`].
    pub fn stdin(mut self, to: impl Into<Stdio>) -> Self {
        self.command.stdin(to);
        self
    }

    /// Sends its output to a [`File`], a pipe ([`Stdio::piped`]) or nowhere ([`Stdio::null`]).
    pub fn stdout(mut self, to: impl Into<Stdio>) -> Self {
        self.command.stdout(to);
        self
    }

    /// Sends its errors to a [`File`], a pipe ([`Stdio::piped`]) or nowhere ([`Stdio::null`]).
    pub fn stderr(mut self, to: impl Into<Stdio>) -> Self {
        self.command.stderr(to);
        self
    }

    /// Sends both its output and its errors to the file `path`, which is made anew.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be made.
    pub fn log_to(self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let file = File::create(path).map_err(Error::io(format!("create {}", path.display())))?;
        let same = file
            .try_clone()
            .map_err(Error::io("duplicate a file descriptor"))?;
        Ok(self.stdout(file).stderr(same))
    }

    /// Starts the program.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be started, [`Error::Closing`] during an interruption.
    pub fn spawn(self) -> Result<Process, Error> {
        let NsCommand {
            namespace,
            mut command,
        } = self;
        // The child inherits the namespace of the thread that forks it. (PR_SET_PDEATHSIG would not do: it
        // means the death of that thread, which ends now.)
        namespace.run(|| Process::spawn(&mut command))?
    }

    /// Runs the program to its end and returns its output and status.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be started.
    pub fn output(self) -> Result<Output, Error> {
        let NsCommand {
            namespace,
            mut command,
        } = self;
        let what = format!("run {:?}", command.get_program());
        namespace.run(|| command.output())?.map_err(Error::io(what))
    }
}
