//! Ensures one daemon for each instance: by a lock that ends with its process, and the socket for clients.

use std::{
    fs::{self, File, Permissions, TryLockError},
    io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use rustix::fs::{major, minor};

use super::places::{Places, display_all};
use crate::instance::InstanceName;

/// Right to be the daemon of an instance. Dropping it removes the socket and the lock.
#[derive(Debug)]
pub(crate) struct Claim {
    socket: PathBuf,
    /// Listener of the socket, and the inode of its name; `None` until it is bound.
    listener: Option<(UnixListener, u64)>,
    lock_path: PathBuf,
    /// Lock; `None` once it is a successor's.
    lock: Option<File>,
    /// True once the socket has its name.
    is_open: bool,
}

/// Reason why an instance could not be claimed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// Another daemon has claimed it.
    #[error(
        "a daemon of instance `{instance}` is running already ({}): give this one another name with --instance NAME, or stop that one",
        at.display()
    )]
    Running {
        instance: InstanceName,
        /// Lock or socket of that daemon.
        at: PathBuf,
    },
    /// The daemon to be replaced has its socket elsewhere.
    #[error(
        "a daemon of instance `{instance}` is running, but its admin socket is elsewhere than {}: `admin` (or --admin) must be the same \
         for the one that replaces it",
        display_all(.looked)
    )]
    Elsewhere {
        instance: InstanceName,
        /// Paths without a socket of that daemon.
        looked: Vec<PathBuf>,
    },
    /// No directory can hold the lock.
    #[error("there is no place for the admin socket: {}", list(.0))]
    NoPlace(Vec<(PathBuf, io::Error)>),
    /// The lock or the socket could not be created.
    #[error("cannot make {}: {source}", path.display())]
    Make {
        /// Path of the lock or socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file that is no socket has the socket's path.
    #[error("{} is in the way of the admin socket: it is no socket, so it is left alone", .0.display())]
    InTheWay(PathBuf),
    /// The socket could not be served.
    #[error("cannot serve the admin socket: {0}")]
    Serve(io::Error),
}

fn list(why: &[(PathBuf, io::Error)]) -> String {
    why.iter()
        .map(|(path, e)| format!("{}: {e}", path.display()))
        .collect::<Vec<_>>()
        .join("; ")
}

/// Claims the instance. `admin` is the path of its socket, instead of the usual one.
pub(crate) fn claim(
    places: &Places,
    instance: &InstanceName,
    admin: Option<&Path>,
) -> Result<Claim, ClaimError> {
    let directory = places.own_directory().map_err(ClaimError::NoPlace)?;
    // Lock the instance, not the socket: two sockets would still share one set of pins.
    let lock_path = directory.join(format!("{instance}.lock"));
    let lock = match lock(&lock_path) {
        Ok(Some(lock)) => lock,
        Ok(None) => {
            return Err(ClaimError::Running {
                instance: instance.clone(),
                at: lock_path,
            });
        }
        Err(source) => {
            return Err(ClaimError::Make {
                path: lock_path,
                source,
            });
        }
    };
    let socket = admin.map_or_else(|| directory.join(format!("{instance}.sock")), Path::to_owned);
    if UnixStream::connect(&socket).is_ok() {
        return Err(ClaimError::Running {
            instance: instance.clone(),
            at: socket,
        });
    }
    let mut claim = Claim {
        socket,
        listener: None,
        lock_path,
        lock: Some(lock),
        is_open: false,
    };
    claim.bind()?;
    claim.open()?;
    Ok(claim)
}

/// Claims the instance with the lock of the running daemon, which both hold then. That one's socket serves until
/// [`Claim::open`].
pub(crate) fn inherit(
    places: &Places,
    instance: &InstanceName,
    admin: Option<&Path>,
    lock: OwnedFd,
) -> Result<Claim, ClaimError> {
    let directory = places.own_directory().map_err(ClaimError::NoPlace)?;
    let socket = admin.map_or_else(|| directory.join(format!("{instance}.sock")), Path::to_owned);
    Ok(Claim {
        socket,
        listener: None,
        lock_path: directory.join(format!("{instance}.lock")),
        lock: Some(File::from(lock)),
        is_open: false,
    })
}

fn is_socket(meta: &fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type())
}

/// Locks the file; returns `None` if another process holds it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(e),
        }
        // Check the name: the previous daemon may have removed the file between the two calls, and a lock on a file
        // without a name excludes no process.
        let ours = file.metadata()?;
        match fs::metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => return Ok(Some(file)),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
}

