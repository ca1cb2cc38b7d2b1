//! Finishes a pair whose trap a predecessor had set, as that predecessor asked ([`SuccessorAction`]).

use std::sync::Arc;

use longsplice_core::policy::SplicePolicy;
use longsplice_dataplane::{LegState, PerSide, Side, SuccessorAction};

use crate::{
    api::{
        Ended, Pair, Returned,
        lingering_close::{LINGERING_CLOSE_TIMEOUT, lingering_close},
        until::{Trap, Until},
    },
    context::Context,
    session,
};

/// Remaining task of a predecessor for a pair that came back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    /// Rest of each side's budget, and true if it waits for payload beyond it; `None`: all may pass.
    budgets: PerSide<Option<(u64, bool)>>,
    /// Action, other than joining the ends.
    action: SuccessorAction,
}

impl Rest {
    /// Returns `None` if there is nothing but to join them. `states` are those after the wake.
    pub(crate) fn of(states: &PerSide<LegState>) -> Option<Rest> {
        let plans = states.as_ref().map(|x| x.trap.map(|trap| (x.successor, trap)));
        let is = |action| plans.iter().flatten().any(|(plan, _)| plan.action == action);
        let action = [SuccessorAction::Follow, SuccessorAction::End]
            .into_iter()
            .find(|s| is(*s))?;
        let budget = |side: Side| {
            let (plan, trap) = plans[side]?;
            // Forwarded bytes end before the trap.
            let distance = trap.bytes_since(states[side].base);
            Some((plan.remaining(distance), plan.is_data()))
        };
        Some(Rest {
            budgets: PerSide::from_fn(budget),
            action,
        })
    }

    /// Returns the conditions after the budgets of bytes, of which `passed` bytes of either side have passed.
    fn then(&self, passed: PerSide<u64>) -> Until {
        let of = |side: Side| self.budgets[side].map(|budget| (side, budget));
        let waits = Side::BOTH
            .into_iter()
            .filter_map(of)
            .filter(|(_, (_, data))| *data);
        waits.fold(Until::closed(), |until, (side, (left, _))| {
            until.or(Until::data_beyond(side, left.saturating_sub(passed[side])))
        })
    }

    /// Forwards the rest of a predecessor's budgets, and ends both connections behind it.
    pub(crate) async fn finish(self, context: Arc<Context>, returned: Returned) {
        let id = returned.id;
        // Do not splice: bytes beyond the budget wait in their socket, where a splice would have to drain them.
        let pair = Pair::from(returned).with_splice(SplicePolicy::Never);
        let pair = pair.with_successor(self.action);
        let mut returned = carry(&context, pair, Until::rest(self.budgets)).await;
        if self.action == SuccessorAction::Follow
            && let Some(r) = returned.take()
        {
            let until = self.then(r.passed);
            let pair = Pair::from(r)
                .with_splice(rejoin_policy(&context))
                .with_successor(self.action);
            returned = carry(&context, pair, until).await;
        }
        match returned {
            Some(returned) => end_in_order(returned).await,
            None => tracing::debug!(flow = %id, "it ended before what a predecessor had left was done"),
        }
    }
}

/// Returns the policy of a pair that goes on without the conditions of its predecessor. In a shutdown it is spliced at once:
/// what is relayed at its end is reset.
pub(super) fn rejoin_policy(context: &Context) -> SplicePolicy {
    match context.closing.is_cancelled() {
        true => SplicePolicy::Now,
        false => SplicePolicy::Auto,
    }
}

/// Returns the pair once it has come to its conditions; `None` if it has ended.
async fn carry(context: &Arc<Context>, pair: Pair, until: Until) -> Option<Returned> {
    match session::run(context, pair, until.or(Until::idle(context.config.idle_timeout))).await {
        // Dropping it resets both ends.
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
    let both = async { tokio::join!(lingering_close(&mut client), lingering_close(&mut server)) };
    // The connections have ended, whatever the outcome.
    let _ = tokio::time::timeout(LINGERING_CLOSE_TIMEOUT, both).await;
}
