//! Models the steps of a packet of a flow whose sockets are in the path, and of one that is forwarded past them:
//! `with_sockets`, `drain` and `forward` of the C code, as far as other CPUs can observe them.

use super::{
    local::{Mapping, deliver, within_window},
    outcome::{Outcome, Verdict},
    passage::{Next, Passage, Step, again, untouched},
    segment::flag,
    state::{Flow, Mode, bypassed, seq_advance},
    track::{acks_too_little, acks_unsent, is_through, note_ack, note_end_of, note_peer, note_timestamp},
    undrain::has_delivered,
    window::fits_window,
};

impl Passage {
    /// Processes a segment of a flow whose sockets are in the path.
    pub(super) fn with_sockets(&mut self, flow: &mut Flow, mode: Mode) -> Next {
        let mut seg = self.segment;
        let (from, to) = flow.legs(self.side);
        if !matches!(mode, Mode::Track | Mode::Drain | Mode::Undrain) {
            return again();
        }
        // This reset answers a late duplicate, and must not end the connection while the far end still waits for data.
        if seg.has(flag::RST) && mode != Mode::Track && is_through(from, to) {
            return Next::Done(Outcome::of(Verdict::Absorbed));
        }
        // True if the far end knows that all of its stream that went past the sockets is acknowledged.
        self.heard = has_delivered(to, from) || !to.tx_ack.before(to.base);
        // The payload may fit when the socket processes it, and would lie above the cut. The socket processes what the
        // rest says.
        if !fits_window(from, seg.end()) && seg.occupies() {
            seg.len = 0;
            seg.flags &= !(flag::FIN | flag::PSH);
            self.segment = seg;
            self.trapped = false;
        }
        if !fits_window(from, seg.end()) || acks_unsent(from, to, &seg) {
            return Next::Done(deliver(&seg, Mapping::of_leg(from)));
        }
        // Raised or lowered, the acknowledgement would become acceptable.
        if acks_too_little(&from.rec, &to.rec, &seg) {
            return Next::Done(if mode == Mode::Track {
                deliver(&seg, Mapping::of_leg(from))
            } else {
                Outcome::of(Verdict::Absorbed)
            });
        }
        // A reset changes nothing else: its other numbers are not validated.
        self.in_place = !seg.has(flag::RST) && !seg.end().before(from.tx_ack);
        note_peer(from, &seg, self.in_place);
        if mode == Mode::Track && self.in_place && seg.has(flag::ACK) {
            from.loc_acked = from.loc_acked.max(seg.ack);
        }
        if mode == Mode::Drain && self.trapped {
            return Next::Step(Step::Trapped);
        }
        // The socket may take this payload. It takes none of a reset.
        let takes = seg.occupies() && !seg.has(flag::RST);
        // Decide once: another CPU may raise the cut meanwhile.
        self.old =
            (takes && mode != Mode::Drain) || ((takes || seg.has(flag::RST)) && seg.seq.before(from.cut));
        // The socket must not be shown a lower number later, either: it would ignore the window.
        let stands = !seg.occupies() && !seg.has(flag::RST) && self.in_place && mode != Mode::Drain;
        if (takes && self.old) || stands {
            return Next::Step(Step::RaiseCut(mode));
        }
        Next::Step(Step::ReadMode(mode))
    }

    pub(super) fn by_mode(&mut self, flow: &mut Flow, mode: Mode) -> Next {
        let seg = &self.segment;
        let (from, _) = flow.legs(self.side);
        // The cut was raised before the mode was read; the payload counts as seen only if the socket is given it.
        let given = match mode {
            Mode::Track | Mode::Undrain => true,
            Mode::Drain => !self.trapped && self.old,
            _ => false,
        };
        if given && seg.occupies() && !seg.has(flag::RST) {
            seq_advance(&mut from.rec.rx_end, seg.seq + seg.len);
        }
        match mode {
            Mode::Track => {
                flow.note_fin_or_rst(self.side, true, seg, self.in_place);
                let from = flow.leg(self.side);
                Next::Done(deliver(&within_window(from, seg), Mapping::of_leg(from)))
            }
            Mode::Drain if self.trapped => Next::Step(Step::Trapped),
            Mode::Drain => Next::Step(Step::Drain),
            Mode::Undrain => Next::Step(Step::Undrain),
            Mode::Aborted => untouched(seg),
            _ => again(),
        }
    }

    pub(super) fn drain(&mut self, flow: &mut Flow) -> Next {
        let seg = self.segment;
        let case = flow.drain_case(self.side, &seg, self.old);
        if !case.wanted || case.kept {
            return Next::Step(Step::DrainEnd(case));
        }
        let (from, _) = flow.legs(self.side);
        if seg.occupies() {
            from.bypassed |= bypassed::DRAIN;
        }
        if !case.old {
            note_end_of(&mut from.rec, &seg, self.in_place);
            note_timestamp(&mut from.rec, &seg, self.in_place);
        }
        Next::Step(Step::DrainClaim(case))
    }

    pub(super) fn forward(&mut self, flow: &mut Flow) -> Next {
        let came_at = self.segment.seq;
        match flow.admit_segment(self.side, self.slotted, &mut self.segment, self.challenge) {
            Ok(in_place) => self.in_place = in_place,
            Err(verdict) => return Next::Done(Outcome::of(verdict)),
        }
        let seg = self.segment;
        self.moved = seg.seq != came_at;
        if let Some(rec) = flow.record_at(self.side, self.slotted)
            && self.in_place
        {
            note_ack(rec, &seg);
        }
        if let Some(rec) = flow.record_at(self.side, self.slotted) {
            note_end_of(rec, &seg, self.in_place);
            note_timestamp(rec, &seg, self.in_place);
        }
        Next::Step(Step::ForwardClaim)
    }
}
