//! Reads the limits and the use of a process's memory: of its control group and those above it, in both versions, and
//! of the machine.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    str,
};

use crate::mountinfo::mounts;

/// A limit and the memory in use under it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) limit: u64,
    pub(super) used: u64,
}

impl Reading {
    /// Returns the use in percent; more than 100 if a limit was lowered.
    pub(super) fn percent(self) -> u64 {
        (u128::from(self.used) * 100 / u128::from(self.limit.max(1))) as u64
    }
}

/// Names of the files in one version of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Names {
    limits: &'static [&'static str],
    used: &'static str,
    /// Field with the pages of files that the kernel drops as soon as memory is needed.
    reclaimable: &'static str,
}

const V1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

const V2: Names = Names {
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    reclaimable: "inactive_file",
};

/// Smallest value that means no limit: version 1 shows one near 2^63 if none was set.
const NONE: u64 = 1 << 60;

/// Control groups whose limits apply to this process, from its own one upward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Groups {
    names: Names,
    folders: Vec<PathBuf>,
}

impl Groups {
    /// Finds the groups of this process; returns `None` if no group limits memory here.
    pub(super) fn of_this_process() -> Option<Groups> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        Groups::find(&groups, &mounts, |folder| folder.is_dir())
    }

    /// Finds the groups in the kernel's description of a process (cgroups(7)).
    fn find(groups: &str, mounts: &str, is_there: impl Fn(&Path) -> bool) -> Option<Groups> {
        // A line is ID:CONTROLLERS:PATH; version 2 names no controller.
        let path = |of: &dyn Fn(&str) -> bool| {
            let mut lines = groups
                .lines()
                .filter_map(|line| line.split_once(':')?.1.split_once(':'));
            lines
                .find(|(controllers, _)| of(controllers))
                .map(|(_, path)| path)
        };
        let v1 = || {
            let path = path(&|controllers| controllers.split(',').any(|c| c == "memory"))?;
            Some((
                path,
                V1,
                mounted(mounts, "cgroup", |options| {
                    options.split(',').any(|o| o == "memory")
                })?,
            ))
        };
        let v2 = || Some((path(&str::is_empty)?, V2, mounted(mounts, "cgroup2", |_| true)?));
        let (path, names, (root, point)) = v1().or_else(v2)?;
        // Allow for containers: the mount's root may be the process's own group, or the path may be outside of its
        // view.
        let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
        // Normalize the path: joining an empty path would leave a slash at its end.
        let own: PathBuf = point.join(below).components().collect();
        let own = Some(own).filter(|own| is_there(own));
        let own = own.unwrap_or_else(|| point.clone());
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&point));
        Some(Groups {
            names,
            folders: folders.map(Path::to_owned).collect(),
        })
    }

    /// Reads the limit with the least room; returns `None` if there is no limit.
    pub(super) fn read(&self) -> Option<Reading> {
        let readings = self.folders.iter().filter_map(|folder| self.read_one(folder));
        readings.min_by_key(|r| r.limit.saturating_sub(r.used))
    }

    fn read_one(&self, folder: &Path) -> Option<Reading> {
        let limits = self
            .names
            .limits
            .iter()
            .filter_map(|name| number(&folder.join(name)).ok());
        let limit = limits.min().filter(|&limit| limit < NONE)?;
        let used = number(&folder.join(self.names.used)).ok()?;
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let reclaimable = field(&stat, self.names.reclaimable).unwrap_or(0);
        Some(Reading {
            limit,
            used: used.saturating_sub(reclaimable),
        })
    }
}

/// Finds the root and the mount point of a file system of this type, whose own options meet a condition.
fn mounted(mountinfo: &str, kind: &str, options: impl Fn(&str) -> bool) -> Option<(PathBuf, PathBuf)> {
    let mount = mounts(mountinfo).find(|mount| mount.kind == kind && options(mount.options))?;
    Some((mount.root.into(), mount.point.into()))
}

/// Reads a number of bytes; "max" means no limit.
fn number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    match text.trim() {
        "max" => Ok(u64::MAX),
        digits => digits.parse().map_err(io::Error::other),
    }
}

/// Reads the value of a line "NAME VALUE".
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = lines.find(|(key, _)| *key == name)?;
    value.trim().trim_end_matches(" kB").trim().parse().ok()
}

/// Reads the memory of the machine.
pub(super) fn machine() -> Option<Reading> {
    // The fields stand at the beginning. A file of /proc has no length, so reading all of it takes ten calls.
    let mut head = [0; 512];
    let length = File::open("/proc/meminfo").ok()?.read(&mut head).ok()?;
    meminfo(str::from_utf8(&head[..length]).ok()?)
}

