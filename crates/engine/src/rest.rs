//! What a predecessor has left to be done with a pair whose trap it had set ([`Successor`]).

use std::sync::Arc;

use longsplice_core::policy::SplicePolicy;
use longsplice_dataplane::{LegState, Side, Successor};

use crate::{
    api::{Ended, Pair, Returned},
    goodbye::{GOODBYE, goodbye},
    pair,
    splicer::Inner,
    until::{Trap, Until},
};

/// What a predecessor has left to be done with a pair that came back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    /// What is left of each side's budget, and whether it is payload beyond it that was waited for; `None`: all may pass.
    budgets: [Option<(u64, bool)>; 2],
    /// None that joins them.
    successor: Successor,
}

impl Rest {
    /// `None`: nothing but to join them. `states`: as they stand after the wake.
    pub(crate) fn of(states: &[LegState; 2]) -> Option<Rest> {
        let wills = states.each_ref().map(|x| x.trap.map(|trap| (x.will, trap)));
        let is = |successor| {
            wills
                .iter()
                .flatten()
                .any(|(will, _)| will.successor == successor)
        };
        let successor = [Successor::Follows, Successor::Ends]
            .into_iter()
            .find(|s| is(*s))?;
        let budget = |side: Side| {
            let (will, trap) = wills[side.index()]?;
            // What was forwarded ends before the trap.
            let distance = trap.wrapping_sub(states[side.index()].base);
            let distance = if (distance as i32) < 0 { 0 } else { distance };
            Some((will.left(distance), will.is_data()))
        };
        Some(Rest {
            budgets: Side::BOTH.map(budget),
            successor,
        })
    }

    /// What is waited for once the budgets of bytes have passed, and these bytes of either side with them.
    fn then(&self, passed: [u64; 2]) -> Until {
        let of = |side: Side| self.budgets[side.index()].map(|budget| (side, budget));
        let waits = Side::BOTH
            .into_iter()
            .filter_map(of)
            .filter(|(_, (_, data))| *data);
        waits.fold(Until::closed(), |until, (side, (left, _))| {
            until.or(Until::data_beyond(
                side,
                left.saturating_sub(passed[side.index()]),
            ))
        })
    }

    /// Lets pass what is left of a predecessor's budgets, and ends both connections behind it.
    pub(crate) async fn finish(self, splicer: Arc<Inner>, returned: Returned) {
        let id = returned.id;
        // What is not to be read waits in its socket: it would only be in the way of a splice.
        let pair = Pair::from(returned).with_splice(SplicePolicy::Never);
        let pair = pair.with_successor(self.successor);
        let mut returned = carry(&splicer, pair, Until::rest(self.budgets)).await;
        if self.successor == Successor::Follows
            && let Some(r) = returned.take()
        {
            let until = self.then(r.passed);
            let pair = Pair::from(r)
                .with_splice(SplicePolicy::Auto)
                .with_successor(self.successor);
            returned = carry(&splicer, pair, until).await;
        }
        match returned {
            Some(returned) => end_in_order(returned).await,
            None => tracing::debug!(flow = %id, "it ended before what a predecessor had left was done"),
        }
    }
}

/// The pair, when it is where it should be; else it has ended.
async fn carry(splicer: &Arc<Inner>, pair: Pair, until: Until) -> Option<Returned> {
    match pair::run(splicer, pair, until.or(Until::idle(splicer.config.idle_timeout))).await {
        // Dropped, it resets both.
        Ok(Ended::Returned(returned)) => Some(returned).filter(|r| r.why != Trap::Idle),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%error, "a connection was cut off");
            None
        }
    }
}

async fn end_in_order(returned: Returned) {
    let id = returned.id;
    if let Err(error) = returned.set_reset_on_close(false) {
        return tracing::debug!(flow = %id, %error, "cannot close in order");
    }
    let Returned {
        mut client,
        mut server,
        ..
    } = returned;
    let both = async { tokio::join!(goodbye(&mut client), goodbye(&mut server)) };
    // However it ends, it has ended.
    let _ = tokio::time::timeout(GOODBYE, both).await;
}