/// Returns the lock of the instance's daemon, if a process holds it; `None`, too, if the kernel does not tell. Reads the list
/// of locks instead of trying it: that would refuse a daemon that starts at the same moment.
pub(super) fn held_lock(places: &Places, instance: &InstanceName) -> Option<PathBuf> {
    let all = fs::read_to_string("/proc/locks").ok()?;
    places.locks(instance).into_iter().find(|path| {
        fs::metadata(path).is_ok_and(|meta| {
            let (device, inode) = (meta.dev(), meta.ino());
            let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
            all.lines()
                .any(|line| line.contains(" FLOCK ") && line.split_whitespace().any(|field| field == file))
        })
    })
}

/// Returns the path at which the socket of this path is bound. From there it is moved: this replaces a stale socket, and
/// no other user can ever open it.
fn beside(socket: &Path) -> PathBuf {
    let mut beside = socket.as_os_str().to_owned();
    beside.push("~");
    PathBuf::from(beside)
}

/// Binds a socket to this path; returns it with its inode.
fn listen(path: &Path) -> io::Result<(UnixListener, u64)> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok((listener, fs::symlink_metadata(path)?.ino()))
}

impl Claim {
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Makes the socket, which has no name yet.
    pub(crate) fn bind(&mut self) -> Result<(), ClaimError> {
        if fs::symlink_metadata(&self.socket).is_ok_and(|m| !is_socket(&m)) {
            return Err(ClaimError::InTheWay(self.socket.clone()));
        }
        self.listener = Some(self.made(listen(&beside(&self.socket)))?);
        Ok(())
    }

    /// Gives the socket its name, in place of a stale one or a predecessor's.
    pub(crate) fn open(&mut self) -> Result<(), ClaimError> {
        self.made(fs::rename(beside(&self.socket), &self.socket))?;
        self.is_open = true;
        Ok(())
    }

    fn made<T>(&self, made: io::Result<T>) -> Result<T, ClaimError> {
        made.map_err(|source| ClaimError::Make {
            path: self.socket.clone(),
            source,
        })
    }

    /// Returns the lock, for a successor. Fails if there are no descriptors left, or it was handed over before.
    pub(crate) fn lock(&self) -> io::Result<OwnedFd> {
        let lock = self.lock.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Ok(lock.try_clone()?.into())
    }

    /// Leaves the instance to a successor that has the lock. It is free once that ends, although this process may run on.
    pub(crate) fn hand_over(&mut self) {
        self.lock = None;
    }

    pub(super) fn listener(&self) -> io::Result<UnixListener> {
        let (listener, _) = self.listener.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        listener.try_clone()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Leave the socket of a successor, which has replaced ours.
        let path = match self.is_open {
            true => self.socket.clone(),
            false => beside(&self.socket),
        };
        let inode = fs::symlink_metadata(&path).map(|m| m.ino());
        if self
            .listener
            .as_ref()
            .is_some_and(|(_, ours)| inode.is_ok_and(|inode| inode == *ours))
        {
            let _ = fs::remove_file(path);
        }
        // Remove the lock last: while it is held, both names belong to this daemon. The next daemon replaces a file that
        // cannot be removed. A successor that has not opened its socket has failed: the lock is the predecessor's.
        if self.lock.is_some() && self.is_open {
            let _ = fs::remove_file(&self.lock_path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> (tempfile::TempDir, Places) {
        let dir = tempfile::tempdir().unwrap();
        let places = Places {
            directories: vec![PathBuf::from("/proc/no/such"), dir.path().join("longsplice")],
        };
        (dir, places)
    }

    #[test]
    fn a_second_daemon_of_the_instance_is_refused_and_of_another_is_not() {
        let (dir, places) = places();
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        let first = claim(&places, &a, None).unwrap();
        assert_eq!(fs::metadata(first.socket()).unwrap().mode() & 0o777, 0o600);
        let elsewhere = dir.path().join("x.sock");
        for admin in [None, Some(elsewhere.as_path())] {
            let e = claim(&places, &a, admin).unwrap_err();
            assert!(e.to_string().contains("instance `a` is running already"), "{e}");
        }
        claim(&places, &b, None).unwrap();
        drop(first);
        claim(&places, &a, None).unwrap();
        assert_eq!(
            fs::read_dir(dir.path().join("longsplice")).unwrap().count(),
            0,
            "nothing stays behind"
        );
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let (dir, places) = places();
        let instance = InstanceName::default();
        let path = dir.path().join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        drop(claim(&places, &instance, Some(&path)).unwrap());
        fs::write(&path, "mine").unwrap();
        assert!(matches!(
            claim(&places, &instance, Some(&path)),
            Err(ClaimError::InTheWay(_))
        ));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn a_directory_that_others_can_write_is_not_used() {
        let (dir, places) = places();
        let directory = dir.path().join("longsplice");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        let e = claim(&places, &InstanceName::default(), None)
            .unwrap_err()
            .to_string();
        assert!(e.contains("can be written by others"), "{e}");
        assert!(places.sockets(&InstanceName::default()).is_empty());
    }
}
