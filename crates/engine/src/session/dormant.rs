//! Parks the sockets of a spliced pair, and holds it until a trap, a command, its end or a shutdown.

use std::{io, time::Duration};

use longsplice_core::{patience::Retry, policy::DetachPolicy, seq::Seq};
use longsplice_dataplane::{Direction, Mode, PerSide, Side};
use longsplice_repair::options;
use socket2::SockRef;
use tokio::time::{Instant, sleep_until};

use super::{
    detached,
    exit::Exit,
    looks::{LOOK, Look},
    pair::Session,
    state::{Dormant, State},
};
use crate::{api::FlowState, flow::Flow};

/// Bytes that the streams may run on while sockets are parked: sequence numbers are compared modulo 2^32, and the sockets
/// must still be behind at the next look. From silence, [`LOST`] takes half a second at 17 Gbit/s at least, the longest
/// wait for a look.
const FAR: u32 = 1 << 30;

/// Bytes beyond which sockets cannot go on where they stand: they would take the stream's end for old. A daemon that was stopped
/// finds such streams.
const LOST: u32 = 1 << 31;

/// Time for which connection tracking remembers a connection in whatever state: its timeouts are minutes, if they are left as
/// they are.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Takes the sockets of a flow that was found drained at these cuts out of the path. `parkable`: they could carry on at
/// these numbers.
pub(super) fn park<'a>(
    mut session: Box<Session<'a>>,
    flow: Flow,
    cuts: PerSide<Seq>,
    parkable: bool,
) -> io::Result<State<'a>> {
    // Sockets that cannot take the data their peers were promised are useless. Those of ends that pause at their traps
    // can, there.
    let parkable = parkable && (session.traps.is_closed() || session.pauses || session.keep_promises(&flow));
    let started = std::time::Instant::now();
    // Copies are collected first, then the sockets are woken.
    match flow.finish(cuts, parkable && !session.captures()) {
        Ok(Mode::Final) => {}
        // A socket was given more data.
        Ok(Mode::Drain) => return Ok(State::draining(session, flow)),
        Ok(Mode::Undrain) => {
            session.note_spliced(&flow);
            session.note_awake(&flow);
            return Ok(State::resuming(session, flow));
        }
        Ok(_) => {
            let reset = Exit::reset("a socket was reset");
            return Ok(State::over(session.conclude(reset, Some(flow))));
        }
        Err(error) => return Ok(State::over(session.conclude(error.into(), Some(flow)))),
    }
    let switched = started.elapsed();
    let rules = &session.context.rules.spliced;
    rules.judge(flow.plane(), flow.serial(), flow.legs(), false);
    session.note_spliced(&flow);
    // ECN cannot be restored to a socket, and a firewall may take a new socket's segments for invalid: a flow that is to
    // come back keeps its sockets then.
    let keeps = !session.traps.is_closed() && (flow.leg(Side::Client).ecn || flow.is_tracked());
    let now = session.detach == DetachPolicy::Now && !keeps;
    if !parkable || now || session.context.under_pressure() {
        return detached::leave(session, flow, Some(started));
    }
    session.stats().to_dormant.add(switched);
    session.entry.set_state(FlowState::Dormant);
    silence(&mut session);
    let until = match session.detach {
        DetachPolicy::AfterTime(after) if !keeps => Some(Instant::now() + after),
        _ => None,
    };
    Ok(State::Dormant(Box::new(Dormant {
        session,
        flow,
        cuts,
        until,
        keeps,
        retry: Retry::default(),
    })))
}

/// Switches keep-alive off, as a parked socket's probes are not the flow's, and stops the pump: data comes to a parked
/// socket only after a wake.
fn silence(session: &mut Session<'_>) {
    for side in Side::BOTH {
        let socket = session.pump.socket(side);
        let on = SockRef::from(socket).keepalive().unwrap_or(false);
        session.keepalive[side] |= on;
        if on {
            let _ = options::set_keepalive(socket, false);
        }
        session.pump.set_limit(side, Some(session.pump.bytes(side)));
    }
}

