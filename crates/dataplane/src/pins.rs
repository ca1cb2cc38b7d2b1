//! Pins the kernel half, so that it outlives the daemon.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::{self, File},
    io,
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

use libbpf_rs::{MapHandle, libbpf_sys};
use parking_lot::Mutex;

use crate::{
    error::Error,
    generations::{self, Directory},
};

/// Names of the pins of the maps: a directory of pins has all of them.
pub(crate) const MAPS: [&str; 7] = [
    "flows", "buckets", "slots", "verdicts", "meta", "rulings", "events",
];

/// Holds the directory of the pins of one generation, and the objects that this process has pinned there. Clones share
/// one state.
#[derive(Debug, Clone)]
pub(crate) struct Pins {
    root: PathBuf,
    held: Arc<Mutex<Held>>,
    /// Lock of the directory; `None` if another process serves it.
    lock: Arc<Mutex<Option<File>>>,
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
    /// Makes the directory of a new generation. No other process finds it before [`Pins::publish`].
    pub(crate) fn make(instance: &str) -> Result<Pins, Error> {
        generations::make(instance).map(Pins::of)
    }

    /// Returns the generations of an instance that no process serves: they are this process's now.
    pub(crate) fn unserved(instance: &str) -> Vec<Pins> {
        generations::unserved(instance)
            .into_iter()
            .map(Pins::of)
            .collect()
    }

    fn of(directory: Directory) -> Pins {
        Pins {
            lock: Arc::new(Mutex::new(Some(directory.lock))),
            ..Pins::at(directory.path)
        }
    }

    fn at(root: PathBuf) -> Pins {
        Pins {
            root,
            held: Arc::default(),
            lock: Arc::default(),
        }
    }

    /// Gives the directory, which is complete, its name.
    pub(crate) fn publish(self) -> Result<Pins, Error> {
        let root = generations::publish(self.instance(), &self.root)?;
        Ok(Pins { root, ..self })
    }

    /// Returns true if all maps have pins. A part of them may have been removed by hand.
    pub(crate) fn is_complete(&self) -> bool {
        self.has(&MAPS)
    }

    /// Returns true if the maps from which flows are adopted have pins, in whatever version.
    pub(crate) fn is_readable(&self) -> bool {
        self.has(&["flows", "slots", "meta"])
    }

    fn has(&self, maps: &[&str]) -> bool {
        maps.iter().all(|name| self.map(name).exists())
    }

    /// Lets the next process serve this generation. Keeps the pins.
    pub(crate) fn unlock(&self) {
        // Closing alone would not do: a child that has not yet executed its program has the lock's file, too.
        if let Some(lock) = self.lock.lock().take()
            && let Err(error) = lock.unlock()
        {
            tracing::warn!(%error, "the next process may take the pins for served");
        }
    }

    /// Holds an object that has a pin, for as long as the pin must be there.
    pub(crate) fn hold(&self, pin: PathBuf, object: OwnedFd) {
        let identity = identify(&pin);
        self.held.lock().insert(pin, Pinned { object, identity });
    }

    /// Pins an object, in place of an older pin, and holds it. On an error, nothing is pinned there.
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

    /// Puts back the pins that were removed, and returns their number. Asks the file system once for each pin. Fails if
    /// they cannot be put back, or another object has their names. Held objects work all the same.
    pub(crate) fn mend(&self) -> Result<usize, Error> {
        let mut held = self.held.lock();
        let gone: Vec<_> = (held.iter_mut())
            .filter(|(pin, pinned)| pinned.identity.is_none() || identify(pin) != pinned.identity)
            .collect();
        let count = gone.len();
        if count == 0 {
            return Ok(0);
        }
        // Make a directory that was removed anew, aside: a kill in the middle must not leave a half.
        let made = match fs::symlink_metadata(&self.root) {
            Ok(there) => {
                generations::trust(&self.root)?;
                let mut lock = self.lock.lock();
                let locked = lock.as_ref().and_then(|lock| lock.metadata().ok());
                if locked.is_none_or(|locked| locked.ino() != there.ino()) {
                    *lock = generations::lock(&self.root);
                }
                None
            }
            Err(_) => Some(generations::make(self.instance())?),
        };
        let root = made.as_ref().map_or(&self.root, |made| &made.path);
        for (pin, pinned) in &gone {
            let at = root.join(pin.strip_prefix(&self.root).unwrap_or(pin));
            let put = at.parent().map_or(Ok(()), make_directory);
            put.and_then(|()| pin_object(pinned.object.as_fd(), &at))
                .map_err(|e| Error::from_io(format!("cannot pin {}", pin.display()), e))
                .inspect_err(|_| made.iter().for_each(|made| generations::remove(&made.path)))?;
        }
        if let Some(made) = made {
            fs::rename(&made.path, &self.root)
                .map_err(|e| Error::from_io(format!("cannot create {}", self.root.display()), e))?;
            *self.lock.lock() = Some(made.lock);
        }
        for (pin, pinned) in gone {
            pinned.identity = identify(pin);
        }
        Ok(count)
    }

