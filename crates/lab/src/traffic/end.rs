//! One end of a connection: it sends its pattern and checks the other one's, both at the same time.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;

use super::outcome::{EndReport, Failure};
use super::progress::Progress;
use super::side::Side;
use super::spec::Job;
use super::tcp_info;
use crate::monotonic_ns;

/// State of a connected end. Its halves are in [`super::send`] and [`super::receive`].
pub(super) struct End<'a> {
    pub(super) stream: &'a TcpStream,
    pub(super) side: Side,
    pub(super) job: &'a Job,
    pub(super) sent: AtomicU64,
    pub(super) progress: Progress,
    /// Time of the last write of a message, in nanoseconds of `CLOCK_MONOTONIC`, where both sides take turns.
    pub(super) written_at: AtomicU64,
    /// First failure; failures that follow from it are discarded.
    failure: Mutex<Option<Failure>>,
}

/// Does the part of `side` in `job` over `stream`, on this thread and another one, and leaves the stream shut down.
pub(super) fn run(stream: &TcpStream, side: Side, job: &Job) -> EndReport {
    let start = Instant::now();
    let end = End {
        stream,
        side,
        job,
        sent: AtomicU64::new(0),
        progress: Progress::default(),
        written_at: AtomicU64::new(0),
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
    report.timeouts = tcp_info::timeouts(stream);
    // A peer that failed may still wait for something.
    let _ = stream.shutdown(Shutdown::Both);
    report.sent = end.sent.into_inner();
    report.received = end.progress.received();
    report.failure = end.failure.into_inner();
    report.duration_us = start.elapsed().as_micros() as u64;
    report.ended_ns = monotonic_ns();
    report
}

impl End<'_> {
    fn prepare(&self) -> io::Result<()> {
        let stall = Some(self.job.spec.stall);
        self.stream.set_read_timeout(stall)?;
        self.stream.set_write_timeout(stall)?;
        // Send each chunk as soon as it is written.
        self.stream.set_nodelay(true)?;
        match &self.job.spec.congestion {
            Some(name) => socket2::SockRef::from(self.stream).set_tcp_congestion(name.as_bytes()),
            None => Ok(()),
        }
    }

    fn exchange(&self, report: &mut EndReport) {
        let (begins, begun) = channel();
        thread::scope(|scope| {
            let sender = thread::Builder::new().name("lab-send".into());
            let sender = sender.stack_size(STACK).spawn_scoped(scope, || self.send(begins));
            if let Err(error) = sender {
                return self.fail(Failure::Other(error.to_string()));
            }
            self.receive(&begun, report);
            // However receiving ended, the sender may wait for its end.
            self.progress.end();
        });
    }

    fn send(&self, begins: Sender<u64>) {
        if let Err(error) = self.send_all(&begins) {
            return self.fail(self.io_failure(&error));
        }
        if self.job.closes_second(self.side) {
            self.progress.wait_end();
        }
        if let Err(error) = self.stream.shutdown(Shutdown::Write) {
            self.fail(self.io_failure(&error));
        }
    }

    /// Records the reason why this end failed, and wakes its other half.
    pub(super) fn fail(&self, failure: Failure) {
        self.failure.lock().get_or_insert(failure);
        // It may be shut down already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(super) fn io_failure(&self, error: &io::Error) -> Failure {
        let received = self.progress.received();
        let sent = self.sent.load(Ordering::Relaxed);
        match error.kind() {
            // `NotConnected`: the other half has already read the reset.
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected => {
                Failure::Reset { received, sent }
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Stalled { received, sent },
            _ => Failure::Other(error.to_string()),
        }
    }
}

/// Stack size of a thread, in bytes. A thousand connections at a time are four thousand threads.
pub(super) const STACK: usize = 128 << 10;

pub(super) fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
