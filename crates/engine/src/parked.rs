//! Holds a spliced pair, dormant or detached, until a trap, a command, its end or a shutdown.

use std::{io, time::Duration};

use longsplice_core::{
    patience::{GIVE_UP, Retry},
    policy::DetachPolicy,
};
use longsplice_dataplane::{Direction, Leg, Mode, Side};
use tokio::time::{Instant, sleep_until};

use crate::{
    api::{Ended, FlowState},
    capture,
    driver::Driver,
    flow::{Flow, close_in_silence},
    held::Keeping,
    over::Over,
    splicer::Phase,
    wake::rebuild,
};

/// Interval between two looks at a spliced pair: its end and its idleness show in the records.
const LOOK: Duration = Duration::from_millis(250);

/// Bytes that the streams may run on while sockets are parked: sequence numbers are compared modulo 2^32, and the sockets
/// must still be behind at the next look.
const FAR: u32 = 1 << 30;

/// Outcome of parking a spliced pair.
pub(crate) enum Left<'a> {
    /// Its sockets are awake, in mode Undrain or Track.
    Awake(Driver<'a>, Flow),
    /// It could not be parked: a socket was given more data.
    Draining(Driver<'a>, Flow),
    /// The call is over.
    Ended(Ended),
}

/// Parks the sockets of a flow that was found drained at these cuts, and waits.
pub(crate) async fn park(
    mut driver: Driver<'_>,
    flow: Flow,
    cuts: [u32; 2],
    parkable: bool,
) -> io::Result<Left<'_>> {
    // Sockets that cannot take the data their peers were promised are useless. Those of ends that pause at their traps
    // can, there.
    let parkable = parkable && (driver.traps.is_closed() || driver.pauses || keep_promises(&driver, &flow));
    let started = std::time::Instant::now();
    // Copies are collected first, then the sockets are woken.
    match flow.finish(cuts, parkable && !driver.captures())? {
        Mode::Final => {}
        Mode::Drain => return Ok(Left::Draining(driver, flow)),
        Mode::Undrain => {
            driver.note_spliced(&flow);
            driver.note_awake(&flow);
            return Ok(Left::Awake(driver, flow));
        }
        _ => {
            let reset = Over::reset("a socket was reset");
            return Ok(Left::Ended(driver.conclude(reset, Some(flow))));
        }
    }
    let detach = driver.detach();
    let switched = started.elapsed();
    driver.note_spliced(&flow);
    // ECN cannot be restored to a socket, and a firewall may take a new socket's segments for invalid: a flow that is to
    // come back keeps its sockets then.
    let keeps =
        !driver.traps.is_closed() && (flow.leg(Side::Client).ecn || driver.splicer.conntrack.refuses());
    let now = detach == DetachPolicy::Now && !keeps;
    if !parkable || now || driver.splicer.under_pressure() {
        return detached(driver, flow, Some(started)).await;
    }
    driver.stats().to_dormant.add(switched);
    driver.entry.set_state(FlowState::Dormant);
    driver.rest();
    for side in Side::BOTH {
        // Data comes to a parked socket only after a wake.
        driver.pump.set_limit(side, Some(driver.pump.bytes(side)));
    }
    let until = match detach {
        DetachPolicy::AfterTime(after) if !keeps => Some(Instant::now() + after),
        _ => None,
    };
    let mut retry = Retry::default();
    loop {
        if let Err(over) = driver.step() {
            // The sockets are awake already, and an end was reset.
            return Ok(Left::Ended(driver.conclude(over, Some(flow))));
        }
        let now = Instant::now();
        let directions = flow.directions();
        let ended = driver.look(&directions, now);
        // Rebuilt sockets begin anew; those that cannot be rebuilt come back for a moment.
        let far = !driver.traps.is_closed() && ran_far([0, 1].map(|i| directions[i].end), cuts);
        let mode = flow.mode();
        if mode == Mode::Undrain {
            driver.note_awake(&flow);
            return Ok(Left::Awake(driver, flow));
        }
        let mut again = None;
        let wanted = driver.fired(now).is_some() || flow.held().is_waiting() || (far && keeps);
        if wanted && mode == Mode::Final && !ended {
            // Wake them whatever the result: data that a socket has no room for now is retransmitted.
            keep_promises(&driver, &flow);
            if wake(&driver, &flow).await? {
                driver.note_awake(&flow);
                return Ok(Left::Awake(driver, flow));
            }
            again = retry.after_failure();
            if flow.slot().has_strayed() || again.is_none_or(|wait| wait >= LOOK) {
                tracing::debug!(flow = %driver.id(), "the parked sockets cannot go on: others are built");
                return detached(driver, flow, None).await;
            }
        }
        let due = far || until.is_some_and(|at| now >= at);
        if due || ended || mode != Mode::Final || driver.splicer.under_pressure() {
            return detached(driver, flow, None).await;
        }
        let next = [Some(now + LOOK), until, driver.traps.next()];
        let next = next.into_iter().flatten().min().unwrap_or(now);
        let next = again.map_or(next, |wait| now + wait);
        tokio::select! {
            () = driver.pump.ready() => {}
            () = sleep_until(next) => {}
            () = driver.entry.asked() => {}
            () = flow.held().changed() => {}
            () = driver.splicer.reached(Phase::Closing) => {
                return detached(driver, flow, None).await;
            }
        }
    }
}

