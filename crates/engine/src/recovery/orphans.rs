//! Takes back flows that no task waits for: by command, or because a trap of a predecessor was met.

use std::{collections::HashMap, sync::Arc};

use longsplice_core::{
    idle::{IdlePolicy, Keepalive},
    limit::RateLimit,
    patience::{GIVE_UP, Retry},
    policy::{DetachPolicy, SplicePolicy},
};
use longsplice_dataplane::{Event, Leg, PerSide, SuccessorAction, SuccessorPlan};

use super::{
    reaper::flow_end,
    successor::{Rest, rejoin_policy},
};
use crate::{
    api::{
        Before, FlowId, LegInfo, Outstanding, Pair, RequestError, Returned,
        until::{Trap, Until},
    },
    context::Context,
    flow::rebuild::rebuild,
    kernel::{
        Kernel, packet,
        socket::{close_in_silence, cookies},
    },
    services::{ends::FlowEnd, stats::End},
    session,
};

/// Returns the legs of a detached flow. Fails with [`RequestError::NoSuchFlow`] if there is none of this number,
/// [`RequestError::Ending`] if it is closed or reset.
pub(crate) async fn find(context: &Arc<Context>, id: FlowId) -> Result<PerSide<Leg>, RequestError> {
    let found = context
        .run_blocking(move |_, kernel| kernel.plane.find_flow(id.0))
        .await;
    match found.and_then(|directions| directions.ok()?.complete()) {
        Some((a, b)) if a.slot.is_none() && b.slot.is_none() => match flow_end(&a, &b).is_over() {
            true => Err(RequestError::Ending(id)),
            false => Ok(PerSide::new(a.leg, b.leg)),
        },
        _ => Err(RequestError::NoSuchFlow(id)),
    }
}

/// Returns the legs of the detached flows that are `wanted`, in one walk over all records.
pub(crate) async fn find_all(
    context: &Arc<Context>,
    wanted: impl Fn(FlowId) -> bool + Send + 'static,
) -> HashMap<FlowId, PerSide<Leg>> {
    let found = context.run_blocking(move |_, kernel| {
        let mut found = HashMap::new();
        let scanned = kernel.plane.scan_flows(|directions| {
            if let Some((a, b)) = directions.complete()
                && a.slot.is_none()
                && b.slot.is_none()
                && wanted(FlowId(a.serial))
            {
                found.insert(FlowId(a.serial), PerSide::new(a.leg, b.leg));
            }
        });
        if let Err(error) = scanned {
            tracing::warn!(%error, "cannot look for flows");
        }
        found
    });
    found.await.unwrap_or_default()
}

/// Gives a detached flow its sockets back.
fn reclaim(
    context: &Arc<Context>,
    id: FlowId,
    legs: PerSide<Leg>,
    why: Trap,
) -> Result<(Returned, Option<Rest>), RequestError> {
    let started = std::time::Instant::now();
    let back = awake(context, id, legs, why)?;
    context.stats.rebuild.add(started.elapsed());
    context.stats.unspliced.add(1);
    context.stats.returned(why);
    context.ends.not_left(id.0);
    Ok(back)
}

/// Returns a detached flow to the caller that asks for it; `None`: a predecessor has said how it is to end, and it is on
/// the way there.
pub(crate) async fn take_back(context: &Arc<Context>, id: FlowId) -> Result<Option<Returned>, RequestError> {
    let legs = find(context, id).await?;
    match reclaim(context, id, legs, Trap::Admin)? {
        (returned, None) => Ok(Some(returned)),
        (returned, Some(rest)) => {
            tokio::spawn(rest.finish(Arc::clone(context), returned));
            Ok(None)
        }
    }
}

/// Ends a detached flow: its sockets come back, to reset both ends. If there is no room for sockets, removes its records,
/// and the ends are reset by their next segment.
pub(crate) async fn end(context: &Arc<Context>, id: FlowId) -> Result<(), RequestError> {
    end_at(context, id, find(context, id).await?)
}

