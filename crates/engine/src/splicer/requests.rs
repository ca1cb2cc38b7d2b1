//! Which flows there are, and what may be asked of one.

use std::collections::HashSet;

use longsplice_dataplane::{Direction, Leg};

use super::Splicer;
use crate::{
    api::{FlowId, FlowInfo, FlowState, LegInfo, RequestError, Returned},
    reaper, reclaim,
    registry::direction_info,
};

impl Splicer {
    /// Every flow there is, relayed ones too, by number; not those whose sockets a handler has. Walks over all records, which
    /// takes a while where there are many: a task should leave it to `spawn_blocking`.
    pub fn flows(&self) -> Vec<FlowInfo> {
        let mut flows = self.inner.registry.list();
        let held: HashSet<FlowId> = flows.iter().map(|f| f.id).collect();
        if let Some(plane) = &self.inner.plane {
            let records = reaper::records(plane).unwrap_or_default();
            flows.extend(
                records
                    .values()
                    .filter_map(detached_info)
                    .filter(|f| !held.contains(&f.id)),
            );
        }
        flows.sort_by_key(|f| f.id);
        flows
    }

    /// Asks for a relayed pair to be spliced now, whatever its policy; returns once that is under way. Whether it succeeds is
    /// seen in [`Splicer::flows`]: in the state, or in the reason.
    ///
    /// # Errors
    /// [`RequestError::NoSuchFlow`], [`RequestError::AlreadySpliced`], [`RequestError::CannotSplice`].
    pub async fn request_splice(&self, id: FlowId) -> Result<(), RequestError> {
        if let Some((why, _)) = &self.inner.why_not {
            return Err(RequestError::CannotSplice(why.clone()));
        }
        match self.inner.registry.get(id) {
            Some(entry) if matches!(entry.state(), FlowState::Relay | FlowState::Undraining) => {
                entry.ask();
                Ok(())
            }
            Some(_) => Err(RequestError::AlreadySpliced(id)),
            None => {
                reclaim::find(&self.inner, id).await?;
                Err(RequestError::AlreadySpliced(id))
            }
        }
    }

    /// Asks for a spliced pair to come back to control mode now (papers' section III-D). A pair that somebody waits for comes back
    /// to them ([`Ended::Returned`] with [`crate::Trap::Asked`]), whatever their conditions: then `None`, once it is under way. A flow that
    /// nobody waits for is given to the caller, with sockets built for it; dropped, they end it. One for which a predecessor has said
    /// how it is to end ([`Pair::with_successor`]) comes to that end: `None`, too.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Errors
    /// [`RequestError::NoSuchFlow`], [`RequestError::NotSpliced`], [`RequestError::Ending`], [`RequestError::CannotReturn`].
    pub async fn request_unsplice(&self, id: FlowId) -> Result<Option<Returned>, RequestError> {
        match self.inner.registry.get(id) {
            Some(entry) if matches!(entry.state(), FlowState::Relay | FlowState::Undraining) => {
                Err(RequestError::NotSpliced(id))
            }
            Some(entry) => {
                entry.ask_back();
                Ok(None)
            }
            None => reclaim::take_back(&self.inner, id).await,
        }
    }

    /// Ends a pair or flow: both its ends are reset, or, where a detached flow cannot have sockets now, meet a reset with their next
    /// segment. A call of [`Splicer::splice`] that has the pair comes to its end soon: then this returns before.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Errors
    /// [`RequestError::NoSuchFlow`], [`RequestError::Ending`].
    pub async fn request_end(&self, id: FlowId) -> Result<(), RequestError> {
        match self.inner.registry.get(id) {
            Some(entry) => {
                entry.end();
                Ok(())
            }
            None => reclaim::end(&self.inner, id).await,
        }
    }
}

fn detached_info(directions: &[Option<Direction>; 2]) -> Option<FlowInfo> {
    let [Some(a), Some(b)] = directions else {
        return None;
    };
    let leg = |l: Leg| LegInfo {
        peer: l.peer,
        local: l.local,
    };
    let end = reaper::flow_end(a, b);
    Some(FlowInfo {
        id: FlowId(a.serial),
        client: leg(a.leg),
        server: leg(b.leg),
        state: if end.is_over() {
            FlowState::Closing
        } else {
            FlowState::Detached
        },
        reason: None,
        to_server: direction_info(a),
        to_client: direction_info(b),
        // Of a flow that was adopted only this process's part is known, and that it is older than its last segment.
        age_seconds: a.age.max(end.idle).as_secs_f64(),
        idle_seconds: Some(end.idle.as_secs_f64()),
    })
}
