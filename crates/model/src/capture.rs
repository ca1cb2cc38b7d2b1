//! Returns a flow by the second way: new payload is held for a moment, until the sockets have copies of all that is not
//! acknowledged. `freeze_slot` and `take_over_slot` of `wake.h`.

use longsplice_core::seq::Seq;

use super::{
    state::{Flow, Leg, Mode, Side, seq_advance},
    steps::Steps,
    wake::{Reach, shift_to, stands},
};

/// Goes from Final to Freeze, step by step: no new payload is forwarded from `base` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Freeze {
    step: FreezeStep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum FreezeStep {
    #[default]
    Take,
    Note,
    Store,
}

impl Steps for Freeze {
    type End = Mode;

    /// Takes one step. Returns the mode afterwards at the end: [`Mode::Freeze`] if it is done.
    fn step(&mut self, flow: &mut Flow) -> Option<Mode> {
        match self.step {
            FreezeStep::Take => {
                if !flow.transition(Mode::Final, Mode::Waking) {
                    return Some(flow.slot.mode);
                }
                self.step = FreezeStep::Note;
            }
            FreezeStep::Note => {
                for leg in &mut flow.slot.leg {
                    leg.base = leg.rec.rx_end;
                }
                self.step = FreezeStep::Store;
            }
            FreezeStep::Store => {
                flow.slot.mode = Mode::Freeze;
                return Some(Mode::Freeze);
            }
        }
        None
    }
}

/// Goes from Freeze to Track, step by step: the sockets have the payload that was forwarded and not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeOver {
    acked: [Seq; 2],
    step: TakeOverStep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TakeOverStep {
    Take,
    Shift,
    Store,
}

impl TakeOver {
    /// Begins with `acked`, by side: the start of the payload that the socket toward each side has in its send queue
    /// for its peer, in the wire's numbers.
    #[must_use]
    pub fn new(acked: [Seq; 2]) -> TakeOver {
        TakeOver {
            acked,
            step: TakeOverStep::Take,
        }
    }
}

impl Steps for TakeOver {
    type End = Mode;

    /// Takes one step. Returns the mode afterwards at the end: [`Mode::Track`] if it is done.
    fn step(&mut self, flow: &mut Flow) -> Option<Mode> {
        match self.step {
            TakeOverStep::Take => {
                if !flow.transition(Mode::Freeze, Mode::Waking) {
                    return Some(flow.slot.mode);
                }
                self.step = TakeOverStep::Shift;
            }
            TakeOverStep::Shift => {
                for side in Side::BOTH {
                    let (from, to) = flow.legs(side);
                    take_over(from, to, self.acked[side.other()]);
                }
                flow.slot.flags = 0;
                self.step = TakeOverStep::Store;
            }
            TakeOverStep::Store => {
                flow.slot.mode = Mode::Track;
                return Some(Mode::Track);
            }
        }
        None
    }
}

/// Has the sockets take over the direction from the sender to the far end: the sender's socket acknowledges the
/// forwarded payload, and the part that the far end may lack, from `acked` on, is in the send queue of the far end's
/// socket.
fn take_over(from: &mut Leg, to: &mut Leg, acked: Seq) {
    let reach = Reach::of(from, Mode::Freeze);
    // Sockets that were built for the flow may be given payload that was forwarded before.
    if stands(from, reach) {
        return;
    }
    to.adj_ack = to.adj_ack.inserted((to.loc_end - acked) as u32);
    shift_to(from, to, reach);
    seq_advance(&mut from.tx_ack, from.base);
    to.loc_acked = acked;
}
