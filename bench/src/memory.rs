//! Measures the memory that the kernel and a process use.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::machine::meminfo;

/// Kernel caches of objects that a connection can consist of, by the beginnings of their names. Other caches would add
/// only the noise of the machine.
const CACHES: [&str; 12] = [
    "TCP ",
    "request_sock_TCP ",
    "tw_sock_TCP ",
    "tcp_bind",
    "sock_inode_cache",
    "dentry",
    "filp",
    "lsm_inode_cache",
    "eventpoll",
    "ep_head",
    "skbuff_",
    // Epoll, pipes, and descriptor tables use these.
    "kmalloc-",
];
/// Longest wait for a steady state: freed objects return to the kernel's lists only after a while (RCU).
const SETTLE: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(250);
/// Number of successive readings that must agree within a tolerance in bytes: three seconds, as the daemon gives memory
/// back after two quiet ones.
const STEADY: usize = 12;
const TOLERANCE: u64 = 64 << 10;

/// Cache of /proc inodes. A reader of a process's descriptors in /proc leaves one of these for each, and one of the
/// objects below: they do not belong to the connections.
const PROC: &str = "proc_inode_cache ";
const OF_PROC: [&str; 2] = ["dentry ", "lsm_inode_cache "];

/// Name under which the pages of sockets are counted, beside those of the caches.
const PAGES: &str = "pages of sockets";

/// Memory in use at a moment, in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Usage {
    /// Use by the kernel: objects in use of each of the caches above, and the pages of sockets.
    kernel: BTreeMap<String, u64>,
    /// Use by the process in the middle and its children, shared memory counted in proportion.
    process: u64,
    /// Memory that the kernel reports as available: a check of the others, with the noise of the machine.
    available: u64,
}

/// Growth of the use of memory, in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    /// Growth in the kernel, by cache.
    pub(crate) kernel: BTreeMap<String, f64>,
    /// Growth in the process.
    pub(crate) process: f64,
    /// Decrease of the available memory.
    pub(crate) unavailable: f64,
}

impl Usage {
    /// Measures the present use, with the process `pid` and its children.
    pub(crate) fn now(pid: Option<u32>) -> Result<Self> {
        tidy();
        let slabs = fs::read_to_string("/proc/slabinfo").context("read /proc/slabinfo")?;
        let mut kernel: BTreeMap<_, _> = slabs.lines().filter_map(objects).collect();
        let number = |name, number| {
            slabs
                .lines()
                .find_map(|line| field(line, name, number))
                .unwrap_or(0)
        };
        for cache in OF_PROC {
            if let Some(all) = kernel.get_mut(cache.trim_end()) {
                *all = all.saturating_sub(number(PROC, 0) * number(cache, 2));
            }
        }
        kernel.insert(PAGES.to_owned(), socket_pages()? * 4096);
        let process: u64 = match pid {
            Some(pid) => family(pid)?.iter().map(|&pid| pss(pid)).sum(),
            None => 0,
        };
        Ok(Usage {
            kernel,
            process: process * 1024,
            available: meminfo("MemAvailable")? * 1024,
        })
    }

    fn kernel_total(&self) -> u64 {
        self.kernel.values().sum()
    }

    /// Measures the use once both parts have been steady for a while, or after a time limit.
    pub(crate) fn settled(pid: Option<u32>) -> Result<Self> {
        let start = Instant::now();
        let mut totals: Vec<[u64; 2]> = Vec::new();
        loop {
            // Poll: there is no event when the lists were emptied.
            std::thread::sleep(LOOK);
            let now = Usage::now(pid)?;
            totals.push([now.kernel_total(), now.process]);
            let last = &totals[totals.len().saturating_sub(STEADY)..];
            let stands = |part: usize| {
                let of_it = || last.iter().map(|both| both[part]);
                let range = of_it().max().zip(of_it().min());
                range.is_some_and(|(max, min)| max - min <= TOLERANCE)
            };
            if (last.len() == STEADY && stands(0) && stands(1)) || start.elapsed() > SETTLE {
                return Ok(now);
            }
        }
    }

    /// Returns the growth since `before`.
    pub(crate) fn since(&self, before: &Usage) -> Growth {
        let bytes = |now: u64, then: u64| now as f64 - then as f64;
        let cache = |(name, &now): (&String, &u64)| {
            let then = before.kernel.get(name).copied().unwrap_or(0);
            (name.clone(), bytes(now, then))
        };
        Growth {
            kernel: self.kernel.iter().map(cache).collect(),
            process: bytes(self.process, before.process),
            unavailable: bytes(before.available, self.available),
        }
    }
}

