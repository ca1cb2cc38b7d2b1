//! Delivers what the sockets hold, while new segments pass (papers' section III-C).

use std::{io, time::Duration};

use longsplice_core::{patience::Waiter, seq::Seq};
use longsplice_dataplane::{Mode, PerSide, Side};
use tokio::time::Instant;

use super::{
    dormant,
    exit::Exit,
    looks::Looks,
    pair::Session,
    state::{Draining, State},
};
use crate::flow::{Flow, drain::Progress};

/// Time for a drained pair to become parkable, and for a socket to take what the programs saw: it may still have to
/// process an acknowledgement.
const PARK_PATIENCE: Duration = Duration::from_millis(20);

/// Time for a drain to end by itself after the grace period of a shutdown.
const LAST_CHANCE: Duration = Duration::from_millis(250);

/// Outcome of a drain.
enum Drained {
    /// The sockets have nothing left, as long as their cuts are these; true if they could be woken at these numbers.
    Drained(PerSide<Seq>, bool),
    /// A trap brought the pair back before.
    Awake,
}

impl<'a> Draining<'a> {
    /// Drains the flow, and takes the sockets out of the path.
    pub(super) async fn run(self) -> io::Result<State<'a>> {
        // Drop the session first if the call is dropped: the programs of the flow translate the resets of its sockets.
        let Draining {
            mut flow,
            mut session,
        } = self;
        match drain(&mut session, &mut flow).await {
            Ok(Drained::Drained(cuts, parkable)) => dormant::park(session, flow, cuts, parkable),
            Ok(Drained::Awake) => {
                session.note_spliced(&flow);
                session.note_awake(&flow);
                Ok(State::resuming(session, flow))
            }
            Err(exit) => Ok(State::over(session.conclude(exit, Some(flow)))),
        }
    }
}

/// Delivers old bytes until the far ends have acknowledged them all. The only way back from here is a trap. There is no
/// limit of time while both ends live, but that of a shutdown: new segments pass meanwhile, and a slow reader is as slow as
/// before.
async fn drain(session: &mut Session<'_>, flow: &mut Flow) -> Result<Drained, Exit> {
    session.entry.begin_drain();
    let _under_way = session.context.transitions.drain();
    let mut looks = Looks::begin(flow, Instant::now());
    let (mut drained_at, mut doubted_at, mut stops_at) = (None, None, None);
    loop {
        if session.parks() {
            flow.note_latecomers(&session.pump);
        }
        // Keep this order: a cut that was read in mode Drain is from before a wake, and so is all that the pump reads up
        // to it.
        let cuts = flow.cuts();
        match flow.mode() {
            Mode::Drain => {}
            Mode::Undrain => return Ok(Drained::Awake),
            _ => return Err(Exit::reset("a socket was reset")),
        }
        // A reset from before the drain went to one socket only: the other end does not know of it.
        if flow.was_reset() {
            return Err(Exit::reset("an end was reset"));
        }
        for side in Side::BOTH {
            let to_cut = flow.bytes_to(side, cuts[side], &session.pump);
            session.limit_pump(side, Some(to_cut));
        }
        session.step_beside(flow)?;
        let now = Instant::now();
        session.note_passing(&flow.directions(), now);
        let at_trap = PerSide::from_fn(|side| session.traps.is_used_up(side, &session.pump));
        let at_trap = (!session.traps.is_closed()).then_some(at_trap);
        let progress = flow.drain_progress(&session.pump, cuts, at_trap)?;
        if session.fired(now).is_some() || flow.held().is_waiting() {
            if session.pauses {
                session.keep_promises(flow);
            }
            if flow.wake()? {
                return Ok(Drained::Awake);
            }
        }
        // A flow that cannot be woken now is ended as it is.
        if session.entry.is_to_end() {
            return Err(Exit::asked());
        }
        // It is about to need no process any more, and would outlive this one.
        if session.context.ended.is_cancelled() && now >= *stops_at.get_or_insert(now + LAST_CHANCE) {
            return Err(Exit::stopped());
        }
        if progress != Progress::Contradicted {
            doubted_at = None;
        } else if now >= *doubted_at.get_or_insert(now + PARK_PATIENCE) {
            if flow.believe_sockets() {
                tracing::debug!(flow = %session.id(), "a socket has not taken an acknowledgement: it is waited for again");
            } else if flow.is_complete() {
                return Err(Exit::Finished);
            }
            doubted_at = None;
        }
        match progress {
            Progress::Parkable if !session.parks() || flow.all_noted() => {
                return Ok(Drained::Drained(cuts, true));
            }
            // A socket may hold bytes beyond a hole for ever: the segment that fills the hole has bypassed it.
            Progress::Parkable | Progress::Drained
                if now >= *drained_at.get_or_insert(now + PARK_PATIENCE) =>
            {
                tracing::debug!(flow = %session.id(), ?progress, "drained, and its sockets cannot be woken");
                return Ok(Drained::Drained(cuts, false));
            }
            _ => {}
        }
        if flow.is_hopeless(now, Waiter::Drain) {
            tracing::info!(flow = %session.id(), "an end does not acknowledge what was sent before: both ends are reset");
            return Err(Exit::given_up());
        }
        let deadlines = [
            stops_at,
            doubted_at,
            drained_at,
            flow.notes_latecomers_at(),
            session.traps.next(),
        ];
        let stops = stops_at.is_none();
        session.wait_draining(flow, &mut looks, &deadlines, stops).await;
    }
}
