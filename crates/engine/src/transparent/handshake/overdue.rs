//! Watches the clients whose SYN has had no answer for a while: the next segment of one shows that it has an answer, which
//! takes another way.

use std::{
    collections::{HashSet, VecDeque},
    time::{Duration, Instant},
};

use super::pending::{Ends, leg_of};
use crate::Splicer;

/// Time after which an unanswered SYN may have an answer that takes another way.
const OVERDUE: Duration = Duration::from_millis(250);

/// SYNs whose answers are overdue, or may be soon.
#[derive(Debug)]
pub(super) struct Overdue {
    splicer: Splicer,
    /// SYNs in the order in which they were sent on, until it is time to look for their answers.
    asked: VecDeque<(Ends, Instant)>,
    /// Handshakes whose client's next segment is awaited.
    awaited: HashSet<Ends>,
}

impl Overdue {
    pub(super) fn new(splicer: &Splicer) -> Overdue {
        Overdue {
            splicer: splicer.clone(),
            asked: VecDeque::new(),
            awaited: HashSet::new(),
        }
    }

    /// Notes that a SYN was sent on.
    pub(super) fn note(&mut self, ends: Ends) {
        self.asked.push_back((ends, Instant::now()));
    }

    /// Waits until [`Overdue::look`] is due. Cancel-safe.
    pub(super) async fn due(&self) {
        match self.asked.front() {
            Some((_, since)) => tokio::time::sleep_until((*since + OVERDUE).into()).await,
            None => std::future::pending().await,
        }
    }

    /// Awaits the next segment of each client whose answer is overdue.
    pub(super) fn look(&mut self, is_unanswered: impl Fn(&Ends) -> bool) {
        while let Some((ends, _)) = self.asked.front().filter(|(_, at)| at.elapsed() >= OVERDUE) {
            if is_unanswered(ends) {
                match self.splicer.context.rules.await_segment_of(leg_of(*ends)) {
                    Ok(()) => drop(self.awaited.insert(*ends)),
                    Err(error) => tracing::debug!(%error, "an unanswered handshake is not watched"),
                }
            }
            self.asked.pop_front();
        }
    }

    /// Awaits no segment of a client any more.
    pub(super) fn forget(&mut self, ends: Ends) {
        if self.awaited.remove(&ends) {
            let was_last = self.awaited.is_empty();
            self.splicer
                .context
                .rules
                .forget_segment_of(leg_of(ends), was_last);
        }
    }

    /// Awaits no segment of other clients than these any more.
    pub(super) fn retain(&mut self, is_known: impl Fn(&Ends) -> bool) {
        let gone: Vec<Ends> = self
            .awaited
            .iter()
            .filter(|ends| !is_known(ends))
            .copied()
            .collect();
        gone.into_iter().for_each(|ends| self.forget(ends));
    }
}
