//! Takes a flow from Drain to Final, while segments pass.

use longsplice_core::seq::Seq;

use super::{
    state::{Flow, Mode, Side, slot_flag},
    steps::Steps,
};

/// Parks the sockets of a pair that user space found drained, step by step. Fails if a segment has come to a local
/// socket since: parking would lose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finish {
    cuts: [Seq; 2],
    wakeable: bool,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Take,
    Compare,
    Store(Mode),
}

impl Finish {
    /// Begins with the cuts at which both directions were found drained, by side. `wakeable`: they were found parkable,
    /// too ([`longsplice_core::drain`]), with nothing out of order in a socket.
    #[must_use]
    pub fn new(cuts: [Seq; 2], wakeable: bool) -> Finish {
        Finish {
            cuts,
            wakeable,
            step: Step::Take,
        }
    }
}

impl Steps for Finish {
    type End = Mode;

    /// Takes one step. Returns the mode afterwards at the end: [`Mode::Final`] if the sockets are parked.
    fn step(&mut self, flow: &mut Flow) -> Option<Mode> {
        match self.step {
            Step::Take => {
                if !flow.transition(Mode::Drain, Mode::Waking) {
                    return Some(flow.slot.mode);
                }
                self.step = Step::Compare;
            }
            Step::Compare => {
                let same = Side::BOTH.iter().all(|&seg| flow.leg(seg).cut == self.cuts[seg]);
                if same {
                    for side in Side::BOTH {
                        let leg = &mut flow.slot.leg[side];
                        leg.delivered = self.cuts[side];
                        leg.bypassed = 0;
                        // Later offers of the ends are not compared with this edge.
                        leg.rx_shrunk = 0;
                    }
                }
                if same && self.wakeable {
                    flow.slot.flags |= slot_flag::WAKEABLE;
                }
                self.step = Step::Store(if same { Mode::Final } else { Mode::Drain });
            }
            Step::Store(mode) => {
                flow.slot.mode = mode;
                return Some(mode);
            }
        }
        None
    }
}