/// Makes room in the sockets for the data that their peers were promised. Returns true if it fits.
pub(crate) fn keep_promises(driver: &Driver<'_>, flow: &Flow) -> bool {
    flow.keep_promises(Side::BOTH.map(|side| driver.pump.socket(side)), driver.pauses)
}

/// Returns true if a stream is too far beyond its socket's number. (A FIN that the socket has lies one before it.)
fn ran_far(ends: [u32; 2], cuts: [u32; 2]) -> bool {
    let beyond = |side: Side| ends[side.index()].wrapping_sub(cuts[side.index()]);
    Side::BOTH
        .iter()
        .any(|&side| (FAR..u32::MAX).contains(&beyond(side)))
}

/// Holds a flow without sockets whose traps are set.
struct Detached<'a> {
    driver: Driver<'a>,
    keeping: Keeping,
    serial: u32,
    legs: [Leg; 2],
    /// Last byte that the pump had read, by side. A socket that had no room for data it was shown stays behind its cut:
    /// the two ends handle that part themselves.
    copied: [u32; 2],
}

/// Brings the sockets of a spliced pair back into the path, in the way that its policy says. Returns true on success.
async fn wake(driver: &Driver<'_>, flow: &Flow) -> io::Result<bool> {
    if driver.captures() && capture::take_over(driver, flow).await? {
        driver.stats().captured.add(1);
        return Ok(true);
    }
    flow.slot().set_wakeable(true);
    flow.wake()
}

/// Closes the sockets in silence; the flow runs on in the records. Waits for it if it is to come back.
async fn detached(
    mut driver: Driver<'_>,
    flow: Flow,
    started: Option<std::time::Instant>,
) -> io::Result<Left<'_>> {
    let id = driver.id();
    let (serial, legs) = (flow.serial(), flow.legs());
    let copied = Side::BOTH.map(|side| flow.copied(side, &driver.pump));
    let keeping = Keeping::new(driver.splicer, serial);
    // A failed capture may have frozen it.
    flow.slot().switch(Mode::Freeze, Mode::Final);
    let settling = match flow.release() {
        Ok(settling) => settling,
        Err(flow) => {
            driver.note_awake(&flow);
            return Ok(Left::Awake(driver, *flow));
        }
    };
    for socket in driver.pump.take_sockets() {
        close_in_silence(socket)?;
    }
    if let Some(started) = started {
        driver.stats().to_detached.add(started.elapsed());
    }
    driver.splicer.settle_later(settling);
    driver.stats().detached.add(1);
    driver.entry.set_state(FlowState::Detached);
    let is_wanted = !driver.traps.is_closed() || driver.fired(Instant::now()).is_some();
    if !is_wanted || driver.splicer.is_closing() {
        // Called for its side effect: it counts the relayed bytes.
        let _ = driver.summary(true, false);
        let relayed = Side::BOTH.map(|side| driver.pump.bytes(side)).iter().sum();
        let before = driver.base_bytes.unwrap_or_default();
        driver.splicer.ends.left(serial, before, relayed);
        return Ok(Left::Ended(Ended::Detached(id)));
    }
    let detached = Detached {
        driver,
        keeping,
        serial,
        legs,
        copied,
    };
    detached.wait().await
}

