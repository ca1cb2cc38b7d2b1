//! Pins the kernel half, so that it outlives the daemon.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use libbpf_rs::libbpf_sys;
use parking_lot::Mutex;
use rustix::mount::{MountFlags, mount};

use crate::error::Error;

const BPFFS: &str = "/sys/fs/bpf";
const PREFIX: &str = "longsplice-";
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Holds the directory of an instance's pins, and the objects that this process has pinned there. Clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct Pins {
    root: PathBuf,
    held: Arc<Mutex<Held>>,
}

/// Pinned objects, by the path of the pin. They are held because a link whose only pin is removed would detach from its
/// interface, and the flows there would end.
type Held = BTreeMap<PathBuf, Pinned>;

/// Holds an object of the kernel half that has a pin.
#[derive(Debug)]
struct Pinned {
    object: OwnedFd,
    /// Identity of the pin, which tells it from another one of the same name.
    identity: Option<Identity>,
}

/// Device and inode of a pin.
type Identity = (u64, u64);

impl Pins {
    /// Mounts the BPF file system and makes the instance's directory, if they are missing.
    pub(crate) fn prepare(instance: &str) -> Result<Pins, Error> {
        let pins = Pins::at(Path::new(BPFFS).join(format!("{PREFIX}{instance}")));
        pins.make()?;
        Ok(pins)
    }

    fn at(root: PathBuf) -> Pins {
        Pins {
            root,
            held: Arc::default(),
        }
    }

    fn make(&self) -> Result<(), Error> {
        mount_bpffs()?;
        for dir in [self.root.clone(), self.root.join("links")] {
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::from_io(format!("cannot create {}", dir.display()), e));
                }
                _ => trust(&dir)?,
            }
        }
        Ok(())
    }

    /// Holds an object that has a pin, for as long as the pin must be there.
    pub(crate) fn hold(&self, pin: PathBuf, object: OwnedFd) {
        let identity = identify(&pin);
        self.held.lock().insert(pin, Pinned { object, identity });
    }

    /// Pins an object, in place of an older pin, and holds it.
    ///
    /// # Errors
    /// Returns those of the system; nothing is pinned there then.
    pub(crate) fn pin(&self, object: BorrowedFd<'_>, pin: PathBuf) -> io::Result<()> {
        let object = object.try_clone_to_owned()?;
        let _ = fs::remove_file(&pin);
        pin_object(object.as_fd(), &pin)?;
        self.hold(pin, object);
        Ok(())
    }

    /// Removes a pin, and returns its object.
    pub(crate) fn unpin(&self, pin: &Path) -> Option<OwnedFd> {
        let held = self.held.lock().remove(pin).map(|pinned| pinned.object);
        let object = held.or_else(|| open(pin).ok());
        let _ = fs::remove_file(pin);
        object
    }

    /// Puts back the pins that were removed, and returns their number. Asks the file system once for each pin.
    ///
    /// # Errors
    /// Returns an error if they cannot be put back, or another object has their names. Held objects work all the same.
    pub(crate) fn mend(&self) -> Result<usize, Error> {
        let mut held = self.held.lock();
        let gone: Vec<_> = (held.iter_mut())
            .filter(|(pin, pinned)| pinned.identity.is_none() || identify(pin) != pinned.identity)
            .collect();
        let count = gone.len();
        if count > 0 {
            self.make()?;
        }
        for (pin, pinned) in gone {
            pin_object(pinned.object.as_fd(), pin)
                .map_err(|e| Error::from_io(format!("cannot pin {}", pin.display()), e))?;
            pinned.identity = identify(pin);
        }
        Ok(count)
    }

    /// Finds the directories of other instances that can be trusted.
    pub(crate) fn others(&self) -> Vec<Pins> {
        let entries = fs::read_dir(BPFFS).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
            .map(|entry| Pins::at(entry.path()))
            .filter(|other| other.root != self.root && trust(&other.root).is_ok())
            .collect()
    }

    pub(crate) fn instance(&self) -> &str {
        let name = self.root.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_prefix(PREFIX))
            .unwrap_or_default()
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn link(&self, ifindex: u32, hook: &str) -> PathBuf {
        self.root.join("links").join(format!("{ifindex}-{hook}"))
    }

    /// Returns the interfaces that have pins for the hook of this name.
    pub(crate) fn interfaces(&self, hook: &str) -> Vec<u32> {
        let Ok(entries) = fs::read_dir(self.root.join("links")) else {
            return Vec::new();
        };
        let mut found: Vec<u32> = entries
            .flatten()
            .filter_map(|e| {
                let name = e.file_name();
                let (ifindex, of) = name.to_str()?.split_once('-')?;
                (of == hook).then(|| ifindex.parse().ok())?
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Removes the directory if it is empty: the next daemon would refuse one that an unprivileged daemon left.
    pub(crate) fn remove_if_empty(&self) {
        let _ = fs::remove_dir(self.root.join("links"));
        let _ = fs::remove_dir(&self.root);
    }

    /// Removes everything: links first, so that no packet meets a program whose maps are gone.
    pub(crate) fn remove_all(&self) {
        self.held.lock().clear();
        for dir in [self.root.join("links"), self.root.clone()] {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                let _ = fs::remove_file(entry.path());
            }
            let _ = fs::remove_dir(&dir);
        }
    }
}

fn identify(pin: &Path) -> Option<Identity> {
    let meta = fs::symlink_metadata(pin).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Pins an object, so that it outlives this process.
fn pin_object(object: BorrowedFd<'_>, pin: &Path) -> io::Result<()> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    // SAFETY: a valid descriptor and a string that ends in NUL.
    match unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(-e)),
    }
}

/// Opens a pinned object.
pub(crate) fn open(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    // SAFETY: a string that ends in NUL.
    owned(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })
}

/// Takes the result of libbpf: a new descriptor, or a negative error.
pub(crate) fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel returned this descriptor to us, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Refuses a directory that another user could have made, or could change: if pins vanish, their flows end with the
/// daemon.
fn trust(dir: &Path) -> Result<(), Error> {
    let meta = fs::symlink_metadata(dir)
        .map_err(|e| Error::from_io(format!("cannot look at {}", dir.display()), e))?;
    let ours = rustix::process::geteuid().as_raw();
    let why = if !meta.is_dir() {
        "is not a directory"
    } else if meta.uid() != ours && meta.uid() != 0 {
        "belongs to another user"
    } else if meta.mode() & 0o022 != 0 {
        "can be written by others"
    } else {
        return Ok(());
    };
    Err(Error::Untrusted {
        path: dir.display().to_string(),
        why,
    })
}

/// Returns the inode of this thread's network namespace.
pub(crate) fn network_namespace() -> Result<u64, Error> {
    fs::metadata("/proc/thread-self/ns/net")
        .map(|m| m.ino())
        .map_err(|e| Error::from_io("cannot read /proc/thread-self/ns/net", e))
}

fn mount_bpffs() -> Result<(), Error> {
    let stat =
        rustix::fs::statfs(BPFFS).map_err(|e| Error::from_io(format!("cannot look at {BPFFS}"), e.into()))?;
    if stat.f_type as i64 == BPF_FS_MAGIC {
        return Ok(());
    }
    mount("bpf", BPFFS, "bpf", MountFlags::empty(), None)
        .map_err(|e| Error::from_io(format!("cannot mount the BPF file system at {BPFFS}"), e.into()))?;
    tracing::info!("mounted the BPF file system at {BPFFS}");
    Ok(())
}