/// Ends a detached flow with these legs, as [`end`] does.
pub(crate) fn end_at(context: &Arc<Context>, id: FlowId, legs: PerSide<Leg>) -> Result<(), RequestError> {
    let records = context.plane().map(|plane| plane.both_directions(legs.client));
    match reset_at(context, id, legs) {
        Ok(()) => {}
        Err(RequestError::CannotReturn(_, error)) => {
            tracing::debug!(flow = %id, error, "it ends without a word to its ends");
            context.unregister(id.0, legs);
        }
        Err(error) => return Err(error),
    }
    context.stats.ended(End::Admin);
    match records.and_then(PerSide::complete) {
        Some((a, b)) => context.ends.ended(FlowEnd::Admin, PerSide::new(&a, &b)),
        _ => context.ends.not_left(id.0),
    }
    Ok(())
}

/// Resets both ends of a detached flow with these legs: its sockets come back, and are closed. Its end is not reported.
pub(crate) fn reset_at(context: &Arc<Context>, id: FlowId, legs: PerSide<Leg>) -> Result<(), RequestError> {
    let back = awake(context, id, legs, Trap::Admin)?;
    context.unpaired.let_go(id.0);
    drop(back);
    Ok(())
}

/// Builds sockets for a detached flow, which carry on where the segments stopped.
fn awake(
    context: &Arc<Context>,
    id: FlowId,
    legs: PerSide<Leg>,
    why: Trap,
) -> Result<(Returned, Option<Rest>), RequestError> {
    let fail = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => RequestError::Ending(id),
        _ => RequestError::CannotReturn(id, e.to_string()),
    };
    let unsupported = || fail(std::io::ErrorKind::Unsupported.into());
    let kernel: &Arc<Kernel> = context.kernel.as_ref().ok_or_else(unsupported)?;
    let hold = kernel.held.hold(id.0);
    let (flow, sockets) = rebuild(kernel, id.0, legs).map_err(fail)?;
    flow.slot().set_wakeable(true);
    let woken = flow.wake();
    let flow = match flow.awake(woken) {
        Ok(flow) => flow,
        Err(error) => {
            for socket in sockets {
                close_in_silence(socket);
            }
            return Err(fail(error));
        }
    };
    let PerSide { client, server } = sockets;
    let states = PerSide::from_fn(|side| flow.leg(side));
    // The bytes that passed before a daemon died are that one's.
    let directions = flow.directions();
    let age = directions.client.age;
    let counted = directions.map(|direction| direction.bytes);
    let passed = context.ends.passed(id.0, counted);
    let (passed, bytes_spliced) = passed.unwrap_or((PerSide::both(0), 0));
    let now = tokio::time::Instant::now();
    let before = Before {
        id,
        legs: legs.map(|l| LegInfo {
            peer: l.peer,
            local: l.local,
        }),
        since: now.checked_sub(age).unwrap_or(now),
        counted,
        spliced: true,
        half_closed: states.as_ref().map(|leg| leg.bypassed_fin),
        rate_limit: RateLimit {
            client: states.client.rate,
            server: states.server.rate,
        },
        paid: states.map(|leg| leg.paid),
        cookies: cookies(&client, &server).map_err(fail)?,
        active: now,
        returned: now,
        round_trips: PerSide::both(None),
    };
    flow.welcome(PerSide::both(false));
    context.unpaired.keep(flow, PerSide::new(&client, &server), now);
    drop(hold);
    let returned = Returned {
        client,
        server,
        why,
        passed,
        bytes_spliced,
        is_trial: false,
        acceleration: None,
        splice_min: None,
        relay_reason: None,
        spliced: true,
        id,
        splice: SplicePolicy::Never,
        detach: DetachPolicy::Now,
        outstanding: Outstanding::Await,
        idle: IdlePolicy::default(),
        handle: None,
        before,
    };
    Ok((returned, Rest::of(&states)))
}

