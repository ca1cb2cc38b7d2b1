//! Models the steps of a packet of a flow whose sockets are in the path, and of one that is forwarded past them:
//! `with_sockets`, `drain` and `forward` of the C code, as far as other CPUs can observe them.

use super::{
    local::{Mapping, deliver, within_window},
    outcome::{Outcome, Verdict},
    passage::{Next, Passage, Step, again, untouched},
    segment::{Segment, flag},
    state::{Flow, Mode, bypassed, raise},
    track::{acks_too_little, acks_unsent, is_through, note_ack, note_end_of, note_peer, note_timestamp},
    undrain::settled,
    window::fits_window,
};

impl Passage {
    /// Processes a segment of a flow whose sockets are in the path.
    pub(super) fn with_sockets(&mut self, flow: &mut Flow, mode: Mode) -> Next {
        let s = self.segment;
        let (x, o) = flow.legs(self.side);
        if !matches!(mode, Mode::Track | Mode::Drain | Mode::Undrain) {
            return again();
        }
        // This reset answers a late duplicate, and must not end the connection while o still waits for data.
        if s.has(flag::RST) && mode != Mode::Track && is_through(x, o) {
            return Next::Done(Outcome::of(Verdict::Absorbed));
        }
        let unsent = acks_unsent(x, o, &s);
        // True if o knows that all of its stream that went past the sockets is acknowledged.
        self.heard = settled(o, x) || !o.tx_ack.before(o.base);
        if !fits_window(x, s.end()) {
            // The payload may fit when the socket processes it, and would lie above the cut. The socket must answer, so
            // it gets the rest.
            let bare = Segment {
                len: 0,
                flags: s.flags & !(flag::FIN | flag::PSH),
                ..s
            };
            return Next::Done(deliver(&bare, Mapping::of_leg(x)));
        }
        if unsent {
            return Next::Done(deliver(&s, Mapping::of_leg(x)));
        }
        // Raised or lowered, the acknowledgement would become acceptable.
        if acks_too_little(&x.rec, &o.rec, &s) {
            return Next::Done(if mode == Mode::Track {
                deliver(&s, Mapping::of_leg(x))
            } else {
                Outcome::of(Verdict::Absorbed)
            });
        }
        // A reset changes nothing else: its other numbers are not validated.
        self.in_place = !s.has(flag::RST) && !s.end().before(x.tx_ack);
        note_peer(x, &s, self.in_place);
        if mode == Mode::Track && self.in_place && s.has(flag::ACK) {
            x.loc_acked = x.loc_acked.max(s.ack);
        }
        if mode == Mode::Drain && self.trapped {
            return Next::Step(Step::Trapped);
        }
        // The socket may take this payload. It takes none of a reset.
        let takes = s.occupies() && !s.has(flag::RST);
        // Decide once: another CPU may raise the cut meanwhile.
        self.old = (takes && mode != Mode::Drain) || ((takes || s.has(flag::RST)) && s.seq.before(x.cut));
        // The socket must not be shown a lower number later, either: it would ignore the window.
        let stands = !s.occupies() && !s.has(flag::RST) && self.in_place && mode != Mode::Drain;
        if (takes && self.old) || stands {
            return Next::Step(Step::RaiseCut(mode));
        }
        Next::Step(Step::ReadMode(mode))
    }

    pub(super) fn by_mode(&mut self, flow: &mut Flow, mode: Mode) -> Next {
        let s = &self.segment;
        let (x, _) = flow.legs(self.side);
        // The cut was raised before the mode was read; the payload counts as seen only if the socket is given it.
        let given = match mode {
            Mode::Track | Mode::Undrain => true,
            Mode::Drain => !self.trapped && self.old,
            _ => false,
        };
        if given && s.occupies() && !s.has(flag::RST) {
            raise(&mut x.rec.rx_end, s.seq + s.len);
        }
        match mode {
            Mode::Track => {
                flow.note_fin_or_rst(self.side, true, s, self.in_place);
                let x = flow.leg(self.side);
                Next::Done(deliver(&within_window(x, s), Mapping::of_leg(x)))
            }
            Mode::Drain if self.trapped => Next::Step(Step::Trapped),
            Mode::Drain => Next::Step(Step::Drain),
            Mode::Undrain => Next::Step(Step::Undrain),
            Mode::Aborted => untouched(s),
            _ => again(),
        }
    }

    pub(super) fn drain(&mut self, flow: &mut Flow) -> Next {
        let s = self.segment;
        let case = flow.drain_case(self.side, &s, self.old);
        if !case.wanted || case.kept {
            return Next::Step(Step::DrainEnd(case));
        }
        let (x, _) = flow.legs(self.side);
        if s.occupies() {
            x.bypassed |= bypassed::DRAIN;
        }
        if !case.old {
            note_end_of(&mut x.rec, &s, self.in_place);
            note_timestamp(&mut x.rec, &s, self.in_place);
        }
        Next::Step(Step::DrainClaim(case))
    }

    pub(super) fn forward(&mut self, flow: &mut Flow) -> Next {
        let s = self.segment;
        match flow.judge(self.side, self.slotted, &s, self.challenge) {
            Ok(in_place) => self.in_place = in_place,
            Err(verdict) => return Next::Done(Outcome::of(verdict)),
        }
        if let Some(rec) = flow.record_at(self.side, self.slotted)
            && self.in_place
        {
            note_ack(rec, &s);
        }
        if let Some(rec) = flow.record_at(self.side, self.slotted) {
            note_end_of(rec, &s, self.in_place);
            note_timestamp(rec, &s, self.in_place);
        }
        Next::Step(Step::ForwardClaim)
    }
}
