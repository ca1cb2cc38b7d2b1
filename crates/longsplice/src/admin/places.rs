//! Lists the directories for the admin socket of an instance. Daemon and client search them in the same order.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::process::{Uid, geteuid};

use crate::instance::InstanceName;

/// Directories that may hold admin sockets, in order of preference.
#[derive(Debug, Clone)]
pub struct Places {
    pub(super) directories: Vec<PathBuf>,
}

impl Places {
    /// Returns `/run/longsplice`, `$XDG_RUNTIME_DIR/longsplice`, `/tmp/longsplice-UID`.
    pub fn of_this_user() -> Self {
        let runtime = env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|p| p.is_absolute());
        let directories = [
            Some(PathBuf::from("/run/longsplice")),
            runtime.map(|p| p.join("longsplice")),
            Some(PathBuf::from(format!("/tmp/longsplice-{}", geteuid().as_raw()))),
        ];
        Places {
            directories: directories.into_iter().flatten().collect(),
        }
    }

    /// Returns the possible sockets of the instance's daemon, in directories that a client can trust.
    pub(crate) fn sockets(&self, instance: &InstanceName) -> Vec<PathBuf> {
        self.trusted()
            .map(|d| d.join(format!("{instance}.sock")))
            .collect()
    }

    /// Returns the possible locks of the instance's daemon, in the same directories.
    pub(super) fn locks(&self, instance: &InstanceName) -> Vec<PathBuf> {
        self.trusted()
            .map(|d| d.join(format!("{instance}.lock")))
            .collect()
    }

    fn trusted(&self) -> impl Iterator<Item = &PathBuf> {
        self.directories.iter().filter(|d| trusted(d).is_ok())
    }

    /// Returns the first directory that belongs to this user, or that can be created. Fails with the reason for each.
    pub(super) fn own_directory(&self) -> Result<&Path, Vec<(PathBuf, io::Error)>> {
        let mut why = Vec::new();
        for directory in &self.directories {
            match make_own(directory) {
                Ok(()) => return Ok(directory),
                Err(e) => why.push((directory.clone(), e)),
            }
        }
        Err(why)
    }
}

/// Returns paths for a message that tells where a socket was looked for.
pub(super) fn display_all(paths: &[PathBuf]) -> String {
    let shown: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    if shown.is_empty() {
        "every usual place".to_owned()
    } else {
        shown.join(", ")
    }
}

fn make_own(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let owner = trusted(directory)?;
    if owner != geteuid() {
        return Err(denied("belongs to another user"));
    }
    Ok(())
}

/// Refuses a directory into which another user could have put a socket: /tmp is open to all.
fn trusted(directory: &Path) -> io::Result<Uid> {
    let meta = fs::symlink_metadata(directory)?;
    let owner = Uid::from_raw(meta.uid());
    if !meta.is_dir() {
        Err(denied("is not a directory"))
    } else if owner != geteuid() && !owner.is_root() {
        Err(denied("belongs to another user"))
    } else if meta.mode() & 0o022 != 0 {
        Err(denied("can be written by others"))
    } else {
        Ok(owner)
    }
}

fn denied(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}