/// Returns true if a packet that came in on this leg, and met a trap there, is left to the next process: its sender repeats it.
/// That is so at the end of a shutdown, when sockets are reset; and before, if all that this process could do is to relay
/// the rest of a reply that passes by itself.
fn is_left(context: &Context, leg: Option<Leg>) -> bool {
    if !context.closing.is_cancelled() {
        return false;
    }
    let trap = || context.plane()?.direction(leg?)?.trap;
    let is_next_request = |plan: SuccessorPlan| plan.action != SuccessorAction::Join && plan.is_data();
    context.ended.is_cancelled() || trap().is_some_and(is_next_request)
}

/// Handles a packet that met a trap whose owner is gone with a predecessor, or has left the flow to a successor. The pair comes
/// back to a relay, and is spliced again when the advisor says so, or comes to the end that its owner has set. No byte is
/// lost.
pub(crate) fn serve(context: &Arc<Context>, event: Event) {
    let id = FlowId(event.serial);
    let leg = packet::leg(&event);
    if is_left(context, leg) {
        return tracing::debug!(flow = %id, "a trap was met, and is the next process's");
    }
    // Hold its packets at once: the next one of this flow is kept, too, and must not start another task.
    let Some(kernel) = &context.kernel else { return };
    let hold = kernel.held.hold(event.serial);
    hold.queue.keep(event);
    let context = Arc::clone(context);
    tokio::spawn(async move {
        let back = reclaim_patiently(&context, id, leg).await;
        drop(hold);
        let returned = match back {
            None => return,
            Some((returned, Some(rest))) => {
                tracing::info!(flow = %id, "a trap of a predecessor was met: it ends behind what is left to pass");
                return rest.finish(context, returned).await;
            }
            Some((returned, None)) => returned,
        };
        tracing::info!(flow = %id, "a trap of a predecessor was met: relayed again");
        // No listener has set limits for this relay.
        let idle = IdlePolicy {
            limit: Some(context.config.idle_timeout),
            keepalive: Some(Keepalive::default()),
        };
        let pair = Pair::from(returned)
            .with_splice(rejoin_policy(&context))
            .with_idle(idle);
        if let Err(error) = session::run(&context, pair, Until::closed()).await {
            tracing::debug!(flow = %id, %error, "a connection was cut off");
        }
    });
}

/// Gives a flow its sockets back whose packets come in on a leg, and tries again for a while if it fails. `None`: it has
/// ended, or is ended, or is left to the next process.
async fn reclaim_patiently(
    context: &Arc<Context>,
    id: FlowId,
    leg: Option<Leg>,
) -> Option<(Returned, Option<Rest>)> {
    let plane = context.plane()?;
    let mut retry = Retry::default();
    loop {
        let (a, b) = plane.both_directions(leg?).complete()?;
        if a.serial != id.0 || a.slot.is_some() || is_left(context, leg) {
            return None;
        }
        let legs = PerSide::new(a.leg, b.leg);
        let error = match reclaim(context, id, legs, Trap::Admin) {
            Ok(back) => return Some(back),
            Err(error) => error,
        };
        if retry.is_first() && !matches!(error, RequestError::Ending(_)) {
            tracing::warn!(flow = %id, %error, "a trap was met, but the flow cannot come back for now");
        }
        let Some(wait) = retry.after_failure() else {
            tracing::warn!(flow = %id, %error, "it could not come back for {GIVE_UP:?}: both ends are reset by their next segment");
            context.unregister(id.0, legs);
            context.stats.ended(End::Reset);
            context.ends.ended(FlowEnd::Reset, PerSide::new(&a, &b));
            return None;
        };
        // A flow that is about to end shows that in its records by then, or its slot is free again.
        tokio::time::sleep(wait).await;
    }
}
