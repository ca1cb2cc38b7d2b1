//! Closes the sockets of a spliced pair, and holds the flow until it is to come back.

use std::{io, time::Duration};

use longsplice_core::{
    patience::{GIVE_UP, Retry},
    reap::Reaped,
    seq::Seq,
};
use longsplice_dataplane::{Direction, Leg, Mode, PerSide, Side};
use tokio::time::{Instant, sleep_until};

use super::{
    looks::Look,
    pair::Session,
    state::{Detached, State},
};
use crate::{
    api::{Ended, FlowState},
    flow::{Flow, rebuild::rebuild},
    kernel::socket::close_in_silence,
    services::stats::End,
};

/// Closes the sockets in silence; the flow runs on in the records. `started`: the time at which the sockets left the
/// path, if they were not parked.
pub(super) fn leave(
    session: Box<Session<'_>>,
    flow: Flow,
    started: Option<std::time::Instant>,
) -> io::Result<State<'_>> {
    let mut detached = Detached::beside(session, &flow)?;
    if let Some(flow) = detached.close(flow) {
        return Ok(State::resuming(detached.session, flow));
    }
    let session = &mut detached.session;
    if let Some(started) = started {
        session.stats().to_detached.add(started.elapsed());
    }
    session.stats().detached.add(1);
    session.entry.set_state(FlowState::Detached);
    let is_wanted = !session.traps.is_closed() || session.fired(Instant::now()).is_some();
    if !is_wanted || session.context.closing.is_cancelled() {
        return Ok(State::over(detached.depart()));
    }
    Ok(State::Detached(Box::new(detached)))
}

