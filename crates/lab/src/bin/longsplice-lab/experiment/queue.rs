//! Bytes that wait in a node's sockets, sampled while a run lasts.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longsplice_lab::netns;
use serde::Serialize;

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(100);

/// Bytes that waited at a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct QueueSample {
    /// Time since the start of the run.
    pub(crate) seconds: f64,
    /// Bytes that were received and not yet read, and those that were written and not yet sent.
    pub(crate) bytes: u64,
}

/// Thread that samples, until it is finished.
#[derive(Debug)]
pub(crate) struct Sampler {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<QueueSample>>,
}

impl Sampler {
    /// Starts to sample the sockets of a namespace.
    pub(crate) fn start(namespace: &str) -> Sampler {
        let over = Arc::new(AtomicBool::new(false));
        let (namespace, end) = (namespace.to_owned(), Arc::clone(&over));
        let start = Instant::now();
        let sample = move || {
            let mut samples = Vec::new();
            while !end.load(Ordering::Relaxed) {
                let seconds = start.elapsed().as_secs_f64();
                samples.extend(queued(&namespace).map(|bytes| QueueSample { seconds, bytes }));
                thread::sleep(EVERY);
            }
            samples
        };
        Sampler {
            over,
            thread: thread::spawn(sample),
        }
    }

    /// Ends it, and returns its samples.
    pub(crate) fn finish(self) -> Vec<QueueSample> {
        self.over.store(true, Ordering::Relaxed);
        // A panic was printed when it happened.
        self.thread.join().unwrap_or_default()
    }
}

/// Returns the bytes that wait in all sockets of a namespace now.
fn queued(namespace: &str) -> Option<u64> {
    let ss = || Command::new("ss").args(["-tnHi"]).output();
    let output = netns::enter(namespace, ss).ok()?.ok()?;
    Some(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Adds up what `ss -tnHi` prints: two lines for each socket, of which the first has the bytes that are not yet read, the
/// second those that are not yet sent.
fn parse(text: &str) -> u64 {
    let mut bytes = 0;
    let mut lines = text.lines();
    while let (Some(socket), Some(info)) = (lines.next(), lines.next()) {
        let unread = socket.split_whitespace().nth(1);
        let unsent = info
            .split_whitespace()
            .find_map(|word| word.strip_prefix("notsent:"));
        let numbers = [unread, unsent].into_iter().flatten();
        bytes += numbers
            .filter_map(|number| number.parse::<u64>().ok())
            .sum::<u64>();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_and_unsent_bytes_add_up() {
        let text = "ESTAB 1000 0 198.18.1.1:5 198.18.2.1:6\n\t reno wscale:7,7 rto:204\n\
                    ESTAB 0 70000 198.18.2.1:6 198.18.1.1:5\n\t cubic wscale:7,7 notsent:50000 minrtt:1\n";
        assert_eq!(parse(text), 51_000);
        assert_eq!(parse(""), 0);
    }
}
