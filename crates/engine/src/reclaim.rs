//! Takes back flows that no task waits for: by command, or because a trap of a predecessor was met.

use std::sync::Arc;

use longsplice_core::{
    idle::IdlePolicy,
    limit::RateLimit,
    patience::{GIVE_UP, Retry},
    policy::{DetachPolicy, SplicePolicy},
};
use longsplice_dataplane::{Event, Leg, Side};

use crate::{
    api::{Before, FlowId, LegInfo, Outstanding, Pair, RequestError, Returned},
    ends::FlowEnd,
    flow::close_in_silence,
    held::Keeping,
    packet, pair,
    rest::Rest,
    splicer::Inner,
    stats::End,
    until::{Trap, Until},
    wake,
};

/// Returns the legs of a detached flow.
///
/// # Errors
/// Returns [`RequestError::NoSuchFlow`] if there is none of this number.
pub(crate) async fn find(splicer: &Arc<Inner>, id: FlowId) -> Result<[Leg; 2], RequestError> {
    let found = splicer.aside(move |_, plane| plane.find_flow(id.0)).await;
    match found {
        Some(Ok([Some(a), Some(b)])) if a.slot.is_none() && b.slot.is_none() => Ok([a.leg, b.leg]),
        _ => Err(RequestError::NoSuchFlow(id)),
    }
}

/// Gives a detached flow its sockets back.
fn reclaim(
    splicer: &Arc<Inner>,
    id: FlowId,
    legs: [Leg; 2],
    why: Trap,
) -> Result<(Returned, Option<Rest>), RequestError> {
    let started = std::time::Instant::now();
    let back = awake(splicer, id, legs, why)?;
    splicer.stats.rebuild.add(started.elapsed());
    splicer.stats.unspliced.add(1);
    splicer.stats.returned(why);
    splicer.ends.not_left(id.0);
    Ok(back)
}

/// Returns a detached flow to the caller that asks for it; `None`: a predecessor has said how it is to end, and it is on
/// the way there.
pub(crate) async fn take_back(splicer: &Arc<Inner>, id: FlowId) -> Result<Option<Returned>, RequestError> {
    let legs = find(splicer, id).await?;
    match reclaim(splicer, id, legs, Trap::Asked)? {
        (returned, None) => Ok(Some(returned)),
        (returned, Some(rest)) => {
            tokio::spawn(rest.finish(splicer.clone(), returned));
            Ok(None)
        }
    }
}

/// Ends a detached flow: its sockets come back, to reset both ends. If there is no room for sockets, removes its records,
/// and the ends are reset by their next segment.
pub(crate) async fn end(splicer: &Arc<Inner>, id: FlowId) -> Result<(), RequestError> {
    let legs = find(splicer, id).await?;
    let records = splicer.plane.as_ref().map(|plane| plane.both_directions(legs[0]));
    match awake(splicer, id, legs, Trap::Asked) {
        Ok(back) => drop(back),
        Err(RequestError::CannotReturn(_, error)) => {
            tracing::debug!(flow = %id, error, "it ends without a word to its ends");
            if let Some(plane) = &splicer.plane {
                plane.unregister(id.0, legs);
            }
        }
        Err(error) => return Err(error),
    }
    splicer.stats.ended(End::Asked);
    match records {
        Some([Some(a), Some(b)]) => splicer.ends.ended(FlowEnd::Asked, [&a, &b]),
        _ => splicer.ends.not_left(id.0),
    }
    Ok(())
}