/// Returns the name of a cache and the bytes of its objects in use, from a line of slabinfo(5), if it is one of
/// [`CACHES`]. (A count of pages would include the holes that sockets leave between those of the ends.)
fn objects(line: &str) -> Option<(String, u64)> {
    let name = CACHES.iter().find(|name| line.starts_with(**name))?;
    let active = field(line, name, 0)?;
    Some((
        line.split_whitespace().next()?.to_owned(),
        active * field(line, name, 2)?,
    ))
}

/// Returns a number of a line of slabinfo(5) whose name begins like this: 0 are the objects in use, 2 is the size of
/// one.
fn field(line: &str, name: &str, number: usize) -> Option<u64> {
    let mut fields = line.starts_with(name).then(|| line.split_whitespace())?;
    fields.nth(1 + number)?.parse().ok()
}

/// Makes the kernel shrink those caches: it keeps free objects for its processors, which would count as used. Where it
/// refuses, figures are less exact.
fn tidy() {
    for entry in fs::read_dir("/sys/kernel/slab").into_iter().flatten().flatten() {
        let name = format!("{} ", entry.file_name().to_string_lossy());
        if CACHES.iter().any(|cache| name.starts_with(cache)) {
            let _ = fs::write(entry.path().join("shrink"), "1");
        }
    }
}

/// Returns the kernel memory of the BPF maps that this process holds, in bytes, as the kernel counts it.
pub(crate) fn maps() -> Result<u64> {
    let mut sizes = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fdinfo")
        .context("list /proc/self/fdinfo")?
        .flatten()
    {
        // A descriptor that was closed meanwhile does not count.
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        sizes.extend(map_size(&info));
    }
    Ok(sizes.values().sum())
}

/// Returns the number and size of a map, if a descriptor is one.
fn map_size(info: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some((field("map_id:")?, field("memlock:")?))
}

/// Returns the number of pages that all TCP sockets of the machine hold.
fn socket_pages() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/sockstat").context("read /proc/net/sockstat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"));
    let pages = line.and_then(|line| {
        line.split_once(" mem ")?
            .1
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    pages.context("/proc/net/sockstat does not tell the memory of TCP")
}

/// Returns a process and its children.
pub(crate) fn family(pid: u32) -> Result<Vec<u32>> {
    let mut family = vec![pid];
    for entry in fs::read_dir("/proc").context("list processes")?.flatten() {
        let Some(other) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if parent(&stat) == Some(pid) {
            family.push(other);
        }
    }
    Ok(family)
}

/// Returns the fourth field of proc_pid_stat(5); the second may hold blanks.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the resident memory of a process and its children, in bytes (RSS).
pub(crate) fn resident(pid: u32) -> Result<u64> {
    let family = family(pid)?.into_iter();
    Ok(family.map(|pid| size(pid, "Rss:")).sum::<u64>() * 1024)
}

/// Returns the proportional share of a process, in KiB; 0 if it has ended.
fn pss(pid: u32) -> u64 {
    size(pid, "Pss:")
}

/// Reads a size of smaps_rollup (proc_pid_smaps(5)), in KiB; 0 of a process that has ended.
fn size(pid: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_know_their_parent() {
        assert_eq!(parent("7 (a b) c) S 42 7 7"), Some(42));
    }

    #[test]
    fn objects_of_connections_are_counted_and_no_others() {
        let line = |name: &str| format!("{name:<17}    118    169   2368   13    8 : tunables    0    0");
        assert_eq!(objects(&line("TCP")), Some(("TCP".to_owned(), 118 * 2368)));
        assert_eq!(objects(&line("TCPv6")), None);
        assert!(objects(&line("kmalloc-512")).is_some());
        assert_eq!(objects(&line("ext4_inode_cache")), None);
    }

    #[test]
    fn maps_are_known_by_their_numbers() {
        let map = "pos:\t0\nflags:\t02000002\nmap_type:\t2\nmemlock:\t528704\nmap_id:\t5\nfrozen:\t0\n";
        assert_eq!(map_size(map), Some((5, 528_704)));
        assert_eq!(
            map_size("pos:\t0\nflags:\t02000002\nprog_id:\t5\nmemlock:\t4096\n"),
            None
        );
    }

    #[test]
    fn this_process_uses_memory() {
        let pid = std::process::id();
        let usage = Usage::now(Some(pid)).unwrap();
        assert!(usage.kernel_total() > 0 && usage.process > 0 && usage.available > 0);
    }
}
