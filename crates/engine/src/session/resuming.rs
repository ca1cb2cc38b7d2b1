//! Brings the sockets of a spliced pair back into the path, and has them carry on.

use std::{io, time::Duration};

use longsplice_dataplane::{PerSide, Side};
use longsplice_repair::options;
use tokio::time::Instant;

use super::{
    pair::Session,
    state::{Relaying, Resuming, State},
};
use crate::{
    api::FlowState,
    flow::{Flow, capture},
    services::stats::End,
};

/// Time that a packet may take from user space to a socket.
const ON_ITS_WAY: Duration = Duration::from_millis(1);

impl<'a> Resuming<'a> {
    /// Has the sockets carry on.
    pub(super) async fn run(self) -> State<'a> {
        let Resuming { mut session, flow } = self;
        if welcome(&mut session, flow) {
            // Let the injected segment reach its socket first: a splice that began before would be brought back by it.
            session.wait(Some(Instant::now() + ON_ITS_WAY)).await;
        }
        if session.fired(Instant::now()).is_none() {
            // The trap was only a step to one that is too far for a sequence number, or a part of the budget is left.
            session.entry.ask();
        }
        State::Relaying(Relaying { session })
    }
}

impl Session<'_> {
    /// Makes room in the sockets for the data that their peers were promised. Returns true if it fits.
    pub(super) fn keep_promises(&self, flow: &Flow) -> bool {
        flow.keep_promises(PerSide::from_fn(|side| self.pump.socket(side)), self.pauses)
    }

    /// Wakes the sockets, in the way that the pair's policy says. Returns true on success.
    pub(super) async fn wake(&self, flow: &Flow) -> io::Result<bool> {
        if self.captures() && capture::take_over(flow, &self.pump).await? {
            self.stats().captured.add(1);
            return Ok(true);
        }
        flow.slot().set_wakeable(true);
        flow.wake()
    }
}

/// Shows the sockets what they have missed. Returns true if the segment that brought the pair back is still on its way to
/// a socket.
fn welcome(session: &mut Session<'_>, flow: Flow) -> bool {
    match session.entry.is_to_end() {
        true => session.stats().ended(End::Admin),
        false => session.stats().unspliced.add(1),
    }
    session.entry.set_state(FlowState::Undraining);
    for side in Side::BOTH {
        session.half_closed[side] |= flow.leg(side).bypassed_fin;
    }
    let comes = flow.welcome(PerSide::from_fn(|side| session.pump.eof(side)));
    session.throttle.take_back(flow.slot());
    session.keep_flow(flow);
    for side in Side::BOTH {
        session.limit_pump(side, None);
        if session.keepalive[side] {
            let _ = options::set_keepalive(session.pump.socket(side), true);
        }
    }
    comes
}
