//! Board on which the servers of this process leave their reports for the clients of this process.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::outcome::EndReport;

#[derive(Default)]
struct Board {
    /// Connections whose header a server has read.
    begun: HashSet<u64>,
    ended: HashMap<u64, EndReport>,
}

static BOARD: Mutex<Option<Board>> = Mutex::new(None);
static NEWS: Condvar = Condvar::new();

/// Returns a new connection number: the process in the upper half, a counter in the lower.
pub(super) fn new_id() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    u64::from(std::process::id()) << 32 | u64::from(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn is_ours(id: u64) -> bool {
    id >> 32 == u64::from(std::process::id())
}

/// Notes that a server of this process has read the header of `id`.
pub(super) fn begin(id: u64) {
    if is_ours(id) {
        BOARD.lock().get_or_insert_default().begun.insert(id);
    }
}

/// Posts the report of a server of this process on `id`. Reports on connections of other processes are
/// discarded: no client here takes them.
pub(super) fn end(id: u64, report: EndReport) {
    if is_ours(id) {
        BOARD.lock().get_or_insert_default().ended.insert(id, report);
        NEWS.notify_all();
    }
}

/// Takes the server's report on `id`. Waits for it until `patience` after `since` when a server has begun with the
/// connection, and until `grace` after `since` when none has: such a connection failed on its way, most likely.
pub(super) fn take(id: u64, since: Instant, patience: Duration, grace: Duration) -> Option<EndReport> {
    let mut guard = BOARD.lock();
    loop {
        let board = guard.get_or_insert_default();
        let waited = since.elapsed();
        let limit = if board.begun.contains(&id) {
            patience
        } else {
            grace
        };
        let report = board.ended.remove(&id);
        if report.is_some() || waited >= limit {
            board.begun.remove(&id);
            return report;
        }
        NEWS.wait_for(&mut guard, limit - waited);
    }
}