fn meminfo(text: &str) -> Option<Reading> {
    let bytes = |name| Some(field(text, name)? << 10);
    let limit = bytes("MemTotal:")?;
    let used = limit.saturating_sub(bytes("MemAvailable:")?);
    Some(Reading { limit, used })
}

/// Reads the resident memory of this process without pages of files, in bytes.
pub(super) fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let bytes = |name| Some(field(&text.replace('\t', " "), name)? << 10);
    bytes("RssAnon:")
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const V2_MOUNTS: &str =
        "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn find(groups: &str, mounts: &str) -> Option<(&'static str, Vec<String>)> {
        let found = Groups::find(groups, mounts, |folder| !folder.ends_with("elsewhere"))?;
        let folders = found.folders.iter().map(|f| f.display().to_string());
        Some((found.names.used, folders.collect()))
    }

    #[test]
    fn the_groups_of_a_process_are_found_in_either_version_and_in_containers() {
        let v1 = "9:name=systemd:/x\\n4:memory:/a/b\\n3:cpu,cpuacct:/\\n0::/\\n".replace("\\n", "\n");
        let folders = [
            "/sys/fs/cgroup/memory/a/b",
            "/sys/fs/cgroup/memory/a",
            "/sys/fs/cgroup/memory",
        ];
        let folders: Vec<String> = folders.map(str::to_owned).into();
        assert_eq!(find(&v1, V1_MOUNTS), Some((V1.used, folders)));
        let v2 = "0::/system.slice/longsplice.service\n";
        let folders = [
            "/sys/fs/cgroup/system.slice/longsplice.service",
            "/sys/fs/cgroup/system.slice",
            "/sys/fs/cgroup",
        ];
        let folders: Vec<String> = folders.map(str::to_owned).into();
        assert_eq!(find(v2, V2_MOUNTS), Some((V2.used, folders)));
        // Docker mounts the group itself, with or without its own view.
        let own = V2_MOUNTS.replace(" / /sys", " /docker/1 /sys");
        for group in ["0::/docker/1\n", "0::/docker/1/elsewhere\n", "0::/elsewhere\n"] {
            let point = vec!["/sys/fs/cgroup".to_owned()];
            assert_eq!(find(group, &own), Some((V2.used, point)), "{group}");
        }
        assert_eq!(find("", V2_MOUNTS), None);
        assert_eq!(find("4:memory:/\n", ""), None);
    }

    #[test]
    fn the_tightest_limit_holds_and_cached_files_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let (own, above) = (dir.path().join("a/b"), dir.path().join("a"));
        fs::create_dir_all(&own).unwrap();
        let groups = Groups {
            names: V2,
            folders: vec![own.clone(), above.clone(), dir.path().to_owned()],
        };
        assert_eq!(groups.read(), None, "the root has no limit");
        let write = |folder: &Path, files: [(&str, &str); 4]| {
            for (name, text) in files {
                fs::write(folder.join(name), text).unwrap();
            }
        };
        write(
            &own,
            [
                ("memory.max", "max\n"),
                ("memory.high", "max\n"),
                ("memory.current", "900\n"),
                ("memory.stat", ""),
            ],
        );
        assert_eq!(groups.read(), None);
        let stat = "anon 500\nfile 300\ninactive_file 200\n";
        write(
            &above,
            [
                ("memory.max", "2000\n"),
                ("memory.high", "1000\n"),
                ("memory.current", "950\n"),
                ("memory.stat", stat),
            ],
        );
        assert_eq!(
            groups.read(),
            Some(Reading {
                limit: 1000,
                used: 750
            })
        );
        write(
            &own,
            [
                ("memory.max", "950\n"),
                ("memory.high", "max\n"),
                ("memory.current", "900\n"),
                ("memory.stat", ""),
            ],
        );
        assert_eq!(
            groups.read(),
            Some(Reading {
                limit: 950,
                used: 900
            })
        );
        assert_eq!(groups.read().unwrap().percent(), 94);
        let v1 = Groups { names: V1, ..groups };
        fs::write(own.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(own.join("memory.usage_in_bytes"), "5\n").unwrap();
        assert_eq!(v1.read(), None, "no limit was set");
    }

    #[test]
    fn the_machine_and_the_process_are_read() {
        let text = "MemTotal:        1000 kB\nMemFree:          10 kB\nMemAvailable:     250 kB\n";
        let reading = Reading {
            limit: 1000 << 10,
            used: 750 << 10,
        };
        assert_eq!(meminfo(text), Some(reading));
        assert!(machine().is_some());
        assert!(resident().is_some_and(|bytes| bytes > 100 << 10));
    }
}
