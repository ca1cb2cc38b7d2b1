//! Opens and writes the destination of lines: a file, or standard output.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::errno::Errno;

use crate::config::{AccessLogConfig, AccessLogFormat};

/// An open destination of lines, with their format.
#[derive(Debug)]
pub(crate) struct LogTarget {
    pub(super) format: AccessLogFormat,
    /// Time from one record of a spliced flow to the next; `None`: no such records.
    pub(super) flow_interval: Option<Duration>,
    place: Place,
    /// True if the last line was not written completely.
    torn: bool,
}

#[derive(Debug)]
enum Place {
    Stdout,
    File { path: PathBuf, file: File },
}

/// Error: the destination could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the access log {}: {source}{}", path.display(), remedy(.source))]
pub(crate) struct OpenError {
    path: PathBuf,
    source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; make its folder first",
        io::ErrorKind::IsADirectory => "; name a file in it",
        io::ErrorKind::NotADirectory => "; name a folder before the file",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; the daemon's user must be allowed to write there (systemd: ReadWritePaths= or LogsDirectory=)"
        }
        _ => "",
    }
}

impl LogTarget {
    /// Opens the destination; creates the file, or appends to it.
    pub(crate) fn open(config: &AccessLogConfig) -> Result<LogTarget, OpenError> {
        let place = match &config.path {
            None => Place::Stdout,
            Some(path) => Place::File {
                path: path.clone(),
                file: open(path)?,
            },
        };
        Ok(LogTarget {
            format: config.format,
            flow_interval: config.flow_interval,
            place,
            torn: false,
        })
    }

    /// Looks whether the destination could be opened, as far as its path tells. Creates nothing. Fails if the path is a
    /// folder, or its folder is missing.
    pub(crate) fn check(config: &AccessLogConfig) -> Result<(), OpenError> {
        let Some(path) = &config.path else {
            return Ok(());
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let looked = match path.metadata() {
            Ok(there) if there.is_dir() => Err(Errno::EISDIR.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => folder.metadata().map(drop),
            other => other.map(drop),
        };
        match looked {
            // Leave this to the daemon, whose user may be another one.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            looked => looked.map_err(|source| OpenError {
                path: path.clone(),
                source,
            }),
        }
    }

    /// Opens the file again by its name. If it fails, lines still go to the old file.
    pub(super) fn reopen(&mut self) -> Result<(), OpenError> {
        if let Place::File { path, file } = &mut self.place {
            *file = open(path)?;
            self.look_at_end();
        }
        Ok(())
    }

    /// Looks whether the file ends within a line, before the first one is written: its last writer may have met a full
    /// disk.
    pub(super) fn look_at_end(&mut self) {
        if let Place::File { path, file } = &self.place {
            // Go on without it: a file that cannot be read can be written.
            self.torn = ends_within_a_line(path, file).unwrap_or(false);
        }
    }

    /// Writes lines at once, and takes what is written off them. After an error, the rest of a torn line stands alone.
    pub(super) fn write(&mut self, lines: &mut &[u8]) -> io::Result<()> {
        if self.torn {
            self.place.write(b"\n")?;
            self.torn = false;
        }
        while !lines.is_empty() {
            match self.place.write(lines) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    let (written, rest) = lines.split_at(n.min(lines.len()));
                    self.torn = !written.ends_with(b"\n");
                    *lines = rest;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Place {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            // Write directly: io::stdout() would keep bytes that it could not write.
            Place::Stdout => Ok(rustix::io::write(io::stdout(), bytes)?),
            Place::File { file, .. } => file.write(bytes),
        }
    }
}

/// Opens the file so that only its owner and group may read it: it tells which client asked for what.
fn open(path: &Path) -> Result<File, OpenError> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640);
    // Open without blocking: a FIFO without a reader must not stop the daemon.
    options.custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY);
    options.open(path).map_err(|source| OpenError {
        path: path.to_owned(),
        source,
    })
}

/// Returns whether a file that is open for writing ends within a line. A pipe has no end to look at.
fn ends_within_a_line(path: &Path, file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    File::open(path)?.read_exact_at(&mut last, metadata.len() - 1)?;
    Ok(last != *b"\n")
}
