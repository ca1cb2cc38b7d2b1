//! What can go wrong while a laboratory is set up.

use std::io;
use std::process::ExitStatus;

use crate::link::LinkError;

/// Why a namespace, a device, a process or a listener could not be had.
///
/// A connection that fails is not one of these: it is a result, see [`crate::traffic::Failure`].
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
        /// What was attempted, in words that follow "cannot".
        doing: String,
        /// What the kernel said. Part of the message, so that a test that fails says it; hence no source.
        cause: io::Error,
    },
    /// A tool such as `ip` ran and reported a failure.
    #[error("`{line}` failed ({status}): {stderr}")]
    Tool {
        /// The command line.
        line: String,
        /// How the tool ended.
        status: ExitStatus,
        /// What it wrote to its standard error.
        stderr: String,
    },
    /// The description of a link makes no sense.
    #[error("a link cannot be had: {0}")]
    Link(#[from] LinkError),
    /// More servers were asked for than there are networks.
    #[error("{asked} servers are too many: {most} have addresses")]
    TooMany {
        /// How many were asked for.
        asked: usize,
        /// How many there can be.
        most: usize,
    },
    /// There is no namespace, or more than one, of the name that was asked for.
    #[error("no single namespace is called {name}; there are: {there}")]
    NoNamespace {
        /// What was asked for.
        name: String,
        /// What could have been meant.
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
    /// A function for `map_err` that says what was being done.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let doing = doing.into();
        move |cause| Error::Io { doing, cause }
    }
}
