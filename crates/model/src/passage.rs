//! Models the walk of a packet that came in: `ingress.h`, step by step.

use super::{
    drain::DrainCase,
    forward::meets_trap,
    local::{Mapping, deliver},
    outcome::{Outcome, Verdict},
    segment::{Segment, flag},
    state::{Flow, Mode, Placement, Side, seq_advance},
    steps::Steps,
    track::{acks_too_little, acks_unsent},
    wake::Wake,
    window::fits_window,
};

/// Packet on its way through `ingress`, on one CPU. Between two steps another CPU may take any step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    pub(super) side: Side,
    pub(super) segment: Segment,
    pub(super) in_place: bool,
    pub(super) trapped: bool,
    pub(super) fresh: bool,
    pub(super) plausible: bool,
    pub(super) heard: bool,
    pub(super) old: bool,
    pub(super) woken: bool,
    pub(super) slotted: bool,
    pub(super) acknowledge: bool,
    pub(super) challenge: bool,
    /// True for a reset that was moved into the window: it takes no sequence number there.
    pub(super) moved: bool,
    pub(super) step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Begin,
    Wake(Wake),
    WithSockets(Mode),
    RaiseCut(Mode),
    Trapped,
    TrappedEnd,
    ReadMode(Mode),
    Drain,
    DrainClaim(DrainCase),
    DrainEnd(DrainCase),
    Undrain,
    Forward,
    ForwardClaim,
    ForwardEnd,
}

/// Result of a step.
#[expect(clippy::large_enum_variant, reason = "it lives for a moment")]
pub(super) enum Next {
    Step(Step),
    Done(Outcome),
}

impl Passage {
    /// Begins the passage of a packet from the peer of a side.
    #[must_use]
    pub fn new(side: Side, segment: &Segment) -> Passage {
        Passage {
            side,
            segment: *segment,
            in_place: true,
            trapped: false,
            fresh: false,
            plausible: false,
            heard: true,
            old: false,
            woken: false,
            slotted: false,
            acknowledge: false,
            challenge: true,
            moved: false,
            step: Step::Begin,
        }
    }

    /// Returns the passage at a moment at which no SYN on a live flow may provoke a challenge: too many came
    /// (`admit.h`).
    #[must_use]
    pub fn unchallenged(self) -> Passage {
        Passage {
            challenge: false,
            ..self
        }
    }

    /// Begins the passage of a packet of which only the acknowledgement goes on, to the far end (TAG_ACK).
    #[must_use]
    pub fn acknowledgement(side: Side, segment: &Segment) -> Passage {
        Passage {
            acknowledge: true,
            ..Passage::new(side, segment)
        }
    }

    /// Returns the packet, as it came in.
    #[must_use]
    pub fn segment(&self) -> (Side, Segment) {
        (self.side, self.segment)
    }
}

impl Steps for Passage {
    type End = Outcome;

    /// Takes one step. Returns the outcome of the packet at the end.
    fn step(&mut self, flow: &mut Flow) -> Option<Outcome> {
        let next = match self.step {
            Step::Begin => self.begin(flow),
            Step::Wake(wake) => self.wake(flow, wake),
            Step::WithSockets(mode) => self.with_sockets(flow, mode),
            Step::RaiseCut(mode) => {
                seq_advance(&mut flow.legs(self.side).0.cut, self.segment.end());
                Next::Step(Step::ReadMode(mode))
            }
            Step::Trapped if flow.keeps_trapped(self.side, &self.segment) => {
                Next::Done(Outcome::held(self.segment))
            }
            Step::Trapped => {
                seq_advance(&mut flow.legs(self.side).0.cut, self.segment.end());
                Next::Step(Step::TrappedEnd)
            }
            // The cut was raised first, then the mode is read.
            Step::TrappedEnd if flow.slot.mode != Mode::Drain => again(),
            Step::TrappedEnd => {
                flow.note_fin_or_rst(self.side, true, &self.segment, self.in_place);
                Next::Done(flow.drain_trapped(self.side, &self.segment, self.in_place))
            }
            // A wake may have stored the cut since, and may be over: raised anew, the cut counts.
            Step::ReadMode(mode)
                if matches!(flow.slot.mode, Mode::Undrain | Mode::Track) && mode != flow.slot.mode =>
            {
                again()
            }
            Step::ReadMode(_) => self.by_mode(flow, flow.slot.mode),
            Step::Drain => self.drain(flow),
            Step::DrainClaim(case) => self.claim(flow, Step::DrainEnd(case)),
            Step::DrainEnd(case) => {
                flow.note_fin_or_rst(self.side, true, &self.segment, self.in_place);
                Next::Done(flow.drain(self.side, &self.segment, self.in_place, case))
            }
            Step::Undrain => Next::Done(flow.undrain(self.side, &self.segment, self.in_place, self.heard)),
            Step::Forward => self.forward(flow),
            Step::ForwardClaim => self.claim(flow, Step::ForwardEnd),
            Step::ForwardEnd => {
                flow.note_fin_or_rst(self.side, self.slotted, &self.segment, self.in_place);
                Next::Done(flow.forward(self.side, self.slotted, &self.segment, self.in_place))
            }
        };
        match next {
            Next::Step(step) => {
                self.step = step;
                None
            }
            Next::Done(outcome) => Some(Outcome {
                woken: self.woken,
                ..outcome
            }),
        }
    }
}

