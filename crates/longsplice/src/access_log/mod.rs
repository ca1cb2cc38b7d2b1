//! Writes the access log: one line for each request, or for each connection of which no requests are read; if wanted, one
//! for each spliced flow from time to time.
//!
//! Records go over a bounded queue to one thread, which formats and writes them: a slow or broken disk stops no
//! traffic. Records that do not fit, or that cannot be written, are counted.

mod flow_records;
mod format;
mod record;
mod target;
mod writer;

use std::{
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use flow_records::FlowRecord;

pub(crate) use flow_records::record_flows;
pub(crate) use record::{AccessRecord, End, Request, Traffic, cut};
pub(crate) use target::{LogTarget, OpenError};

/// Limit of the records that wait to be written: some megabytes.
const QUEUE: usize = 8192;

/// Handle of the access log. All clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessLog {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    on: AtomicBool,
    /// Time from one record of a spliced flow to the next.
    flow_interval: watch::Sender<Option<Duration>>,
    sender: OnceLock<SyncSender<Message>>,
    shared: Arc<Shared>,
}

/// State that the writer shares.
#[derive(Debug, Default)]
struct Shared {
    orders: Mutex<Orders>,
    counts: Counts,
}

/// Orders that the writer executes before the next record.
#[derive(Debug, Default)]
struct Orders {
    /// New destination.
    target: Option<Option<LogTarget>>,
    /// True if the file must be opened again by its name: the old one was moved away.
    reopen: bool,
}

/// Counts of records.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// Counts of records, for the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogCounts {
    /// Number of lines written.
    pub written: u64,
    /// Number of records for which there was no room in the queue.
    pub dropped: u64,
    /// Number of records that could not be written.
    pub failed: u64,
}

#[derive(Debug)]
enum Message {
    Record(Box<AccessRecord>),
    Flow(Box<FlowRecord>),
    /// Wakes the writer: there are orders.
    Look,
    /// Asks to write everything before it; the sender is dropped then.
    Flush(SyncSender<()>),
}

impl AccessLog {
    /// Returns whether there is a destination.
    pub(crate) fn is_on(&self) -> bool {
        self.inner.on.load(Ordering::Relaxed)
    }

    /// Queues a record for writing. Never waits: a record that does not fit is counted.
    pub(crate) fn write(&self, record: AccessRecord) {
        if self.is_on() {
            self.queue(Message::Record(Box::new(record)));
        }
    }

    /// Queues the record of a spliced flow, as [`AccessLog::write`] does.
    fn write_flow(&self, record: FlowRecord) {
        if self.is_on() {
            self.queue(Message::Flow(Box::new(record)));
        }
    }

    fn queue(&self, record: Message) {
        let Some(sender) = self.inner.sender.get() else {
            return;
        };
        if sender.try_send(record).is_err() {
            self.inner.shared.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Follows the time from one record of a spliced flow to the next; `None`: there are none.
    fn flow_interval(&self) -> watch::Receiver<Option<Duration>> {
        self.inner.flow_interval.subscribe()
    }

    /// Writes to this destination from now on; `None` stops the log. Records that wait go to the old destination, or to
    /// this one.
    pub(crate) fn set(&self, target: Option<LogTarget>) {
        if target.is_none() && self.inner.sender.get().is_none() {
            return;
        }
        self.inner.on.store(target.is_some(), Ordering::Relaxed);
        let flow_interval = target.as_ref().and_then(|target| target.flow_interval);
        // Wake the task only for a change: that breaks its round off.
        self.inner
            .flow_interval
            .send_if_modified(|interval| mem::replace(interval, flow_interval) != flow_interval);
        self.order(|orders| orders.target = Some(target));
    }

    /// Opens the file again by its name: the old one was moved away (logrotate).
    pub(crate) fn reopen(&self) {
        if self.inner.sender.get().is_some() {
            self.order(|orders| orders.reopen = true);
        }
    }

    fn order(&self, order: impl FnOnce(&mut Orders)) {
        order(&mut self.inner.shared.orders.lock());
        let sender = self.inner.sender.get_or_init(|| {
            let (sender, receiver) = sync_channel(QUEUE);
            writer::start(Arc::clone(&self.inner.shared), receiver);
            sender
        });
        // Ignore a full queue: the writer is awake then, and looks for orders.
        let _ = sender.try_send(Message::Look);
    }

    /// Waits until all queued records are written, but no longer than `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        let Some(sender) = self.inner.sender.get() else {
            return;
        };
        let (done, written) = sync_channel(1);
        let mut message = Message::Flush(done);
        let deadline = std::time::Instant::now() + patience;
        while let Err(TrySendError::Full(back)) = sender.try_send(message) {
            if std::time::Instant::now() >= deadline {
                return;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = written.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now()));
    }

    /// Returns the counts of records.
    pub(crate) fn counts(&self) -> LogCounts {
        let Counts {
            written,
            dropped,
            failed,
        } = &self.inner.shared.counts;
        LogCounts {
            written: written.load(Ordering::Relaxed),
            dropped: dropped.load(Ordering::Relaxed),
            failed: failed.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests;
