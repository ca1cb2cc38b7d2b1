//! Records spliced flows from time to time: a connection that lasts for days is seen before its end.

use std::time::{Duration, SystemTime};

use longsplice_engine::{FlowInfo, FlowState, Splicer};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

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
pub(crate) async fn record_flows(splicer: Splicer, log: AccessLog) {
    let interval = log.flow_interval();
    in_each(interval, |period| record_all(&splicer, &log, period)).await;
}

/// Performs a round in each interval, counted from the beginning of the round before: a round takes much of an interval.
/// Ends with the sender of the interval.
async fn in_each<F: Future<Output = ()>>(
    mut interval: watch::Receiver<Option<Duration>>,
    mut round: impl FnMut(Duration) -> F,
) {
    let mut began = Instant::now();
    loop {
        let now = *interval.borrow_and_update();
        let Some(period) = now else {
            if interval.changed().await.is_err() {
                return;
            }
            began = Instant::now();
            continue;
        };
        let next = async {
            sleep_until(began + period).await;
            began = Instant::now();
            round(period).await;
        };
        // Break a round off when the interval changes: the rest of it may take half a day.
        tokio::select! {
            () = next => {}
            changed = interval.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// Records each flow that is spliced now. Many are spread over half of the interval.
async fn record_all(splicer: &Splicer, log: &AccessLog, interval: Duration) {
    let asked = splicer.clone();
    // The list of a million flows takes its time.
    let listed = tokio::task::spawn_blocking(move || asked.flows()).await;
    let Ok(mut flows) = listed else { return };
    let parts = u32::try_from(flows.left().div_ceil(AT_ONCE)).unwrap_or(u32::MAX);
    while flows.left() > 0 {
        let time = SystemTime::now();
        for info in flows.by_ref().take(AT_ONCE) {
            if matches!(info.state, FlowState::Dormant | FlowState::Detached) {
                log.write_flow(FlowRecord { time, info });
            }
        }
        if flows.left() > 0 {
            sleep(interval / 2 / parts).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, pin::pin};

    use tokio::{sync::mpsc, time::timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Lets each round take a whole interval: another interval between two rounds would double the time.
    #[tokio::test]
    async fn an_interval_is_counted_from_the_beginning_of_a_round() {
        const PERIOD: Duration = Duration::from_millis(100);
        let (_sender, interval) = watch::channel(Some(PERIOD));
        let (begin, mut begun) = mpsc::unbounded_channel();
        let rounds = in_each(interval, |period| {
            begin.send(Instant::now()).unwrap();
            sleep(period)
        });
        let in_time = async {
            let mut last = begun.recv().await.unwrap();
            loop {
                let next = begun.recv().await.unwrap();
                // A busy machine may delay some.
                if next - last < 2 * PERIOD {
                    return;
                }
                last = next;
            }
        };
        tokio::select! {
            () = rounds => panic!("they go on"),
            in_time = timeout(PATIENCE, in_time) => in_time.expect("a round in time"),
        }
    }

    #[tokio::test]
    async fn a_round_ends_where_the_interval_changes() {
        let (sender, interval) = watch::channel(None);
        let (begin, mut begun) = mpsc::unbounded_channel();
        let mut rounds = pin!(in_each(interval, |period| {
            begin.send(period).unwrap();
            pending()
        }));
        for period in [1, 2, 1].map(Duration::from_millis) {
            sender.send_replace(Some(period));
            tokio::select! {
                () = &mut rounds => panic!("they go on"),
                begun = timeout(PATIENCE, begun.recv()) => assert_eq!(begun.unwrap(), Some(period)),
            }
        }
        drop(sender);
        timeout(PATIENCE, rounds).await.expect("an end");
    }
}
