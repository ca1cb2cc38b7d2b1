//! Removes what runs leave outside of their process: pins and files of daemons, and the clock of eBPF programs.

use std::fs;
use std::path::{Path, PathBuf};

use longsplice_lab::{Error, cleanup};

use super::cost;

/// Beginning of the names of the namespaces.
pub(crate) const NAME: &str = "lab-exp";

/// Folder of the pins of all daemons.
const PINS: &str = "/sys/fs/bpf";

/// Folder of their locks.
const LOCKS: &str = "/run/longsplice";

/// Beginning of the names of pins and files, before the name of the instance.
const PREFIX: &str = "longsplice-";

/// Returns a file of an instance.
pub(super) fn file(instance: &str, kind: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{PREFIX}{instance}.{kind}"))
}

/// Removes what killed runs have left: the daemons first, which would put their pins back.
pub(crate) fn sweep() -> Result<(), Error> {
    cleanup::sweep(NAME)?;
    remove_of(|pid| !Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}

/// Removes what this process leaves once its daemons have ended.
pub(crate) fn remove_own() {
    remove_of(|pid| pid == std::process::id());
}

fn remove_of(is_it: impl Fn(u32) -> bool) {
    cost::restore_clock(&is_it);
    remove(|instance| owner(instance).is_some_and(&is_it));
}

/// Removes pins and files of instances whose daemons have ended.
pub(super) fn remove(is_over: impl Fn(&str) -> bool) {
    let files = std::env::temp_dir();
    for (folder, prefix) in [
        (Path::new(PINS), PREFIX),
        (Path::new(LOCKS), ""),
        (&files, PREFIX),
    ] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let instance = name.to_str().and_then(|name| instance_of(name, prefix));
            if !instance.is_some_and(&is_over) {
                continue;
            }
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // Remove links before maps.
                let _ = fs::remove_dir_all(path.join("links"));
                let _ = fs::remove_dir_all(path);
            } else {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Returns the instance that has pins or a file of this name. The name goes on with `~` for pins that are being made or
/// removed, with `+` for those of a successor, with a dot for a file.
fn instance_of<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    name.strip_prefix(prefix)?.split(['~', '+', '.']).next()
}

/// Returns the id of the process that has started the daemon of an instance; `None` for those of others.
fn owner(instance: &str) -> Option<u32> {
    let (pid, count) = instance.strip_prefix("lab-")?.split_once('-')?;
    count.parse::<u32>().ok()?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_pins_is_in_their_name() {
        let owner_of = |name, prefix| instance_of(name, prefix).and_then(owner);
        for name in [
            "longsplice-lab-4711-2",
            "longsplice-lab-4711-2~4712-0",
            "longsplice-lab-4711-2+2",
            "longsplice-lab-4711-2+2~4713",
            "longsplice-lab-4711-2.sock",
        ] {
            assert_eq!(owner_of(name, PREFIX), Some(4711), "{name}");
        }
        assert_eq!(owner_of("lab-4711-2.lock", ""), Some(4711));
        for other in [
            "longsplice-test-4711-2",
            "longsplice-lab-x-2",
            "longsplice-lab-4711",
            "longsplice-lab-4711.clock",
            "lab-4711-2",
            "longsplice",
        ] {
            assert_eq!(owner_of(other, PREFIX), None, "{other}");
        }
    }
}
