//! Takes back, by command, flows that had no handler.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use longsplice_engine::{IdlePolicy, Pair, Returned, Until, reason::RelayReason};

use super::{Open, Service, Shared, forward::Forwarding};
use crate::{access_log::AccessRecord, config::idle_policy};

/// Forwards a flow that had no handler; it stays relayed until a splice is requested. It counts as a connection of its
/// listener. If a predecessor had accepted it, it counts for the listener with its address; the limits of that listener
/// do not refuse an existing connection.
pub(crate) fn spawn_reclaimed(
    returned: Returned,
    shared: &Shared,
    listeners: &[(Arc<Service>, Vec<SocketAddr>)],
) {
    let (Ok(peer), Ok(local)) = (returned.client.peer_addr(), returned.client.local_addr()) else {
        return tracing::debug!(flow = %returned.id, "it was reset while it came back");
    };
    let left = shared.tracker.take(returned.id, peer);
    let covers = |bound: &SocketAddr| {
        bound.port() == local.port() && (bound.ip() == local.ip() || bound.ip().is_unspecified())
    };
    let of_address = || listeners.iter().find(|(_, bound)| bound.iter().any(covers));
    let service = match &left {
        Some(left) => Some(Arc::clone(&left.service)),
        None => of_address().map(|(service, _)| Arc::clone(service)),
    };
    let Some(service) = service else {
        return spawn_alone(returned, shared, peer);
    };
    let open = Open::new(
        Arc::clone(&service),
        service.slots.take_beyond(),
        shared.resources.try_pair(),
    );
    let mut carried = match left {
        Some(left) => {
            open.resume(left.decided);
            Forwarding {
                open,
                tenure: left.tenure,
                record: left.record,
                began: left.began,
            }
        }
        None => Forwarding {
            open,
            tenure: None,
            record: AccessRecord::new(&service.settings().listener.name, peer),
            began: Instant::now(),
        },
    };
    carried.record.traffic.add_returned(&returned);
    carried.open.set_congestion(&returned);
    tracing::debug!(listener = carried.record.listener, %peer, flow = %returned.id, "taken back from the kernel");
    let pair = by_command(returned, service.settings().listener.idle);
    tokio::spawn(carried.carry(pair, Until::closed()));
}

/// Forwards a flow whose listener is gone; it is not counted.
fn spawn_alone(returned: Returned, shared: &Shared, peer: SocketAddr) {
    tracing::debug!(%peer, flow = %returned.id, "taken back from the kernel; it belongs to no listener");
    let splicer = shared.splicer.clone();
    tokio::spawn(async move {
        let pair = by_command(returned, idle_policy(None, None));
        match splicer.splice(pair, Until::closed()).await {
            Ok(ended) => tracing::debug!(%peer, ?ended, "a connection of no listener"),
            Err(error) => tracing::debug!(%peer, %error, "the connection was cut off"),
        }
    });
}

/// Returns the pair, with the reason that it is relayed.
fn by_command(returned: Returned, idle: IdlePolicy) -> Pair {
    Pair::from(returned)
        .with_idle(idle)
        .with_reason(RelayReason::ByCommand)
}
