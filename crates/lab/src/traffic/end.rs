//! One end of a connection: it sends its pattern and checks the other one's, both at the same time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::gaps::Gaps;
use super::outcome::{EndReport, Failure};
use super::pace::Pacer;
use super::spec::{Job, Side};
use super::tcp_info;
use crate::monotonic_ns;
use crate::pattern::MAX_PIECE;

/// A connected end at work.
struct End<'a> {
    stream: &'a TcpStream,
    side: Side,
    job: &'a Job,
    sent: AtomicU64,
    received: AtomicU64,
    /// The first failure: what follows from it is not told.
    failure: Mutex<Option<Failure>>,
}

/// Does the `side`'s part of `job` over `stream`, on this thread and another one, and leaves it shut down.
pub(super) fn run(stream: &TcpStream, side: Side, job: &Job) -> EndReport {
    let start = Instant::now();
    let end = End {
        stream,
        side,
        job,
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
        failure: Mutex::new(None),
    };
    let mut report = EndReport {
        local: stream.local_addr().ok(),
        peer: stream.peer_addr().ok(),
        ..EndReport::default()
    };
    if let Err(error) = end.prepare() {
        end.fail(Failure::Other(error.to_string()));
    } else {
        end.exchange(&mut report);
    }
    report.total_retrans = tcp_info::total_retrans(stream);
    // A peer that failed may still wait for something.
    let _ = stream.shutdown(Shutdown::Both);
    report.sent = end.sent.into_inner();
    report.received = end.received.into_inner();
    report.failure = end.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.duration_us = start.elapsed().as_micros() as u64;
    report
}

impl End<'_> {
    fn prepare(&self) -> io::Result<()> {
        let stall = Some(self.job.spec.stall);
        self.stream.set_read_timeout(stall)?;
        self.stream.set_write_timeout(stall)?;
        // What is written in chunks is meant to be sent in chunks.
        self.stream.set_nodelay(true)?;
        match &self.job.spec.congestion {
            Some(name) => socket2::SockRef::from(self.stream).set_tcp_congestion(name.as_bytes()),
            None => Ok(()),
        }
    }

    fn exchange(&self, report: &mut EndReport) {
        let (at_end, peer_closed) = channel();
        thread::scope(|scope| {
            let sender = thread::Builder::new().name("lab-send".into());
            let sender = sender
                .stack_size(STACK)
                .spawn_scoped(scope, || self.send(peer_closed));
            if let Err(error) = sender {
                return self.fail(Failure::Other(error.to_string()));
            }
            self.receive(report);
            // Dropped, however receiving ended: the sender waits for this.
            drop(at_end);
        });
    }

    fn send(&self, peer_closed: Receiver<()>) {
        if let Err(error) = self.send_all() {
            return self.fail(self.io_failure(&error));
        }
        if self.job.closes_second(self.side) {
            // Nothing is ever sent: it ends with an error when the receiving half is done.
            let _ = peer_closed.recv();
        }
        if let Err(error) = self.stream.shutdown(Shutdown::Write) {
            self.fail(self.io_failure(&error));
        }
    }

    fn send_all(&self) -> io::Result<()> {
        let (transfer, pattern) = self.job.outgoing(self.side);
        let mut pacer = Pacer::new(transfer.send_rate);
        let most = pacer.piece(transfer.chunk);
        let mut pause = transfer.pause;
        let mut stream = self.stream;
        let mut sent = 0;
        while sent < transfer.bytes {
            if let Some(now) = pause.take_if(|pause| sent >= pause.after_bytes) {
                thread::sleep(now.length);
                pacer.forgive(now.length);
            }
            let until = pause.map_or(transfer.bytes, |pause| pause.after_bytes.min(transfer.bytes));
            let len = usize::try_from(until - sent).map_or(most, |left| left.min(most));
            sent += write(&mut stream, pattern.at(sent, len))? as u64;
            self.sent.store(sent, Ordering::Relaxed);
            pacer.keep(sent);
        }
        Ok(())
    }

    fn receive(&self, report: &mut EndReport) {
        let (transfer, pattern) = self.job.incoming(self.side);
        let pacer = Pacer::new(transfer.receive_rate);
        let mut buffer = vec![0; pacer.piece(buffer_len(transfer.bytes))];
        let mut hash = self.job.spec.sha256.then(Sha256::new);
        let mut gaps = Gaps::default();
        let mut received = 0;
        let result = loop {
            let bytes = match read(&mut &*self.stream, &mut buffer) {
                Ok(0) if received < transfer.bytes => break Err(self.early_end(received, transfer.bytes)),
                Ok(0) => break Ok(()),
                Ok(len) => &buffer[..len],
                Err(error) => break Err(self.io_failure(&error)),
            };
            gaps.read(monotonic_ns(), received);
            if received + bytes.len() as u64 > transfer.bytes {
                break Err(Failure::Long {
                    expected: transfer.bytes,
                });
            }
            if let Some(at) = pattern.mismatch(received, bytes) {
                break Err(Failure::Mismatch {
                    offset: received + at as u64,
                });
            }
            if let Some(hash) = &mut hash {
                hash.update(bytes);
            }
            received += bytes.len() as u64;
            self.received.store(received, Ordering::Relaxed);
            if pacer.keep(received) {
                gaps.resume(monotonic_ns());
            }
        };
        if let Err(failure) = result {
            self.fail(failure);
        }
        (report.longest_gap_us, report.gaps) = gaps.finish();
        report.sha256 = hash.map(|hash| hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
    }

    /// What an end of the stream means that comes too early. The kernel tells of a reset once, and it may have told the
    /// sending half: then this one reads an end in order. But a socket that still sends is closed by nothing else.
    fn early_end(&self, received: u64, expected: u64) -> Failure {
        let sent = self.sent.load(Ordering::Relaxed);
        if sent < self.job.outgoing(self.side).0.bytes && tcp_info::is_closed(self.stream) {
            return Failure::Reset { received, sent };
        }
        Failure::Short { received, expected }
    }

    /// Notes why this end failed, and wakes its other half.
    fn fail(&self, failure: Failure) {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(failure);
        // It may be shut down already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn io_failure(&self, error: &io::Error) -> Failure {
        let received = self.received.load(Ordering::Relaxed);
        let sent = self.sent.load(Ordering::Relaxed);
        match error.kind() {
            // Not connected any more: the other half has heard of the reset already.
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected => {
                Failure::Reset { received, sent }
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Stalled { received, sent },
            _ => Failure::Other(error.to_string()),
        }
    }
}

/// A thousand connections at a time are four thousand threads.
pub(super) const STACK: usize = 128 << 10;

/// No more than what will come, and one byte that should not.
fn buffer_len(bytes: u64) -> usize {
    usize::try_from(bytes + 1).map_or(MAX_PIECE, |len| len.min(MAX_PIECE))
}

fn read(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    retry(|| stream.read(buffer))
}

fn write(stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    match retry(|| stream.write(bytes))? {
        0 => Err(ErrorKind::WriteZero.into()),
        len => Ok(len),
    }
}

fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
