//! Closes the sockets of a spliced pair, and holds the flow until it is to come back.

use std::{io, time::Duration};

use longsplice_core::{
    patience::{GIVE_UP, Retry},
    seq::Seq,
};
use longsplice_dataplane::{Direction, Mode, PerSide, Side};
use tokio::time::{Instant, sleep_until};

use super::{
    pair::Session,
    state::{Detached, State},
};
use crate::{
    api::{Ended, FlowState},
    flow::{Flow, rebuild::rebuild},
    kernel::socket::close_in_silence,
};

/// Interval between two looks at a spliced pair: its end and its idleness show in the records.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// Closes the sockets in silence; the flow runs on in the records. `started`: the time at which the sockets left the
/// path, if they were not parked.
pub(super) fn leave<'a>(
    mut session: Box<Session<'a>>,
    flow: Flow,
    started: Option<std::time::Instant>,
) -> io::Result<State<'a>> {
    let id = session.id();
    let (serial, legs) = (flow.serial(), flow.legs());
    let copied = PerSide::from_fn(|side| flow.copied(side, &session.pump));
    let kernel = session
        .context
        .kernel
        .as_ref()
        .ok_or(io::ErrorKind::Unsupported)?;
    let hold = kernel.held.hold(serial);
    // A failed capture may have frozen it.
    flow.slot().transition(Mode::Freeze, Mode::Final);
    if let Err(flow) = flow.demote() {
        session.note_awake(&flow);
        let flow = *flow;
        return Ok(State::resuming(session, flow));
    }
    for socket in session.pump.take_sockets() {
        close_in_silence(socket)?;
    }
    if let Some(started) = started {
        session.stats().to_detached.add(started.elapsed());
    }
    session.stats().detached.add(1);
    session.entry.set_state(FlowState::Detached);
    let is_wanted = !session.traps.is_closed() || session.fired(Instant::now()).is_some();
    if !is_wanted || session.context.closing.is_cancelled() {
        // Called for its side effect: it counts the relayed bytes.
        let _ = session.summary(true, false);
        let relayed = Side::BOTH.map(|side| session.pump.bytes(side)).iter().sum();
        let before = session.base_bytes.unwrap_or_default();
        session.context.ends.left(serial, before, relayed);
        return Ok(State::over(Ended::Detached(id)));
    }
    Ok(State::Detached(Box::new(Detached {
        session,
        kernel,
        hold,
        serial,
        legs,
        copied,
        past: PerSide::both(0),
    })))
}

impl<'a> Detached<'a> {
    /// Waits until the flow is wanted back, or is over.
    pub(super) async fn run(mut self) -> io::Result<State<'a>> {
        let mut retry = Retry::default();
        loop {
            let now = Instant::now();
            let mut next = self
                .session
                .traps
                .next()
                .map_or(now + LOOK, |at| at.min(now + LOOK));
            let directions = self.legs.map(|leg| self.kernel.plane.direction(leg));
            let its = |d: &Direction| d.serial == self.serial;
            let ends = directions.map(|direction| direction.filter(its).map(|d| d.end));
            self.count_past(ends);
            let over = match directions.complete() {
                Some((a, b)) if a.serial == self.serial => {
                    let ended = self.session.look(&PerSide::new(a, b), now);
                    ended || self.hold.queue.is_over()
                }
                _ => {
                    tracing::debug!(flow = self.serial, ?directions, "its records are gone");
                    true
                }
            };
            if over {
                return Ok(State::over(self.over(&directions)));
            }
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
                    return Ok(State::over(self.cut_off()));
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
                    return Ok(State::over(self.cut_off()));
                };
                next = now + wait;
            }
            tokio::select! {
                // After the first failure, held packets wait for the next attempt, as do later ones.
                () = self.hold.queue.changed(), if retry.is_first() => {}
                () = sleep_until(next.max(now + Duration::from_millis(1))) => {}
                () = self.session.entry.asked() => {}
                () = self.session.context.closing.cancelled() => {
                    return Ok(State::over(Ended::Detached(self.session.id())));
                }
            }
        }
    }

    fn over(self, directions: &PerSide<Option<Direction>>) -> Ended {
        // A reset after both ends have finished only answers a late duplicate.
        let ended = directions.iter().flatten().filter(|d| d.fin).count() == 2;
        let reset = !ended && directions.iter().flatten().any(|d| d.reset);
        self.closed(reset)
    }

    /// Removes the records: the next segment of either end is answered by a reset.
    fn cut_off(self) -> Ended {
        self.kernel.plane.unregister(self.serial, self.legs);
        self.closed(true)
    }

    fn closed(mut self, reset: bool) -> Ended {
        self.note_past();
        Ended::Closed(self.session.summary(true, reset))
    }

    /// Counts the bytes up to these ends of the streams, each less than 2 GiB behind its end at the last call.
    fn count_past(&mut self, ends: PerSide<Option<Seq>>) {
        for side in Side::BOTH {
            let counted = self.copied[side] + self.past[side] as u32;
            let more = ends[side].map_or(0, |end| end.bytes_since(counted));
            self.past[side] += u64::from(more);
        }
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
                    close_in_silence(socket)?;
                }
                return Err(error);
            }
        };
        self.count_past(PerSide::from_fn(|side| Some(flow.leg(side).base)));
        self.note_past();
        self.session.stats().rebuild.add(started.elapsed());
        Ok(flow)
    }
}
