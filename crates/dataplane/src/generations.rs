//! Names and locks the directories of pins. Each process that serves an instance has a generation of the kernel half of
//! its own, with a directory of its own: a successor may start while its predecessor still serves.
//!
//! The first generation has the directory `longsplice-INSTANCE`, a later one `longsplice-INSTANCE+N`. A directory is
//! made under a name with a `~`, and is renamed once all maps are pinned there: at any instant it is complete, or is none.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::mount::{MountFlags, mount};

use crate::error::Error;

const BPFFS: &str = "/sys/fs/bpf";
const PREFIX: &str = "longsplice-";
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Separates the instance's name from the number of a later generation; a dot is reserved in this file system.
const NUMBER: char = '+';

/// Marks the name of a directory that is being made or removed.
const UNFINISHED: char = '~';

/// Maximum number of generations of an instance.
const MOST: u32 = 16;

/// Holds a directory that this process has locked. The lock ends with the process, however that ends.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) lock: File,
}

/// Mounts the BPF file system if it is missing, and checks the instance's first directory. Fails if it cannot be
/// mounted, or the directory cannot be trusted.
pub(crate) fn prepare(instance: &str) -> Result<(), Error> {
    mount_bpffs()?;
    let first = Path::new(BPFFS).join(format!("{PREFIX}{instance}"));
    match fs::symlink_metadata(&first) {
        Ok(_) => trust(&first),
        Err(_) => Ok(()),
    }
}

/// Returns the generations of an instance that no process serves, locked. Removes what a killed process had not finished.
pub(crate) fn unserved(instance: &str) -> Vec<Directory> {
    let mut found = Vec::new();
    for path in of_instance(instance) {
        if trust(&path).is_err() {
            continue;
        }
        let Some(lock) = lock(&path) else { continue };
        match is_unfinished(&path) {
            true => remove(&path),
            false => found.push(Directory { path, lock }),
        }
    }
    found
}

/// Makes a directory for a new generation, under a name that no other process looks for.
pub(crate) fn make(instance: &str) -> Result<Directory, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{PREFIX}{instance}{UNFINISHED}{}-{count}", std::process::id());
    let path = Path::new(BPFFS).join(name);
    let failed = |e| Error::from_io(format!("cannot create {}", path.display()), e);
    let make = |dir: &Path| fs::DirBuilder::new().mode(0o700).create(dir);
    make(&path).map_err(failed)?;
    make(&path.join("links")).map_err(failed)?;
    let lock = lock(&path).ok_or_else(|| failed(io::ErrorKind::WouldBlock.into()))?;
    Ok(Directory { path, lock })
}

/// Gives a directory that is complete the first free name, and returns that.
pub(crate) fn publish(instance: &str, unfinished: &Path) -> Result<PathBuf, Error> {
    for number in 1..=MOST {
        let path = match number {
            1 => Path::new(BPFFS).join(format!("{PREFIX}{instance}")),
            _ => Path::new(BPFFS).join(format!("{PREFIX}{instance}{NUMBER}{number}")),
        };
        // Do not replace an empty directory, either: it may be another user's.
        let renamed = rustix::fs::renameat_with(
            rustix::fs::CWD,
            unfinished,
            rustix::fs::CWD,
            &path,
            rustix::fs::RenameFlags::NOREPLACE,
        );
        match renamed {
            Ok(()) => return Ok(path),
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => {
                return Err(Error::from_io(
                    format!("cannot create {}", path.display()),
                    e.into(),
                ));
            }
        }
    }
    Err(Error::System {
        what: format!("{MOST} predecessors of instance `{instance}` still have flows"),
        source: io::ErrorKind::AlreadyExists.into(),
    })
}

/// Removes a directory with its pins: its name first, so that no half of it is ever found; then links before maps, so
/// that no packet meets a program whose maps are gone.
pub(crate) fn remove(path: &Path) {
    let mut unfinished = path.as_os_str().to_owned();
    if !is_unfinished(path) {
        unfinished.push(format!("{UNFINISHED}{}", std::process::id()));
    }
    let unfinished = PathBuf::from(unfinished);
    let path = match fs::rename(path, &unfinished) {
        Ok(()) => unfinished.as_path(),
        Err(_) => path,
    };
    for dir in [path.join("links"), path.to_owned()] {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
        let _ = fs::remove_dir(&dir);
    }
}

/// Returns the directories of all generations of an instance, those of later processes behind others.
pub(crate) fn of_instance(instance: &str) -> Vec<PathBuf> {
    let mut found = list();
    found.retain(|path| instance_of(path) == instance);
    found.sort();
    found
}

/// Returns the directories of all other generations, of all instances, that can be trusted.
pub(crate) fn others(ours: &Path) -> Vec<PathBuf> {
    let mut found = list();
    found.retain(|path| path != ours && !is_unfinished(path) && trust(path).is_ok());
    found
}

/// Returns the names of all instances that have directories.
pub(crate) fn instances() -> BTreeSet<String> {
    list().iter().map(|path| instance_of(path).to_owned()).collect()
}

fn list() -> Vec<PathBuf> {
    let entries = fs::read_dir(BPFFS).into_iter().flatten().flatten();
    let ours = |name: &OsStr| name.to_string_lossy().starts_with(PREFIX);
    entries
        .filter(|entry| ours(&entry.file_name()))
        .map(|entry| entry.path())
        .collect()
}

/// Returns the name that tells this generation from all others: the directory's, without the prefix.
pub(crate) fn name_of(path: &Path) -> &str {
    let name = path.file_name().and_then(OsStr::to_str);
    name.and_then(|name| name.strip_prefix(PREFIX))
        .unwrap_or_default()
}

/// Returns the instance that a directory belongs to.
pub(crate) fn instance_of(path: &Path) -> &str {
    let name = name_of(path);
    name.split([NUMBER, UNFINISHED]).next().unwrap_or_default()
}

fn is_unfinished(path: &Path) -> bool {
    name_of(path).contains(UNFINISHED)
}

/// Locks a directory; `None` if another process serves it, or it is gone.
pub(crate) fn lock(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
    }
    // Check the name: it may have been removed or renamed between the two calls.
    let (named, locked) = (fs::metadata(path).ok()?, file.metadata().ok()?);
    (named.ino() == locked.ino()).then_some(file)
}

/// Refuses a directory that another user could have made, or could change: if pins vanish, their flows end with the
/// daemon.
pub(crate) fn trust(dir: &Path) -> Result<(), Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_knows_its_instance() {
        for (name, instance, generation) in [
            ("longsplice-edge-1", "edge-1", "edge-1"),
            ("longsplice-edge-1+2", "edge-1", "edge-1+2"),
            ("longsplice-edge-1+2~77", "edge-1", "edge-1+2~77"),
        ] {
            let path = Path::new(BPFFS).join(name);
            assert_eq!((instance_of(&path), name_of(&path)), (instance, generation));
            assert_eq!(is_unfinished(&path), name.contains('~'));
        }
    }
}
