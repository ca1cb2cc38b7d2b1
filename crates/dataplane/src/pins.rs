//! Where the kernel half is pinned, so that it outlives the daemon.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use crate::error::Error;

const BPFFS: &str = "/sys/fs/bpf";
const PREFIX: &str = "longsplice-";
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// The folder of an instance's pins.
#[derive(Debug, Clone)]
pub(crate) struct Pins {
    root: PathBuf,
}

impl Pins {
    /// Makes sure that the BPF file system is mounted and the instance's folder is there.
    pub(crate) fn prepare(instance: &str) -> Result<Pins, Error> {
        mount_bpffs()?;
        let root = Path::new(BPFFS).join(format!("{PREFIX}{instance}"));
        for dir in [root.clone(), root.join("links")] {
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::from_io(format!("cannot create {}", dir.display()), e));
                }
                _ => trust(&dir)?,
            }
        }
        Ok(Pins { root })
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

    /// Interfaces that there are pins for, of the hook of this name.
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

    /// Removes the folder if there is nothing in it: one that an unprivileged daemon left would be refused by the next one.
    pub(crate) fn remove_if_empty(&self) {
        let _ = fs::remove_dir(self.root.join("links"));
        let _ = fs::remove_dir(&self.root);
    }

    /// Removes everything: links first, so that no packet meets a program whose maps are gone.
    pub(crate) fn remove_all(&self) {
        for dir in [self.root.join("links"), self.root.clone()] {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                let _ = fs::remove_file(entry.path());
            }
            let _ = fs::remove_dir(&dir);
        }
    }
}

/// Refuses a folder that a stranger could have made, or could change: pins that vanish are flows that end with the daemon.
fn trust(dir: &Path) -> Result<(), Error> {
    let meta = fs::symlink_metadata(dir)
        .map_err(|e| Error::from_io(format!("cannot look at {}", dir.display()), e))?;
    // SAFETY: it takes nothing, and cannot fail.
    let ours = unsafe { libc::geteuid() };
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

/// The inode of this thread's network namespace.
pub(crate) fn network_namespace() -> Result<u64, Error> {
    fs::metadata("/proc/thread-self/ns/net")
        .map(|m| m.ino())
        .map_err(|e| Error::from_io("cannot read /proc/thread-self/ns/net", e))
}

fn mount_bpffs() -> Result<(), Error> {
    let is_mounted = || -> io::Result<bool> {
        // SAFETY: a zeroed statfs is a valid one; the path ends in NUL.
        let mut s: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        match unsafe { libc::statfs(c"/sys/fs/bpf".as_ptr(), &mut s) } {
            0 => Ok(s.f_type as i64 == BPF_FS_MAGIC),
            _ => Err(io::Error::last_os_error()),
        }
    };
    if is_mounted().map_err(|e| Error::from_io(format!("cannot look at {BPFFS}"), e))? {
        return Ok(());
    }
    let none = std::ptr::null();
    // SAFETY: constant strings that end in NUL; `bpf` takes no data.
    match unsafe { libc::mount(c"bpf".as_ptr(), c"/sys/fs/bpf".as_ptr(), c"bpf".as_ptr(), 0, none) } {
        0 => {
            tracing::info!("mounted the BPF file system at {BPFFS}");
            Ok(())
        }
        _ => Err(Error::from_io(
            format!("cannot mount the BPF file system at {BPFFS}"),
            io::Error::last_os_error(),
        )),
    }
}