impl Passage {
    fn begin(&mut self, flow: &mut Flow) -> Next {
        let seg = self.segment;
        let Some(placement) = flow.placement(self.side) else {
            return untouched(&seg);
        };
        self.slotted = placement == Placement::Slotted;
        let mode = match placement {
            Placement::Slotted => flow.slot.mode,
            Placement::Alone => Mode::Track,
            Placement::Detached => Mode::Final,
        };
        match mode {
            Mode::Free | Mode::Replaced | Mode::Aborted => return untouched(&seg),
            Mode::Waking | Mode::Moved => return again(),
            _ => {}
        }
        if self.acknowledge {
            return Next::Done(if self.slotted {
                flow.undrain_acknowledge(self.side, &seg)
            } else {
                Outcome::of(Verdict::Absorbed)
            });
        }
        let Some(rec) = flow.record(self.side).copied() else {
            return untouched(&seg);
        };
        if placement == Placement::Alone {
            return Next::Done(deliver(&seg, Mapping::of_record(&rec)));
        }
        if seg.has(flag::SYN) {
            let outcome = match self.slotted && mode != Mode::Final {
                true => Some(flow.syn_with_sockets(self.side, &seg, mode)),
                false => flow.syn_of_spliced(self.side, self.slotted, &seg),
            };
            if let Some(outcome) = outcome {
                return Next::Done(outcome);
            }
        }
        self.trapped = meets_trap(&rec, &seg);
        self.fresh = mode == Mode::Freeze && self.slotted && flow.is_new(self.side, &seg);
        self.plausible = (self.trapped || self.fresh) && self.is_plausible(flow, mode);
        if self.trapped && self.plausible && self.slotted && matches!(mode, Mode::Final | Mode::Drain) {
            return Next::Step(Step::Wake(Wake::by_packet(mode)));
        }
        self.in_mode(flow, mode)
    }

    /// Returns whether a segment that meets a trap can be the sender's own: a blind segment wakes no pair, and is not
    /// kept either.
    fn is_plausible(&mut self, flow: &mut Flow, mode: Mode) -> bool {
        let mut seg = self.segment;
        if !self.slotted || matches!(mode, Mode::Final | Mode::Freeze) {
            return flow.admit_segment(self.side, self.slotted, &mut seg, self.challenge) == Ok(true);
        }
        let (from, to) = flow.legs(self.side);
        fits_window(from, seg.end())
            && !acks_unsent(from, to, &seg)
            && !acks_too_little(&from.rec, &to.rec, &seg)
    }

    fn wake(&mut self, flow: &mut Flow, mut wake: Wake) -> Next {
        let Some(mode) = wake.step(flow) else {
            return Next::Step(Step::Wake(wake));
        };
        self.woken = mode == Mode::Undrain;
        self.in_mode(flow, mode)
    }

    fn in_mode(&mut self, flow: &mut Flow, mode: Mode) -> Next {
        if self.slotted && !matches!(mode, Mode::Final | Mode::Freeze) {
            return Next::Step(Step::WithSockets(mode));
        }
        if self.plausible {
            return Next::Done(Outcome::held(self.segment));
        }
        let news = flow
            .record(self.side)
            .is_some_and(|r| self.segment.end().after(r.rx_end));
        if self.fresh || (self.trapped && news) {
            let admission = flow.admit_segment(self.side, self.slotted, &mut self.segment, self.challenge);
            return Next::Done(Outcome::of(admission.err().unwrap_or(Verdict::DropWindow)));
        }
        Next::Step(Step::Forward)
    }

    /// Goes on to `then` if the segment may still be forwarded, after its end was noted in `rx_end` (`may_still_pass`
    /// of `admit.h`). A CPU or a process that moves a flow stores the new mode or placement first and reads `rx_end`
    /// then.
    fn claim(&mut self, flow: &Flow, then: Step) -> Next {
        let passes = if self.slotted {
            match flow.slot.mode {
                Mode::Final | Mode::Drain => true,
                Mode::Freeze => self.moved || !flow.is_new(self.side, &self.segment),
                _ => false,
            }
        } else {
            // A flow that moved to a slot and back meanwhile has the slot's numbers over ours.
            let seg = &self.segment;
            flow.records[self.side].is_some_and(|rec| {
                let noted = seg.len == 0 || seg.has(flag::RST) || !(seg.seq + seg.len).after(rec.rx_end);
                rec.placement == Placement::Detached && noted
            })
        };
        if passes { Next::Step(then) } else { again() }
    }
}

/// Sends the segment up the stack, unchanged.
pub(super) fn untouched(seg: &Segment) -> Next {
    Next::Done(Outcome::local(Verdict::Next, *seg))
}

pub(super) fn again() -> Next {
    Next::Done(Outcome::of(Verdict::Again))
}

impl Flow {
    /// Returns whether, in FREEZE, a segment has payload that was not forwarded before.
    fn is_new(&self, side: Side, seg: &Segment) -> bool {
        seg.occupies() && seg.end().after(self.leg(side).base)
    }

    /// Processes a segment of the peer of a side, all steps at once.
    pub fn ingress(&mut self, side: Side, seg: &Segment) -> Outcome {
        Passage::new(side, seg).run(self)
    }
}
