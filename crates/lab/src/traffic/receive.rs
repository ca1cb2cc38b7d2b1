//! Receiving half of an end: it compares every byte.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread;

use sha2::{Digest, Sha256};

use super::end::{End, retry};
use super::exchange::Stopwatch;
use super::gaps::Gaps;
use super::outcome::{EndReport, Failure};
use super::pace::Pacer;
use super::side::Side;
use super::spec::Pause;
use super::tcp_info;
use crate::monotonic_ns;
use crate::pattern::MAX_PIECE;

impl End<'_> {
    /// Reads everything that the other side sends; `begun` holds the times at which the messages of this side began.
    pub(super) fn receive(&self, begun: &Receiver<u64>, report: &mut EndReport) {
        let (transfer, _) = self.job.incoming(self.side);
        let mut seen = Seen {
            gaps: Gaps::default(),
            hash: self.job.spec.sha256.then(Sha256::new),
            stopwatch: match self.side {
                Side::Client => self.job.spec.exchanges.as_ref().map(Stopwatch::new),
                Side::Server => None,
            },
        };
        let mut pacer = Pacer::new(transfer.receive_rate);
        let mut pauses = Pauses::new(&transfer.read_pauses);
        let mut buffer = vec![0; pacer.piece(buffer_len(transfer.bytes))];
        let mut received = 0;
        let result = loop {
            let room = pauses.room(received, buffer.len());
            match self.read(received, &mut buffer[..room], begun, &mut seen) {
                Ok(0) => break Ok(()),
                Ok(len) => received += len as u64,
                Err(failure) => break Err(failure),
            }
            let paused = pauses.keep(received);
            if paused {
                pacer.start_over(received);
            }
            if pacer.keep(received) || paused {
                seen.gaps.resume(monotonic_ns());
            }
            self.progress.advance(received);
        };
        if let Err(failure) = result {
            self.fail(failure);
        }
        (report.longest_gap_us, report.gaps) = seen.gaps.finish();
        report.exchanges = seen.stopwatch.map(Stopwatch::finish).unwrap_or_default();
        let hash = seen.hash.map(|hash| hash.finalize());
        report.sha256 = hash.map(|hash| hash.iter().map(|byte| format!("{byte:02x}")).collect());
    }

    /// Reads and checks the bytes that are there after `received` bytes. Returns their number, or 0 at a proper end.
    fn read(
        &self,
        received: u64,
        buffer: &mut [u8],
        begun: &Receiver<u64>,
        seen: &mut Seen,
    ) -> Result<usize, Failure> {
        let (transfer, pattern) = self.job.incoming(self.side);
        let mut stream = self.stream;
        let bytes = match retry(|| stream.read(buffer)) {
            Ok(0) if received < transfer.bytes => return Err(self.early_end(received, transfer.bytes)),
            Ok(len) => &buffer[..len],
            Err(error) => return Err(self.io_failure(&error)),
        };
        let end = received + bytes.len() as u64;
        if bytes.is_empty() {
            return Ok(0);
        }
        let now = monotonic_ns();
        seen.gaps
            .not_before(self.written_at.load(Ordering::Relaxed).min(now));
        seen.gaps.read(now, received);
        if end > transfer.bytes {
            return Err(Failure::Long {
                expected: transfer.bytes,
            });
        }
        if let Some(at) = pattern.mismatch(received, bytes) {
            return Err(Failure::Mismatch {
                offset: received + at as u64,
            });
        }
        if let Some(hash) = &mut seen.hash {
            hash.update(bytes);
        }
        if let Some(stopwatch) = &mut seen.stopwatch {
            stopwatch.read(now, received, end, || begun.try_recv().ok());
        }
        Ok(bytes.len())
    }

    /// Returns the failure behind an early end of the stream. The kernel reports a reset once, and possibly to the
    /// sending half: then this half reads an orderly end. But only a reset closes a socket that still sends.
    fn early_end(&self, received: u64, expected: u64) -> Failure {
        let sent = self.sent.load(Ordering::Relaxed);
        if sent < self.job.outgoing(self.side).0.bytes && tcp_info::is_closed(self.stream) {
            return Failure::Reset { received, sent };
        }
        Failure::Short { received, expected }
    }
}

/// Records of the bytes that come.
struct Seen {
    gaps: Gaps,
    hash: Option<Sha256>,
    stopwatch: Option<Stopwatch>,
}

/// Pauses of a reader that are still to come, the next one last.
struct Pauses(Vec<Pause>);

impl Pauses {
    fn new(pauses: &[Pause]) -> Self {
        let mut pauses = pauses.to_vec();
        pauses.sort_by_key(|pause| std::cmp::Reverse(pause.after_bytes));
        Pauses(pauses)
    }

    /// Returns the number of bytes, at most `most`, that may be read so that the next pause begins on time.
    fn room(&self, received: u64, most: usize) -> usize {
        let until_pause = self
            .0
            .last()
            .map(|pause| pause.after_bytes.saturating_sub(received));
        let until_pause = until_pause.and_then(|left| usize::try_from(left).ok());
        until_pause.map_or(most, |left| left.clamp(1, most))
    }

    /// Sleeps through the pauses that are due. Returns true if there were any.
    fn keep(&mut self, received: u64) -> bool {
        let mut paused = false;
        while let Some(pause) = self.0.pop_if(|pause| pause.after_bytes <= received) {
            thread::sleep(pause.length);
            paused = true;
        }
        paused
    }
}

/// Returns the size of a buffer for all bytes that should come, and one that should not.
fn buffer_len(bytes: u64) -> usize {
    usize::try_from(bytes.saturating_add(1)).map_or(MAX_PIECE, |len| len.min(MAX_PIECE))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn pauses_come_in_order_and_where_they_should() {
        let pause = |after_bytes| Pause {
            after_bytes,
            length: Duration::ZERO,
        };
        let mut pauses = Pauses::new(&[pause(500), pause(100), pause(100)]);
        assert_eq!(pauses.room(0, 1000), 100);
        assert_eq!(pauses.room(0, 64), 64);
        assert!(!pauses.keep(99));
        assert!(pauses.keep(100));
        assert_eq!(pauses.room(100, 1000), 400);
        assert!(pauses.keep(500));
        assert!(!pauses.keep(10_000));
        assert_eq!(pauses.room(10_000, 1000), 1000);
    }
}
