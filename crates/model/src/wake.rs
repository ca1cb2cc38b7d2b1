//! Returns a pair to control mode (papers' section III-D): `wake.h`.

use longsplice_core::seq::Seq;

use super::{
    state::{Flow, Leg, Mode, Side, bypassed, seen, seq_advance, slot_flag},
    steps::Steps,
    window::keeps_promise,
};

/// Returns whether the sender's stream went past the sockets since they stopped.
pub(super) fn went_past(from: &Leg) -> bool {
    from.rec.rx_end.after(from.cut) || from.bypassed & bypassed::DRAIN != 0
}

/// State of the sender's stream, read once: other CPUs may raise these fields meanwhile, and process their packets
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    end: Seq,
    cut: Seq,
    /// True if a FIN went past the local socket.
    fin: bool,
}

impl Reach {
    /// Reads the state. If the sockets are parked, user space has stored where they stand: a late segment may have
    /// raised the cut, and been processed again.
    pub(super) fn of(from: &Leg, mode: Mode) -> Reach {
        let end = if mode == Mode::Freeze {
            from.base
        } else {
            from.rec.rx_end
        };
        let cut = if mode == Mode::Drain {
            from.cut
        } else {
            from.delivered
        };
        Reach {
            end,
            cut,
            fin: from.rec.seen & seen::FIN != 0 && !cut.after(end),
        }
    }

    fn went_past(self) -> bool {
        self.end.after(self.cut) || self.fin
    }

    /// Returns whether, in FINAL, the stream is so far beyond the sender's socket that the socket would take it for old.
    /// (A FIN that the socket was shown lies one before the cut.)
    fn is_lost(self) -> bool {
        (1 << 31..u32::MAX).contains(&self.end.distance_from(self.cut))
    }

    /// Returns the number at which the sockets continue. The cut is behind a FIN that the socket was shown.
    fn base(self) -> Seq {
        self.end.max(self.cut)
    }
}

/// Returns whether, in DRAIN, the local sockets could continue in the direction from the sender to the far end. They
/// can if nothing of it was forwarded, or if all of the sockets' payload is delivered.
fn can_go_on(from: &Leg, to: &Leg, reach: Reach) -> bool {
    let untouched = !reach.went_past() && from.bypassed & bypassed::DRAIN == 0;
    untouched || (from.delivered == reach.cut && to.loc_acked == to.loc_end)
}

/// Has the sender's own socket continue at the base, which the socket takes for its present number. All bytes before it
/// went past the socket; a FIN there may have passed, too, but the sockets deliver it: user space shows it to the local
/// one.
pub(super) fn shift_to(from: &mut Leg, to: &mut Leg, reach: Reach) {
    let base = reach.base();
    let shift = (base - reach.cut) as u32;
    from.bypassed = if reach.fin {
        bypassed::SOME | bypassed::FIN
    } else {
        bypassed::SOME
    };
    from.base = base;
    seq_advance(&mut from.cut, base);
    from.delivered = base;
    from.adj_seq = from.adj_seq.removed(shift);
    from.loc_ack = base;
    from.loc_edge = from.loc_edge + shift;
    seq_advance(&mut from.tx_ack, to.rec.rx_ack + to.rec.ack_off);
    seq_advance(
        &mut from.tx_edge,
        (to.rec.rx_edge + to.rec.ack_off).min(from.loc_edge),
    );
    to.loc_end = base + from.rec.seq_off;
    to.loc_acked = to.loc_end;
}

/// Has the direction from the sender to the far end continue behind all forwarded payload, which the two ends deliver.
fn go_on(from: &mut Leg, to: &mut Leg, reach: Reach) {
    if stands(from, reach) {
        return;
    }
    to.adj_ack = to.adj_ack.removed((reach.base() - reach.cut) as u32);
    shift_to(from, to, reach);
}

/// Returns whether nothing went past the sockets: they are where the stream is.
pub(super) fn stands(from: &mut Leg, reach: Reach) -> bool {
    let stands = !reach.went_past() && from.bypassed & bypassed::NEW == 0;
    if stands {
        from.bypassed = 0;
    }
    stands
}

/// Wakes the pair of a slot, if its sockets can continue now: `wake_slot`, step by step. Run by a packet that met a
/// trap, or by user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    from: Mode,
    /// True to wake only if the sockets can take all that their peers were promised.
    promised: bool,
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
    /// Begins a wake by user space, from the mode that was just read. User space has made the sockets' windows large
    /// enough for all that their peers were promised.
    #[must_use]
    pub fn from(mode: Mode) -> Wake {
        Wake {
            from: mode,
            promised: false,
            step: Step::Take,
        }
    }

    /// Begins a wake by a packet that met a trap: only if the sockets can take all that their peers were promised.
    #[must_use]
    pub(super) fn by_packet(mode: Mode) -> Wake {
        Wake {
            promised: true,
            ..Wake::from(mode)
        }
    }
}

impl Steps for Wake {
    type End = Mode;

    /// Takes one step. Returns the mode afterwards at the end, also if another CPU stored it: [`Mode::Undrain`] if the
    /// pair is awake.
    fn step(&mut self, flow: &mut Flow) -> Option<Mode> {
        let slot = &mut flow.slot;
        match self.step {
            Step::Take => {
                let wakeable = self.from == Mode::Final && slot.flags & slot_flag::WAKEABLE != 0;
                if !matches!(self.from, Mode::Drain | Mode::Freeze) && !wakeable {
                    return Some(self.from);
                }
                if slot.mode != self.from {
                    return Some(slot.mode);
                }
                slot.mode = Mode::Waking;
                self.step = Step::Look;
            }
            Step::Look => {
                let [client, server] = &slot.leg;
                let reach = [Reach::of(client, self.from), Reach::of(server, self.from)];
                let keeps = |from, r: Reach| !self.promised || keeps_promise(from, r.cut, r.base());
                let can = match self.from {
                    Mode::Drain => can_go_on(client, server, reach[0]) && can_go_on(server, client, reach[1]),
                    Mode::Final => !reach.iter().any(|r| r.is_lost()),
                    _ => true,
                };
                self.step = if can && keeps(client, reach[0]) && keeps(server, reach[1]) {
                    Step::GoOn(Side::Client, reach)
                } else {
                    Step::Store(self.from)
                };
            }
            Step::GoOn(side, reach) => {
                let (from, to) = flow.legs(side);
                go_on(from, to, reach[side]);
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
}