    /// Finds the directories of all instances and generations that can be trusted.
    pub(crate) fn all() -> Vec<Pins> {
        let none = Path::new("");
        generations::others(none).into_iter().map(Pins::at).collect()
    }

    /// Finds the directories of other instances and generations that can be trusted.
    pub(crate) fn others(&self) -> Vec<Pins> {
        generations::others(&self.root)
            .into_iter()
            .map(Pins::at)
            .collect()
    }

    /// Finds the other generations of the instance that can be trusted.
    pub(crate) fn siblings(&self) -> Vec<Pins> {
        let mut others = self.others();
        others.retain(|other| other.instance() == self.instance());
        others
    }

    /// Returns true if a process serves this generation.
    pub(crate) fn is_served(&self) -> bool {
        self.root.exists() && generations::lock(&self.root).is_none()
    }

    /// Returns the instance that this is a generation of.
    pub(crate) fn instance(&self) -> &str {
        generations::instance_of(&self.root)
    }

    /// Returns the name that tells this generation from all others.
    pub(crate) fn generation(&self) -> &str {
        generations::name_of(&self.root)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Opens a pinned map. The error names the pin.
    pub(crate) fn open_map(&self, name: &str) -> Result<MapHandle, Error> {
        let path = self.map(name);
        MapHandle::from_pinned_path(&path)
            .map_err(|e| Error::from_bpf(format!("cannot open {}", path.display()), &e))
    }

    pub(crate) fn link(&self, ifindex: u32, hook: &str) -> PathBuf {
        self.root.join("links").join(format!("{ifindex}-{hook}"))
    }

    /// Returns the pins of all hooks.
    pub(crate) fn links(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join("links")).into_iter().flatten();
        entries.flatten().map(|entry| entry.path()).collect()
    }

    /// Returns the interfaces that have pins for the hook of this name.
    pub(crate) fn interfaces(&self, hook: &str) -> Vec<u32> {
        let links = self.links();
        let of_hook = links.iter().filter_map(|pin| {
            let (ifindex, of) = pin.file_name()?.to_str()?.split_once('-')?;
            (of == hook).then(|| ifindex.parse().ok())?
        });
        let mut found: Vec<u32> = of_hook.collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Removes everything.
    pub(crate) fn remove_all(&self) {
        self.held.lock().clear();
        generations::remove(&self.root);
    }
}

/// Removes the pins of all instances whose names begin with `prefix` and that no process serves, with their flows.
pub fn remove_unserved(prefix: &str) {
    for instance in generations::instances() {
        if instance.starts_with(prefix) {
            Pins::unserved(&instance).iter().for_each(Pins::remove_all);
        }
    }
}

/// Removes pins when it is dropped: those of a start that has failed.
#[derive(Debug)]
pub(crate) struct Undo(pub(crate) Option<Pins>);

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(pins) = &self.0 {
            pins.remove_all();
        }
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
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

/// Returns the inode of this thread's network namespace.
pub(crate) fn network_namespace() -> Result<u64, Error> {
    fs::metadata("/proc/thread-self/ns/net")
        .map(|m| m.ino())
        .map_err(|e| Error::from_io("cannot read /proc/thread-self/ns/net", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlocked_directory_is_free_although_a_child_has_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().to_owned();
        let lock = generations::lock(&path).expect("it is free");
        let child = lock.try_clone().expect("a second descriptor");
        let pins = Pins::of(Directory { path, lock });
        pins.unlock();
        assert!(generations::lock(dir.path()).is_some());
        drop(child);
    }
}
