//! The way back to control mode (papers' section III-D): `wake.h`.

use super::state::{Flow, Leg, Mode, Side, owed, raise, seen, slot_flag};
use crate::seq::Seq;

/// Whether x's stream went past the sockets since they stopped.
pub(super) fn went_past(x: &Leg) -> bool {
    x.rec.rx_end.after(x.cut)
}

/// How far x's stream went, read once: other CPUs may raise both fields meanwhile, and look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reach {
    end: Seq,
    cut: Seq,
}

impl Reach {
    /// In FINAL user space has said where the sockets are: a late segment may have raised the cut, and have looked again.
    fn of(x: &Leg, from: Mode) -> Reach {
        let cut = if from == Mode::Final { x.read_to } else { x.cut };
        Reach { end: x.rec.rx_end, cut }
    }

    fn went_past(self) -> bool {
        self.end.after(self.cut)
    }
}

/// DRAIN: whether the local sockets could go on in the direction from x to o. They can if nothing of it went past them,
/// not even an acknowledgement, or if all that they had is through.
fn can_go_on(x: &Leg, o: &Leg, reach: Reach) -> bool {
    let whole = !reach.went_past() && !x.loc_ack.before(x.tx_ack);
    whole || (x.read_to == reach.cut && o.loc_acked == o.loc_end)
}

/// Where the sockets go on in the direction from x to o: behind all that was forwarded. A FIN that was forwarded is
/// theirs all the same: user space has the local socket see it.
fn go_on(x: &mut Leg, o: &mut Leg, reach: Reach) {
    let Reach { end: mut base, cut } = reach;
    if reach.went_past() {
        x.owed |= owed::SOME;
    }
    // Or the socket was rebuilt, and all before it was forwarded.
    if x.owed == 0 {
        x.base = cut;
        return;
    }
    if reach.went_past() && x.rec.seen & seen::FIN != 0 {
        base = base - 1;
        x.owed |= owed::FIN;
        x.rec.rx_end = base;
    }
    let shift = (base - cut) as u32;
    x.base = base;
    x.cut = base;
    x.read_to = base - 1;
    x.adj_seq = x.adj_seq.removed(shift);
    o.adj_ack = o.adj_ack.removed(shift);
    x.loc_ack = base;
    x.loc_edge = x.loc_edge + shift;
    raise(&mut x.tx_ack, o.rec.rx_ack + o.rec.ack_off);
    raise(&mut x.tx_edge, (o.rec.rx_edge + o.rec.ack_off).min(x.loc_edge));
    o.loc_end = base + x.rec.seq_off;
    o.loc_acked = o.loc_end;
}

/// Wakes the pair of a slot, if its sockets can go on now: `wake_slot`, step by step. Run by a packet that met a trap,
/// or by user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    from: Mode,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Take,
    Look,
    GoOn(Side, [Reach; 2]),
    Store(Mode),
}

impl Wake {
    /// From the mode that was read just now.
    #[must_use]
    pub fn from(mode: Mode) -> Wake {
        Wake { from: mode, step: Step::Take }
    }

    /// Takes one step. In the end: the mode after it, whoever made it; [`Mode::Undrain`] if the pair is awake.
    pub fn step(&mut self, flow: &mut Flow) -> Option<Mode> {
        let slot = &mut flow.slot;
        match self.step {
            Step::Take => {
                let wakeable = self.from == Mode::Final && slot.flags & slot_flag::WAKEABLE != 0;
                if self.from != Mode::Drain && !wakeable {
                    return Some(self.from);
                }
                if slot.mode != self.from {
                    return Some(slot.mode);
                }
                slot.mode = Mode::Waking;
                self.step = Step::Look;
            }
            Step::Look => {
                let [a, b] = &slot.leg;
                let reach = [Reach::of(a, self.from), Reach::of(b, self.from)];
                let can = self.from != Mode::Drain
                    || (can_go_on(a, b, reach[0]) && can_go_on(b, a, reach[1]));
                self.step =
                    if can { Step::GoOn(Side::Client, reach) } else { Step::Store(Mode::Drain) };
            }
            Step::GoOn(side, reach) => {
                let (x, o) = flow.legs(side);
                go_on(x, o, reach[side.index()]);
                self.step = match side {
                    Side::Client => Step::GoOn(Side::Server, reach),
                    Side::Server => {
                        flow.slot.flags = 0;
                        Step::Store(Mode::Undrain)
                    }
                };
            }
            Step::Store(mode) => {
                slot.mode = mode;
                return Some(mode);
            }
        }
        None
    }

    /// Takes all steps at once.
    pub fn run(mut self, flow: &mut Flow) -> Mode {
        loop {
            if let Some(mode) = self.step(flow) {
                return mode;
            }
        }
    }
}