/// Builds sockets for a detached flow, which carry on where the segments stopped.
fn awake(
    splicer: &Arc<Inner>,
    id: FlowId,
    legs: [Leg; 2],
    why: Trap,
) -> Result<(Returned, Option<Rest>), RequestError> {
    let keeping = Keeping::new(splicer, id.0);
    let fail = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => RequestError::Ending(id),
        _ => RequestError::CannotReturn(id, e.to_string()),
    };
    let (flow, sockets) = wake::rebuild(splicer, id.0, legs).map_err(fail)?;
    flow.slot().set_wakeable(true);
    let woken = flow.wake();
    let flow = match flow.awake(splicer, woken) {
        Ok(flow) => flow,
        Err(error) => {
            for socket in sockets {
                close_in_silence(socket).map_err(fail)?;
            }
            return Err(fail(error));
        }
    };
    let [client, server] = sockets;
    let states = Side::BOTH.map(|side| flow.leg(side));
    let before = Before {
        id,
        legs: legs.map(|l| LegInfo {
            peer: l.peer,
            local: l.local,
        }),
        spliced: true,
        half_closed: states.each_ref().map(|leg| leg.owed_fin),
        paid: states.map(|leg| leg.paid),
        cookies: pair::cookies(&client, &server).map_err(fail)?,
    };
    flow.welcome([false; 2]);
    splicer
        .mapped
        .keep(flow, [&client, &server], tokio::time::Instant::now());
    drop(keeping);
    let returned = Returned {
        client,
        server,
        why,
        passed: [0; 2],
        bytes_spliced: 0,
        is_trial: false,
        relay_reason: None,
        spliced: true,
        id,
        splice: SplicePolicy::Never,
        detach: DetachPolicy::Now,
        outstanding: Outstanding::Await,
        rate_limit: RateLimit {
            client: states[0].rate,
            server: states[1].rate,
        },
        idle: IdlePolicy::default(),
        handle: None,
        before,
    };
    Ok((returned, Rest::of(&states)))
}

/// Handles a packet that met a trap whose owner is gone with a predecessor. The pair comes back to a relay, and is
/// spliced again when the advisor says so, or comes to the end that the predecessor has set. No byte is lost.
pub(crate) fn serve_orphan(splicer: &Arc<Inner>, event: Event) {
    let id = FlowId(event.serial);
    // Hold its packets at once: the next one of this flow is kept, too, and must not start another task.
    let keeping = Keeping::new(splicer, event.serial);
    let leg = packet::leg(&event);
    keeping.held.keep(event);
    let splicer = splicer.clone();
    tokio::spawn(async move {
        let back = reclaim_patiently(&splicer, id, leg).await;
        drop(keeping);
        let returned = match back {
            None => return,
            Some((returned, Some(rest))) => {
                tracing::info!(flow = %id, "a trap of a predecessor was met: it ends behind what is left to pass");
                return rest.finish(splicer, returned).await;
            }
            Some((returned, None)) => returned,
        };
        tracing::info!(flow = %id, "a trap of a predecessor was met: relayed again");
        let pair = Pair::from(returned).with_splice(SplicePolicy::Auto);
        if let Err(error) = pair::run(&splicer, pair, Until::closed()).await {
            tracing::debug!(flow = %id, %error, "a connection was cut off");
        }
    });
}

/// Gives a flow its sockets back whose packets come in on a leg, and tries again for a while if it fails. `None`: it has
/// ended, or is ended.
async fn reclaim_patiently(
    splicer: &Arc<Inner>,
    id: FlowId,
    leg: Option<Leg>,
) -> Option<(Returned, Option<Rest>)> {
    let plane = splicer.plane.as_ref()?;
    let mut retry = Retry::default();
    loop {
        let records = plane.both_directions(leg?);
        let [Some(a), Some(b)] = &records else {
            return None;
        };
        if a.serial != id.0 || a.slot.is_some() {
            return None;
        }
        let legs = [a.leg, b.leg];
        let error = match reclaim(splicer, id, legs, Trap::Asked) {
            Ok(back) => return Some(back),
            Err(error) => error,
        };
        if retry.is_first() {
            tracing::warn!(flow = %id, %error, "a trap of a predecessor was met, but the flow cannot come back for now");
        }
        let Some(wait) = retry.after_failure() else {
            tracing::warn!(flow = %id, %error, "it could not come back for {GIVE_UP:?}: both ends are reset by their next segment");
            plane.unregister(id.0, legs);
            splicer.stats.ended(End::Reset);
            splicer.ends.ended(FlowEnd::Reset, [a, b]);
            return None;
        };
        // A flow that is about to end shows that in its records by then, or its slot is free again.
        tokio::time::sleep(wait).await;
    }
}
