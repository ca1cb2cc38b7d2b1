//! Sending half of an end.

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread;

use super::end::{End, retry};
use super::pace::Pacer;
use crate::monotonic_ns;

impl End<'_> {
    /// Writes all bytes of this side, each message in its turn; sends the time at which each message of an exchange
    /// begins to `begins`.
    pub(super) fn send_all(&self, begins: &Sender<u64>) -> io::Result<()> {
        let (transfer, pattern) = self.job.outgoing(self.side);
        let turns = self
            .job
            .spec
            .exchanges
            .map(|exchanges| exchanges.turns(self.side));
        let mut pacer = Pacer::new(transfer.send_rate);
        let most = pacer.piece(transfer.chunk);
        let mut pause = transfer.pause;
        let mut stream = self.stream;
        let mut sent = 0;
        while sent < transfer.bytes {
            if let Some((received, length)) = turns.and_then(|turns| turns.before(sent)) {
                if !self.progress.wait_for(received) {
                    // The receiving half has recorded the reason.
                    return Ok(());
                }
                thread::sleep(length);
                pacer.start_over(sent);
                // The receiver is gone once receiving is over.
                let _ = begins.send(monotonic_ns());
            }
            if let Some(now) = pause.take_if(|pause| sent >= pause.after_bytes) {
                thread::sleep(now.length);
                pacer.start_over(sent);
            }
            let mut until = pause.map_or(transfer.bytes, |pause| pause.after_bytes.min(transfer.bytes));
            if let Some(turns) = turns {
                until = until.min(turns.message_end(sent));
            }
            let len = usize::try_from(until - sent).map_or(most, |left| left.min(most));
            sent += write(&mut stream, pattern.at(sent, len))? as u64;
            self.sent.store(sent, Ordering::Relaxed);
            pacer.keep(sent);
            if turns.is_some() {
                self.written_at.store(monotonic_ns(), Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

fn write(stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    match retry(|| stream.write(bytes))? {
        0 => Err(ErrorKind::WriteZero.into()),
        len => Ok(len),
    }
}