impl<'a> Detached<'a> {
    async fn wait(mut self) -> io::Result<Left<'a>> {
        let mut retry = Retry::default();
        loop {
            let now = Instant::now();
            let mut next = self
                .driver
                .traps
                .next()
                .map_or(now + LOOK, |at| at.min(now + LOOK));
            let directions = self
                .legs
                .map(|leg| self.driver.splicer.plane.as_ref()?.direction(leg));
            let over = match directions {
                [Some(a), Some(b)] if a.serial == self.serial => {
                    let ended = self.driver.look(&[a, b], now);
                    ended || self.keeping.held.is_over()
                }
                _ => {
                    tracing::debug!(flow = self.serial, ?directions, "its records are gone");
                    true
                }
            };
            if over {
                return Ok(Left::Ended(self.over(&directions)));
            }
            if self.driver.fired(now).is_some() || self.keeping.held.is_waiting() {
                let error = match self.come_back().await {
                    Ok(flow) => return Ok(Left::Awake(self.driver, flow)),
                    Err(error) => error,
                };
                if self.driver.entry.is_to_end() && error.kind() != io::ErrorKind::NotFound {
                    tracing::debug!(flow = self.serial, %error, "it ends without a word to its ends");
                    return Ok(Left::Ended(self.cut_off(&directions)));
                }
                // Log one line for each flow that waits, however often it tries.
                if retry.is_first() {
                    tracing::warn!(flow = self.serial, %error, "the flow stays spliced for now");
                }
                let Some(wait) = retry.after_failure() else {
                    tracing::warn!(
                        flow = self.serial,
                        %error,
                        "the flow could not come back for {GIVE_UP:?}: both ends are reset by their next segment"
                    );
                    return Ok(Left::Ended(self.cut_off(&directions)));
                };
                next = now + wait;
            }
            tokio::select! {
                // After the first failure, held packets wait for the next attempt, as do later ones.
                () = self.keeping.held.changed(), if retry.is_first() => {}
                () = sleep_until(next.max(now + Duration::from_millis(1))) => {}
                () = self.driver.entry.asked() => {}
                () = self.driver.splicer.reached(Phase::Closing) => {
                    return Ok(Left::Ended(Ended::Detached(self.driver.id())));
                }
            }
        }
    }

    fn over(self, directions: &[Option<Direction>; 2]) -> Ended {
        // A reset after both ends have finished only answers a late duplicate.
        let ended = directions.iter().flatten().filter(|d| d.fin).count() == 2;
        let reset = !ended && directions.iter().flatten().any(|d| d.reset);
        self.closed(directions, reset)
    }

    /// Removes the records: the next segment of either end is answered by a reset.
    fn cut_off(self, directions: &[Option<Direction>; 2]) -> Ended {
        if let Some(plane) = &self.driver.splicer.plane {
            plane.unregister(self.serial, self.legs);
        }
        self.closed(directions, true)
    }

    fn closed(mut self, directions: &[Option<Direction>; 2], reset: bool) -> Ended {
        for (side, direction) in Side::BOTH.into_iter().zip(directions) {
            if let Some(d) = direction {
                self.note_past(side, d.end);
            }
        }
        Ended::Closed(self.driver.summary(true, reset))
    }

    fn note_past(&mut self, side: Side, end: u32) {
        let past = end.wrapping_sub(self.copied[side.index()]) as i32;
        self.driver
            .traps
            .note_past(side, u64::try_from(past).unwrap_or(0));
    }

    /// Builds the sockets and wakes them.
    async fn come_back(&mut self) -> io::Result<Flow> {
        let started = std::time::Instant::now();
        let (flow, sockets) = rebuild(self.driver.splicer, self.serial, self.legs)?;
        self.driver.pump.put_sockets(sockets);
        self.driver.cookies = None;
        let woken = wake(&self.driver, &flow).await;
        let flow = match flow.awake(self.driver.splicer, woken) {
            Ok(flow) => flow,
            Err(error) => {
                for socket in self.driver.pump.take_sockets() {
                    close_in_silence(socket)?;
                }
                return Err(error);
            }
        };
        for side in Side::BOTH {
            self.note_past(side, flow.leg(side).base);
        }
        self.driver.stats().rebuild.add(started.elapsed());
        Ok(flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_is_a_quarter_of_the_circle_and_on_to_its_end() {
        let cut = u32::MAX - 5;
        for (beyond, far) in [
            (0, false),
            (u32::MAX, false), // a FIN
            (FAR - 1, false),
            (FAR, true),
            (3 << 30, true),
        ] {
            assert_eq!(ran_far([cut.wrapping_add(beyond), 7], [cut, 7]), far, "{beyond}");
        }
    }
}
