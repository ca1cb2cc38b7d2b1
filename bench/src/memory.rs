//! How much memory the kernel and a process use.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::machine::meminfo;

/// The kernel's caches of objects that a connection can be made of, by how their names begin. The others only bring
/// the noise of whatever else the machine does.
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
    // Epoll's, pipes', tables of descriptors.
    "kmalloc-",
];
/// Freed objects go back to the kernel's lists only after a while (RCU).
const SETTLE: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(250);
/// So many looks in a row must agree within so many bytes: three seconds, as the daemon gives memory back once two have been quiet.
const STEADY: usize = 12;
const TOLERANCE: u64 = 64 << 10;

/// Whoever looks at a process's descriptors in /proc leaves one of the first for each, and with it one of the others: they are not
/// the connections'.
const PROC: &str = "proc_inode_cache ";
const OF_PROC: [&str; 2] = ["dentry ", "lsm_inode_cache "];

/// The name under which the pages of sockets are counted, beside those of the caches.
const PAGES: &str = "pages of sockets";

/// What is used at a moment, in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Usage {
    /// By the kernel: objects in use of each of the caches above, and the pages of sockets.
    kernel: BTreeMap<String, u64>,
    /// By the process in the middle and its children, what is shared counted in proportion.
    process: u64,
    /// What the kernel says that could still be had: a check of the others, with the noise of the machine.
    available: u64,
}

/// By how much usage grew, in bytes.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Growth {
    /// The kernel's, by cache.
    pub(crate) kernel: BTreeMap<String, f64>,
    /// The process's.
    pub(crate) process: f64,
    /// By how much less is available.
    pub(crate) unavailable: f64,
}

impl Usage {
    /// Now, with the process `pid` and its children.
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

    /// Once both parts have stood still for a while, or have not for long.
    pub(crate) fn settled(pid: Option<u32>) -> Result<Self> {
        let start = Instant::now();
        let mut totals: Vec<[u64; 2]> = Vec::new();
        loop {
            // Nothing tells when lists were emptied.
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

    /// What has come since `before`.
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

/// The name of a cache and the bytes of its objects in use, from a line of slabinfo(5), if it is one of those that
/// count. (Pages would count the holes too that sockets leave between those of the ends.)
fn objects(line: &str) -> Option<(String, u64)> {
    let name = CACHES.iter().find(|name| line.starts_with(**name))?;
    let active = field(line, name, 0)?;
    Some((
        line.split_whitespace().next()?.to_owned(),
        active * field(line, name, 2)?,
    ))
}

/// A number of a line of slabinfo(5) whose name begins like this: 0 are the objects in use, 2 is the size of one.
fn field(line: &str, name: &str, number: usize) -> Option<u64> {
    let mut fields = line.starts_with(name).then(|| line.split_whitespace())?;
    fields.nth(1 + number)?.parse().ok()
}

/// Has the kernel give back what it keeps of those caches for its processors, free objects that count as used else. Where it cannot
/// be asked, figures are less exact.
fn tidy() {
    for entry in fs::read_dir("/sys/kernel/slab").into_iter().flatten().flatten() {
        let name = format!("{} ", entry.file_name().to_string_lossy());
        if CACHES.iter().any(|cache| name.starts_with(cache)) {
            let _ = fs::write(entry.path().join("shrink"), "1");
        }
    }
}

/// What the BPF maps that this process holds take of the kernel's memory, in bytes, as the kernel counts it.
pub(crate) fn maps() -> Result<u64> {
    let mut sizes = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fdinfo")
        .context("list /proc/self/fdinfo")?
        .flatten()
    {
        // One that has been closed meanwhile is not held.
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        sizes.extend(map_size(&info));
    }
    Ok(sizes.values().sum())
}

/// The number and size of a map, if a descriptor is one.
fn map_size(info: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some((field("map_id:")?, field("memlock:")?))
}

/// The pages that all TCP sockets of the machine hold.
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

/// A process and its children.
fn family(pid: u32) -> Result<Vec<u32>> {
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

/// The fourth field of proc_pid_stat(5); the second may hold blanks.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// In KiB; 0 of a process that has ended.
fn pss(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
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
