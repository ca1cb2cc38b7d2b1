//! Errors of the setup of a laboratory.

use std::io;
use std::process::ExitStatus;

use crate::link::LinkError;

/// Reason why a namespace, a device, a process or a listener could not be made.
///
/// A failed connection is a result and not an error, see [`crate::traffic::Failure`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The effective user is not root.
    #[error("needs root: network namespaces cannot be made by an ordinary user")]
    NeedsRoot,
    /// The process is being interrupted, and everything is being removed.
    #[error("the laboratory is closing down")]
    Closing,
    /// A system call failed.
    #[error("cannot {doing}: {cause}")]
    Io {
        /// Action that was attempted, in words that follow "cannot".
        doing: String,
        /// Error of the kernel. It is part of the message, so that a failed test shows it; hence it is no source.
        cause: io::Error,
    },
    /// A tool such as `ip` ran and reported a failure.
    #[error("`{line}` failed ({status}): {stderr}")]
    Tool {
        /// The command line.
        line: String,
        /// Exit status of the tool.
        status: ExitStatus,
        /// Standard error of the tool.
        stderr: String,
    },
    /// The description of a link is out of range.
    #[error("a link cannot be had: {0}")]
    Link(#[from] LinkError),
    /// The topology needs more servers than there are networks.
    #[error("{asked} servers are too many: {most} have addresses")]
    TooMany {
        /// Number of servers in the topology.
        asked: usize,
        /// Largest number of servers.
        most: usize,
    },
    /// The description of a graph cannot be used.
    #[error("a graph cannot be had: {0}")]
    Graph(String),
    /// The kernel's netem cannot make a link.
    #[error("a link cannot be had: {0}")]
    Netem(String),
    /// No namespace, or more than one, has the name.
    #[error("no single namespace is called {name}; there are: {there}")]
    NoNamespace {
        /// The name.
        name: String,
        /// Names that exist.
        there: String,
    },
    /// A file of the kernel did not look as expected.
    #[error("cannot understand {what}: {text:?}")]
    Parse {
        /// The file or field.
        what: &'static str,
        /// The text that was found.
        text: String,
    },
}

impl Error {
    /// Returns a function for `map_err` that adds the attempted action.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let doing = doing.into();
        move |cause| Error::Io { doing, cause }
    }
}
