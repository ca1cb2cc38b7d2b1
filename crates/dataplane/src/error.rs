//! Errors of the kernel half.

use std::io;

/// Reason that the kernel half could not be loaded, adopted or attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process lacks privileges.
    #[error(
        "splicing needs CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW and CAP_PERFMON (and CAP_SYS_ADMIN to mount the BPF file system): {what}"
    )]
    Privileges {
        /// Call that was refused.
        what: String,
    },
    /// The kernel lacks a feature.
    #[error("this kernel cannot run the programs: {what} ({source})")]
    Unsupported {
        /// Operation that failed.
        what: String,
        /// Answer of the kernel.
        source: io::Error,
    },
    /// The pins are those of a daemon in another network namespace.
    #[error(
        "{path} belongs to an instance in another network namespace (inode {found}, this one is {ours}): choose \
         another name with --instance, or end its flows with `rm -r {path}`"
    )]
    Namespace {
        /// Directory of the pins.
        path: String,
        /// Inode of the namespace that the pins belong to.
        found: u64,
        /// Inode of our namespace.
        ours: u64,
    },
    /// Another user owns the directory for the pins: `/sys/fs/bpf` may be writable for all, like `/tmp`.
    #[error(
        "{path} is not to be trusted with pins: it {why}. See who made it, and remove it with `rm -r {path}`, or choose \
         another name with --instance"
    )]
    Untrusted {
        /// Directory of the pins.
        path: String,
        /// Reason that it cannot be trusted.
        why: &'static str,
    },
    /// The verifier was interrupted at each attempt.
    #[error(
        "{what}: the kernel's verifier was interrupted again and again (EAGAIN), as by a profiler, a debugger or a freezer \
         that does not let go of this process: start it again without that"
    )]
    Interrupted {
        /// Object that was loaded.
        what: String,
    },
    /// A call failed.
    #[error("{what}: {source}")]
    System {
        /// Call that failed.
        what: String,
        /// Error of the call.
        source: io::Error,
    },
}

impl Error {
    /// Returns true if the interface has gone (ENODEV).
    pub(crate) fn is_of_gone_interface(&self) -> bool {
        matches!(self, Error::System { source, .. } if source.raw_os_error() == Some(libc::ENODEV))
    }

    /// Sorts an error of libbpf or the system by the user's remedy. EPERM means a lack of capabilities; EACCES is about a
    /// file or its directory, and no capability that splicing needs would help.
    pub(crate) fn from_io(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::EPERM) => Error::Privileges { what },
            Some(libc::EINVAL | libc::ENOTSUP | libc::ENOSYS | libc::E2BIG | libc::ENOENT) => {
                Error::Unsupported { what, source }
            }
            _ => Error::System { what, source },
        }
    }

    /// Sorts an error of loading programs: EACCES is a refusal by the verifier then, EPERM means a lack of privileges
    /// (bpf(2)), and EAGAIN that a signal was pending.
    pub(crate) fn from_load(what: &'static str, e: &libbpf_rs::Error) -> Self {
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        // libbpf-rs has one kind for both, and keeps the number in its text alone.
        if format!("{e:#}").contains(&format!("(os error {})", libc::EACCES)) {
            return Error::Unsupported {
                what: format!("{what}: the verifier refuses them; with -vv the log has its reason"),
                source: denied,
            };
        }
        if e.kind() == libbpf_rs::ErrorKind::WouldBlock {
            return Error::Interrupted { what: what.into() };
        }
        Error::from_bpf(what, e)
    }

    /// Sorts an error of libbpf-rs like [`Error::from_io`].
    pub(crate) fn from_bpf(what: impl Into<String>, e: &libbpf_rs::Error) -> Self {
        let kind = match e.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => io::Error::from_raw_os_error(libc::EPERM),
            libbpf_rs::ErrorKind::InvalidInput => io::Error::from_raw_os_error(libc::EINVAL),
            libbpf_rs::ErrorKind::NotFound => io::Error::from_raw_os_error(libc::ENOENT),
            _ => io::Error::other(format!("{e:#}")),
        };
        Error::from_io(what, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_directory_is_not_a_lack_of_capabilities() {
        let make = |code| Error::from_io("cannot create x", io::Error::from_raw_os_error(code));
        assert!(matches!(make(libc::EPERM), Error::Privileges { .. }));
        let told = make(libc::EACCES).to_string();
        assert!(told.starts_with("cannot create x: Permission denied"), "{told}");
    }

    #[test]
    fn the_verifiers_no_is_not_a_lack_of_privileges() {
        let load = |code| {
            let refused = libbpf_rs::Error::from(io::Error::from_raw_os_error(code));
            Error::from_load("cannot load", &refused)
        };
        assert!(matches!(load(libc::EACCES), Error::Unsupported { what, .. } if what.contains("verifier")));
        assert!(matches!(load(libc::EPERM), Error::Privileges { .. }));
        assert!(matches!(
            load(libc::E2BIG),
            Error::Unsupported { .. } | Error::System { .. }
        ));
    }
}