/// Ends a flow in which nothing has passed for too long, as the reaper ends one without sockets.
pub(super) fn expire(session: Box<Session<'_>>, flow: Flow) -> io::Result<State<'_>> {
    // Keep the reaper away: without its sockets, the flow is one that it ends, too.
    let _alone = session.context.reaping.lock();
    let mut detached = Detached::beside(session, &flow)?;
    if let Some(flow) = detached.close(flow) {
        return Ok(State::resuming(detached.session, flow));
    }
    let directions = detached.directions();
    detached.count_past(&directions);
    detached.session.stats().ended(End::Idle);
    Ok(State::over(detached.remove(Reaped::Idle)))
}

impl<'a> Detached<'a> {
    /// Returns the state of a call whose sockets are about to be closed. Packets that meet a trap are held from now on.
    fn beside(session: Box<Session<'a>>, flow: &Flow) -> io::Result<Detached<'a>> {
        let context = session.context;
        let kernel = context.kernel.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Detached {
            kernel,
            hold: kernel.held.hold(flow.serial()),
            serial: flow.serial(),
            legs: flow.legs(),
            copied: PerSide::from_fn(|side| flow.copied(side, &session.pump)),
            past: PerSide::both(0),
            session,
        })
    }

    /// Closes the sockets in silence. Returns the flow if a packet has just woken them.
    fn close(&mut self, flow: Flow) -> Option<Flow> {
        // A failed capture may have frozen it.
        flow.slot().transition(Mode::Freeze, Mode::Final);
        if let Err(flow) = flow.demote() {
            self.session.note_awake(&flow);
            return Some(*flow);
        }
        for socket in self.session.pump.take_sockets() {
            close_in_silence(socket);
        }
        None
    }

    /// Waits until the flow is wanted back, or is over.
    pub(super) async fn run(mut self) -> io::Result<State<'a>> {
        let (mut retry, mut look) = (Retry::default(), Look::spliced());
        loop {
            let now = Instant::now();
            let directions = self.directions();
            self.count_past(&directions);
            let over = match directions.complete() {
                Some((a, b)) => {
                    let ended = self.session.look(&PerSide::new(a, b), now);
                    ended || self.hold.queue.over().is_some()
                }
                _ => {
                    tracing::debug!(flow = self.serial, ?directions, "its records are gone");
                    true
                }
            };
            if over {
                return Ok(State::over(self.over(&directions)));
            }
            let next = [
                Some(look.next_after(self.session.active, now)),
                self.session.traps.next(),
            ];
            let mut next = next.into_iter().flatten().min().unwrap_or(now);
            if self.session.fired(now).is_some() || self.hold.queue.is_waiting() {
                let error = match self.come_back().await {
                    Ok(flow) => {
                        let session = self.session;
                        return Ok(State::resuming(session, flow));
                    }
                    Err(error) => error,
                };
                if self.session.entry.is_to_end() && error.kind() != io::ErrorKind::NotFound {
                    tracing::debug!(flow = self.serial, %error, "it ends without a word to its ends");
                    self.session.stats().ended(End::Admin);
                    return Ok(State::over(self.remove(Reaped::Reset)));
                }
                // Log one line for each flow that waits, however often it tries.
                if retry.is_first() {
                    tracing::warn!(flow = self.serial, %error, "the flow stays spliced for now");
                }
                // While no packet waits for the sockets, all segments pass, and the return may come late.
                let wait = match self.hold.queue.is_waiting() {
                    true => retry.after_failure(),
                    false => Some(retry.after_harmless_failure()),
                };
                let Some(wait) = wait else {
                    tracing::warn!(
                        flow = self.serial,
                        %error,
                        "the flow could not come back for {GIVE_UP:?}: both ends are reset by their next segment"
                    );
                    return Ok(State::over(self.remove(Reaped::Reset)));
                };
                next = now + wait;
            }
            tokio::select! {
                // After the first failure, held packets wait for the next attempt, as do later ones.
                () = self.hold.queue.changed(), if retry.is_first() => {}
                () = sleep_until(next.max(now + Duration::from_millis(1))) => {}
                () = self.session.entry.asked() => {}
                () = self.session.context.closing.cancelled() => {
                    return Ok(State::over(self.depart()));
                }
            }
        }
    }

    /// Ends the call, and leaves the flow to its records. The task that sees its end reports it.
    fn depart(self) -> Ended {
        let session = self.session;
        // Called for its side effect: it counts the relayed bytes.
        let _ = session.summary(true, false);
        let relayed = Side::BOTH.map(|side| session.pump.bytes(side)).iter().sum();
        let before = session.base_bytes.unwrap_or_default();
        session.context.ends.left(self.serial, before, relayed);
        Ended::Detached(session.id())
    }

    fn over(self, directions: &PerSide<Option<Direction>>) -> Ended {
        let its = || directions.iter().flatten();
        let how = match self.hold.queue.over() {
            Some(Reaped::Idle) => Some(Reaped::Idle),
            how if its().next().is_none() => how,
            // A reset after both ends have finished only answers a late duplicate.
            _ if its().any(|d| d.reset) && !its().all(|d| d.fin) => Some(Reaped::Reset),
            _ => Some(Reaped::Closed),
        };
        self.closed(how)
    }

    /// Removes the records: the next segment of either end is answered by a reset.
    fn remove(self, why: Reaped) -> Ended {
        self.session.context.unregister(self.serial, self.legs);
        self.closed(Some(why))
    }

    /// Ends the call. `how`: the end of the flow; `None`: a new connection has taken its place.
    fn closed(mut self, how: Option<Reaped>) -> Ended {
        self.note_past();
        let reset = matches!(how, Some(Reaped::Reset | Reaped::Idle));
        let mut summary = self.session.summary(true, reset);
        summary.idle = how == Some(Reaped::Idle);
        summary.replaced = how.is_none();
        Ended::Closed(summary)
    }

    /// Returns the records of the flow, as far as they are there.
    fn directions(&self) -> PerSide<Option<Direction>> {
        let its = |d: &Direction| d.serial == self.serial;
        // One record holds both. A new connection may have taken the number of one leg.
        let of = |leg: &Leg| self.kernel.plane.both_directions(*leg).map(|d| d.filter(its));
        let mut found = self.legs.iter().map(of);
        let found = found.find(|directions| directions.iter().any(Option::is_some));
        found.unwrap_or_default()
    }

    /// Counts the bytes up to the ends of the streams, each less than 2 GiB behind its end at the last call.
    fn count_past(&mut self, directions: &PerSide<Option<Direction>>) {
        for side in Side::BOTH {
            if let Some(direction) = &directions[side] {
                self.count_to(side, direction.end);
            }
        }
    }

    fn count_to(&mut self, side: Side, end: Seq) {
        let counted = self.copied[side] + self.past[side] as u32;
        self.past[side] += u64::from(end.bytes_since(counted));
    }

    /// Adds the counted bytes to those that bypassed the sockets. Conditions of bytes are the programs' until then.
    fn note_past(&mut self) {
        for (side, past) in Side::BOTH.into_iter().zip(&mut self.past) {
            self.session.traps.note_past(side, std::mem::take(past));
        }
    }

    /// Builds the sockets and wakes them.
    async fn come_back(&mut self) -> io::Result<Flow> {
        let started = std::time::Instant::now();
        let (flow, sockets) = rebuild(self.kernel, self.serial, self.legs)?;
        self.session.pump.put_sockets(sockets);
        self.session.cookies = None;
        let woken = self.session.wake(&flow).await;
        let flow = match flow.awake(woken) {
            Ok(flow) => flow,
            Err(error) => {
                for socket in self.session.pump.take_sockets() {
                    close_in_silence(socket);
                }
                return Err(error);
            }
        };
        for side in Side::BOTH {
            self.count_to(side, flow.leg(side).base);
        }
        self.note_past();
        self.session.stats().rebuild.add(started.elapsed());
        Ok(flow)
    }
}