impl<'a> Dormant<'a> {
    /// Waits until the sockets are needed, or are closed.
    pub(super) async fn run(self) -> io::Result<State<'a>> {
        // Drop the session before the flow if the call is dropped, as `Draining::run`.
        let Dormant {
            flow,
            mut session,
            cuts,
            until,
            keeps,
            mut retry,
        } = self;
        let since = Instant::now();
        let mut look = Look::spliced();
        loop {
            if let Err(exit) = session.step() {
                // The sockets are awake already, and an end was reset.
                return Ok(State::over(session.conclude(exit, Some(flow))));
            }
            let now = Instant::now();
            let directions = flow.directions();
            let ended = session.look(&directions, now);
            // Rebuilt sockets begin anew; those that cannot be rebuilt come back for a moment.
            let beyond = furthest(directions.map(|d| d.end), cuts);
            let far = beyond >= FAR;
            let mode = flow.mode();
            if mode == Mode::Undrain {
                // A firewall may have dropped what woke them: it is sent again.
                expect_return(&flow, since);
                session.note_awake(&flow);
                return Ok(State::resuming(session, flow));
            }
            let mut again = None;
            let wanted = session.fired(now).is_some() || flow.held().is_waiting() || (far && keeps);
            if wanted && mode == Mode::Final && !ended && beyond < LOST {
                // Wake them whatever the result: data that a socket has no room for now is retransmitted.
                session.keep_promises(&flow);
                expect_return(&flow, since);
                match session.wake(&flow).await {
                    Ok(true) => {
                        session.note_awake(&flow);
                        return Ok(State::resuming(session, flow));
                    }
                    Ok(false) => {}
                    // The ends were told nothing yet, and have all that the other one lacks.
                    Err(error) => {
                        tracing::warn!(flow = %session.id(), %error, "parked sockets cannot be woken: others are built");
                        return detached::leave(session, flow, None);
                    }
                }
                again = retry.after_failure();
                if flow.slot().has_strayed() || again.is_none_or(|wait| wait >= LOOK) {
                    tracing::debug!(flow = %session.id(), "the parked sockets cannot go on: others are built");
                    return detached::leave(session, flow, None);
                }
            }
            if !ended && mode == Mode::Final && is_idle(&directions, session.context.config.idle_timeout) {
                tracing::debug!(flow = %session.id(), "nothing has passed for too long: both ends are reset by their next segment");
                return detached::expire(session, flow);
            }
            let due = far || until.is_some_and(|at| now >= at);
            if due || ended || mode != Mode::Final || session.context.under_pressure() {
                return detached::leave(session, flow, None);
            }
            let next = [
                Some(look.next_after(session.active, now)),
                until,
                session.traps.next(),
            ];
            let next = next.into_iter().flatten().min().unwrap_or(now);
            let next = again.map_or(next, |wait| now + wait);
            tokio::select! {
                () = session.pump.ready() => {}
                () = sleep_until(next) => {}
                () = session.entry.asked() => {}
                () = flow.held().changed() => {}
                () = session.context.closing.cancelled() => {
                    return detached::leave(session, flow, None);
                }
            }
        }
    }
}

/// Returns true if no segment has passed in either direction for this long.
fn is_idle(directions: &PerSide<Direction>, limit: Duration) -> bool {
    directions.iter().all(|d| d.idle >= limit)
}

/// Tells connection tracking of the return of sockets that were parked since then. It knows their numbers, unless its entry has
/// expired, as nothing of the flow has passed it.
fn expect_return(flow: &Flow, since: Instant) {
    if since.elapsed() < REMEMBERED {
        return;
    }
    if let Err(error) = flow.expect_return() {
        tracing::debug!(flow = %flow.serial(), %error, "parked sockets go on all the same");
    }
}

/// Returns how many bytes a stream is beyond its socket's number, of the one that is further. (A FIN that the socket has lies one
/// before it.)
fn furthest(ends: PerSide<Seq>, cuts: PerSide<Seq>) -> u32 {
    let beyond = Side::BOTH.map(|side| match ends[side].distance_from(cuts[side]) {
        u32::MAX => 0,
        bytes => bytes,
    });
    beyond[0].max(beyond[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_that_is_further_beyond_its_socket_counts() {
        let (cut, other) = (Seq::new(u32::MAX - 5), Seq::new(7));
        for (bytes, beyond) in [
            (0, 0),
            (u32::MAX, 0),
            (FAR, FAR),
            (LOST, LOST),
            (3 << 30, 3 << 30),
        ] {
            let ends = [PerSide::new(cut + bytes, other), PerSide::new(cut, other + bytes)];
            for end in ends {
                assert_eq!(furthest(end, PerSide::new(cut, other)), beyond, "{bytes}");
            }
        }
    }
}
