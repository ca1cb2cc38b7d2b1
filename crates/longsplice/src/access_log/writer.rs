//! Runs the thread that writes.

use std::{
    mem,
    sync::{Arc, atomic::Ordering, mpsc::Receiver},
    thread,
};

use super::{Message, Orders, Shared, format, target::LogTarget};
use crate::config::AccessLogFormat;

/// Number of bytes that are written at once.
const BATCH: usize = 64 << 10;

/// Starts the thread; it ends with the last [`super::AccessLog`].
pub(super) fn start(shared: Arc<Shared>, receiver: Receiver<Message>) {
    let spawned = thread::Builder::new().name("access-log".into()).spawn(move || {
        let mut writer = Writer {
            shared,
            target: None,
            lines: Vec::new(),
            records: 0,
            broken: false,
        };
        while let Ok(message) = receiver.recv() {
            writer.take(message);
            while let Ok(message) = receiver.try_recv() {
                writer.take(message);
            }
            writer.write();
        }
    });
    if let Err(error) = spawned {
        // The receiver is gone then, so every record is counted as dropped.
        tracing::error!(%error, "the access log has no thread");
    }
}

struct Writer {
    shared: Arc<Shared>,
    target: Option<LogTarget>,
    lines: Vec<u8>,
    /// Number of records in `lines`.
    records: u64,
    /// True if the last write failed, and the log shows it.
    broken: bool,
}

impl Writer {
    fn take(&mut self, message: Message) {
        match message {
            Message::Record(record) => self.add(|format, lines| format::line(format, &record, lines)),
            Message::Flow(record) => self.add(|_, lines| format::flow(&record, lines)),
            Message::Look => self.obey(),
            Message::Flush(done) => {
                self.write();
                // The caller may have stopped waiting.
                let _ = done.try_send(());
            }
        }
    }

    /// Adds a line.
    fn add(&mut self, format: impl FnOnce(AccessLogFormat, &mut Vec<u8>)) {
        self.obey();
        if let Some(target) = &self.target {
            format(target.format, &mut self.lines);
            self.records += 1;
        }
        if self.lines.len() >= BATCH {
            self.write();
        }
    }

    fn obey(&mut self) {
        let mut orders = self.shared.orders.lock();
        let Orders { target, reopen } = mem::take(&mut *orders);
        drop(orders);
        if target.is_some() || reopen {
            self.write();
        }
        if let Some(target) = target {
            self.target = target;
            // Look only now: the old target may have been this file.
            if let Some(target) = &mut self.target {
                target.look_at_end();
            }
            self.broken = false;
        } else if let (true, Some(target)) = (reopen, &mut self.target) {
            match target.reopen() {
                Ok(()) => self.broken = false,
                Err(error) => tracing::error!("{error}; it goes to the old file on"),
            }
        }
    }

    fn write(&mut self) {
        let records = mem::take(&mut self.records);
        let Some(target) = self.target.as_mut().filter(|_| records > 0) else {
            self.lines.clear();
            return;
        };
        let mut rest = self.lines.as_slice();
        let written = target.write(&mut rest);
        let failed = rest.iter().filter(|byte| **byte == b'\n').count() as u64;
        let counts = &self.shared.counts;
        counts
            .written
            .fetch_add(records.saturating_sub(failed), Ordering::Relaxed);
        counts.failed.fetch_add(failed, Ordering::Relaxed);
        match written {
            Ok(()) => {
                if mem::take(&mut self.broken) {
                    tracing::info!("the access log is written again");
                }
            }
            Err(error) => {
                // Write one line each time it breaks.
                if !mem::replace(&mut self.broken, true) {
                    tracing::error!(%error, "the access log cannot be written: lines are lost, and counted");
                }
            }
        }
        self.lines.clear();
        // Release memory after a burst.
        self.lines.shrink_to(2 * BATCH);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::Read, os::unix::fs::OpenOptionsExt, time::Instant};

    use nix::{
        fcntl::{FcntlArg, fcntl},
        libc::O_NONBLOCK,
        sys::stat::Mode,
        unistd::mkfifo,
    };

    use super::*;
    use crate::{
        access_log::{AccessRecord, End},
        config::AccessLogConfig,
    };

    const MANY: u64 = 200;

    fn record() -> Message {
        let record = AccessRecord::new("web", ([198, 18, 0, 1], 1).into());
        Message::Record(Box::new(record.ended(Instant::now(), End::Complete)))
    }

    /// Fills a pipe that takes a part of the lines: a disk that is nearly full does the same.
    #[test]
    fn lines_before_the_full_disk_are_counted_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(O_NONBLOCK);
        let mut reader = options.open(&path).unwrap();
        let room = fcntl(&reader, FcntlArg::F_SETPIPE_SZ(4096)).unwrap() as usize;
        let config = AccessLogConfig {
            path: Some(path),
            format: AccessLogFormat::Common,
            flow_interval: None,
        };
        let mut writer = Writer {
            shared: Arc::default(),
            target: Some(LogTarget::open(&config).unwrap()),
            lines: Vec::new(),
            records: 0,
            broken: false,
        };
        for _ in 0..MANY {
            writer.take(record());
        }
        assert!((room + 1..BATCH).contains(&writer.lines.len()), "one batch");
        writer.write();
        let mut got = vec![0; room];
        reader.read_exact(&mut got).unwrap();
        let complete = got.iter().filter(|byte| **byte == b'\n').count() as u64;
        assert!(complete > 0);
        let counts = &writer.shared.counts;
        let counted = [&counts.written, &counts.failed].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counted, [complete, MANY - complete]);
    }
}
