//! Records spliced flows from time to time: a connection that lasts for days is seen before its end.

use std::time::{Duration, SystemTime};

use longsplice_engine::{FlowInfo, FlowState, Splicer};
use tokio::time::{sleep, timeout};

use super::AccessLog;

/// Number of records that are queued at once: a small part of the queue, which requests need, too.
const AT_ONCE: usize = 512;

/// Record of a flow that is spliced.
#[derive(Debug)]
pub(super) struct FlowRecord {
    pub(super) time: SystemTime,
    pub(super) info: FlowInfo,
}

/// Records all spliced flows once in each [`super::LogTarget::flow_interval`], until the task is aborted.
pub async fn record_flows(splicer: Splicer, log: AccessLog) {
    let mut interval = log.flow_interval();
    loop {
        let now = *interval.borrow_and_update();
        let Some(period) = now else {
            if interval.changed().await.is_err() {
                return;
            }
            continue;
        };
        // A reload may set another interval meanwhile: the time begins anew.
        if timeout(period, interval.changed()).await.is_err() {
            record_all(&splicer, &log, period).await;
        }
    }
}

/// Records each flow that is spliced now. Many are spread over half of the interval.
async fn record_all(splicer: &Splicer, log: &AccessLog, interval: Duration) {
    let asked = splicer.clone();
    // The list of a million flows takes its time.
    let listed = tokio::task::spawn_blocking(move || asked.flows()).await;
    let mut flows = listed.unwrap_or_default();
    flows.retain(|flow| matches!(flow.state, FlowState::Dormant | FlowState::Detached));
    let parts = u32::try_from(flows.len().div_ceil(AT_ONCE)).unwrap_or(u32::MAX);
    let mut flows = flows.into_iter().peekable();
    while flows.peek().is_some() {
        let time = SystemTime::now();
        for info in flows.by_ref().take(AT_ONCE) {
            log.write_flow(FlowRecord { time, info });
        }
        if flows.peek().is_some() {
            sleep(interval / 2 / parts).await;
        }
    }
}
