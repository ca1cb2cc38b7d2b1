//! Reads what the kernel lets a socket of this host hold: a node with small buffers makes a connection slower.
//!
//! The shorter part of a path takes half of its round trip at most. So a node that holds less than half of the window
//! of an end gains nothing for it, wherever the node stands. Larger buffers are judged by the advisor, while they are in
//! use.

use std::{
    fs,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Time for which a reading counts.
const FRESH: Duration = Duration::from_secs(1);

/// Payload of a full segment on a path of Ethernet, in bytes.
const SEGMENT: u64 = 1_460;

/// Limits of the kernel at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Limits {
    /// Payload that a socket can hold in each direction, in bytes; `None`: unknown.
    payload: Option<u64>,
    /// True if the kernel is short of memory for TCP (`tcp_mem`), and shrinks the buffers of all sockets.
    is_short: bool,
}

/// Knows the limits of the kernel's buffers, in the namespace of this process.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    last: Mutex<Option<(Instant, Limits)>>,
}

impl Buffers {
    /// Returns true if a connection whose ends offer this window can gain by two sockets of this host.
    pub(super) fn can_gain(&self, window: u16) -> bool {
        can_gain(self.limits().payload, window)
    }

    /// Returns true if the kernel is short of memory for TCP.
    pub(super) fn are_short(&self) -> bool {
        self.limits().is_short
    }

    fn limits(&self) -> Limits {
        let mut last = self.last.lock();
        match *last {
            Some((at, limits)) if at.elapsed() < FRESH => limits,
            _ => {
                let limits = Limits::read();
                *last = Some((Instant::now(), limits));
                limits
            }
        }
    }
}

fn can_gain(payload: Option<u64>, window: u16) -> bool {
    payload.is_none_or(|payload| payload >= 2 * SEGMENT && payload * 2 >= u64::from(window))
}

impl Limits {
    fn read() -> Limits {
        let sysctl =
            |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        let sockets = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
        let numbers = |name| numbers(&sysctl(name));
        Limits {
            // A segment occupies more than its payload: a quarter more in a send buffer. Half of a receive buffer is
            // offered at first.
            payload: numbers("tcp_wmem")
                .zip(numbers("tcp_rmem"))
                .map(|(write, read)| (write[2] / 5 * 4).min(read[2] / 2)),
            is_short: numbers("tcp_mem")
                .zip(pages(&sockets))
                .is_some_and(|(limits, pages)| pages >= limits[1]),
        }
    }
}

/// Reads three numbers, the form of the kernel's limits.
fn numbers(text: &str) -> Option<[u64; 3]> {
    let all: Vec<u64> = text.split_whitespace().map_while(|n| n.parse().ok()).collect();
    all.try_into().ok()
}

/// Returns the pages that TCP uses, as `/proc/net/sockstat` has them.
fn pages(sockets: &str) -> Option<u64> {
    let line = sockets.lines().find_map(|line| line.strip_prefix("TCP:"))?;
    let mut words = line.split_whitespace();
    words.find(|word| *word == "mem")?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_half_of_a_window_gains_nothing() {
        assert!(can_gain(None, u16::MAX), "unknown");
        assert!(can_gain(Some(3 << 20), u16::MAX));
        assert!(can_gain(Some(32 << 10), u16::MAX), "as fast as without the node");
        assert!(!can_gain(Some(16 << 10), u16::MAX));
        assert!(can_gain(Some(16 << 10), 8 << 10), "the end has less itself");
        assert!(!can_gain(Some(2_000), 1_000), "below two segments");
    }

    #[test]
    fn the_kernels_files_are_read() {
        let text = "sockets: used 290\nTCP: inuse 11 orphan 0 tw 2 alloc 14 mem 3\nUDP: inuse 4 mem 1\n";
        assert_eq!(pages(text), Some(3));
        assert_eq!(pages(""), None);
        assert_eq!(
            numbers("4096\t16384\t4194304\n"),
            Some([4_096, 16_384, 4_194_304])
        );
        assert_eq!(numbers("1 2"), None);
        assert!(Limits::read().payload.is_some_and(|payload| payload > 0));
    }
}
