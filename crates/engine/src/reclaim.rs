//! Flows that nobody waits for: taken back by command, or because a trap of a predecessor was met.

use std::sync::Arc;

use longsplice_core::{
    limit::RateLimit,
    policy::{DetachPolicy, SplicePolicy},
};
use longsplice_dataplane::{Event, Leg, Side};

use crate::{
    api::{Before, FlowId, LegInfo, Outstanding, Pair, RequestError, Returned},
    ends::FlowEnd,
    flow::close_in_silence,
    held::Keeping,
    pair,
    rest::Rest,
    splicer::Inner,
    stats::End,
    until::{Trap, Until},
    wake,
};

/// The legs of a detached flow.
///
/// # Errors
/// There is none of this number.
pub(crate) async fn find(splicer: &Arc<Inner>, id: FlowId) -> Result<[Leg; 2], RequestError> {
    let found = splicer.aside(move |_, plane| plane.find_flow(id.0)).await;
    match found {
        Some(Ok([Some(a), Some(b)])) if a.slot.is_none() && b.slot.is_none() => Ok([a.leg, b.leg]),
        _ => Err(RequestError::NoSuchFlow(id)),
    }
}

/// Gives a detached flow its sockets back.
async fn reclaim(
    splicer: &Arc<Inner>,
    id: FlowId,
    why: Trap,
) -> Result<(Returned, Option<Rest>), RequestError> {
    let legs = find(splicer, id).await?;
    let started = std::time::Instant::now();
    let back = awake(splicer, id, legs, why)?;
    splicer.stats.rebuild.add(started.elapsed());
    splicer.stats.unspliced.add(1);
    splicer.stats.returned(why);
    splicer.ends.not_left(id.0);
    Ok(back)
}

/// Gives a detached flow to who asks for it; `None`: a predecessor has said how it is to end, and it is on the way there.
pub(crate) async fn take_back(splicer: &Arc<Inner>, id: FlowId) -> Result<Option<Returned>, RequestError> {
    match reclaim(splicer, id, Trap::Asked).await? {
        (returned, None) => Ok(Some(returned)),
        (returned, Some(rest)) => {
            tokio::spawn(rest.finish(splicer.clone(), returned));
            Ok(None)
        }
    }
}

/// Ends a detached flow: its sockets come back, to reset both ends. Where there is no room for sockets, its records go, and the
/// ends are reset by their next segment.
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

/// Sockets for a detached flow, that go on where the segments stopped.
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
        handle: None,
        before,
    };
    Ok((returned, Rest::of(&states)))
}

/// A packet met a trap whose owner is gone with a predecessor: the pair comes back to a relay, and is spliced again when the
/// advisor says so, or comes to the end that the predecessor has asked for. No byte is lost.
pub(crate) fn serve_orphan(splicer: &Arc<Inner>, event: Event) {
    let id = FlowId(event.serial);
    // At once: what comes next of this flow is kept, too.
    let keeping = Keeping::new(splicer, event.serial);
    keeping.held.keep(event);
    let splicer = splicer.clone();
    tokio::spawn(async move {
        let back = reclaim(&splicer, id, Trap::Asked).await;
        drop(keeping);
        let returned = match back {
            Ok((returned, Some(rest))) => {
                tracing::info!(flow = %id, "a trap of a predecessor was met: it ends behind what is left to pass");
                return rest.finish(splicer, returned).await;
            }
            Ok((returned, None)) => returned,
            Err(error) => {
                tracing::debug!(flow = %id, %error, "a trap was met, but the flow cannot come back");
                return;
            }
        };
        tracing::info!(flow = %id, "a trap of a predecessor was met: relayed again");
        let pair = Pair::from(returned).with_splice(SplicePolicy::Auto);
        if let Err(error) = pair::run(&splicer, pair, Until::closed()).await {
            tracing::debug!(flow = %id, %error, "a connection was cut off");
        }
    });
}
