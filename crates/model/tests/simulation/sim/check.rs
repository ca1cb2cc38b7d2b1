//! Checks the invariants (../shared/design/README.md), on every segment that goes out.

use longsplice_model::{Mode, Outcome, Placement, Segment, Side, Verdict, flag, slot_flag};

use super::{
    tcp::{FORGED, MS},
    world::{Event, World, show},
};

impl World {
    /// Sends a segment to an end, from a local socket or the far end, and checks it.
    pub fn send_to_end(&mut self, side: Side, s: Segment) {
        if s.at < FORGED {
            self.check_ack(side, &s);
            self.check_timestamp(side, &s);
            self.note_coupling(side, &s);
        }
        self.over_link(side, |d| Event::ToEnd(d, s));
    }

    /// Checks the acknowledgement in a segment to the sender: the sender must have sent all bytes below it, and the
    /// forwarder or the far end must have them.
    fn check_ack(&mut self, side: Side, s: &Segment) {
        if !s.has(flag::ACK) || s.has(flag::RST) || self.doomed {
            return;
        }
        let from = &self.ends[side];
        let to = &self.ends[side.other()];
        if from.dead || to.dead {
            return;
        }
        let ack = from.una + i64::from(s.ack - from.snd_seq(from.una));
        if ack > from.nxt {
            let what = format!("an ACK to {side:?} for {ack} of {} sent: {}", from.nxt, show(s));
            self.fail(what);
            return;
        }
        let bytes = ack.min(from.write);
        if ack > from.write && !to.got_fin() && !self.locals[side].as_ref().is_some_and(|l| l.got_fin()) {
            self.fail(format!(
                "the FIN of {side:?} is acknowledged and neither end has it: {}",
                show(s)
            ));
            return;
        }
        let has = to.received();
        let sockets = self.chain(side);
        if bytes > has && sockets.is_none_or(|(start, end)| start > has || bytes > end) {
            self.fail(format!(
                "{bytes} of {side:?} acknowledged, the far end has {has}, the sockets {sockets:?}: {}",
                show(s)
            ));
        }
    }

    /// Returns the part of the sender's stream that the local sockets and the daemon hold.
    fn chain(&self, side: Side) -> Option<(i64, i64)> {
        let from = self.locals[side].as_ref()?;
        let to = self.locals[side.other()].as_ref()?;
        // Parked sockets are not responsible for any byte.
        let parked = matches!(self.flow.slot.mode, Mode::Final | Mode::Moved | Mode::Freeze);
        if !self.daemon.alive || (parked && self.is_slotted()) {
            return None;
        }
        let end = from.taken_to;
        let start = to
            .first_out()
            .or(self.daemon.pump[side].held.front().map(|r| r.at))
            .or(from.queue.front().map(|r| r.at))
            .unwrap_or(end);
        Some((start as i64, end as i64))
    }

    /// Checks, when the sockets leave the path, that the ends have all acknowledged bytes.
    pub fn check_parked(&mut self) {
        for side in Side::BOTH {
            let (from, to) = (&self.ends[side], &self.ends[side.other()]);
            let acked = from.una.min(from.write);
            if acked > to.received() && !self.doomed && !from.dead && !to.dead {
                self.fail(format!(
                    "{acked} of {side:?} acknowledged and parked, the far end has {}",
                    to.received()
                ));
                return;
            }
        }
    }

    /// Notes the window that a coupling takes back from an end: the end may not have heard of it when it sends on.
    fn note_coupling(&mut self, side: Side, s: &Segment) {
        let slot = &self.flow.slot;
        let coupled = slot.mode == Mode::Track && slot.flags & slot_flag::COUPLE != 0 && self.is_slotted();
        if coupled && s.has(flag::ACK) && !s.has(flag::RST) {
            let from = &self.ends[side];
            let ack = from.una + i64::from(s.ack - from.snd_seq(from.una));
            let edge = ack + i64::from(s.window << from.config.peer_scale);
            let lowest = &mut self.coupled[side];
            *lowest = Some((lowest.map_or(edge, |(l, _)| l.min(edge)), self.now));
        }
    }

    /// Checks that every window once offered to an end stays offered; only a coupling takes something back. `una` and
    /// `edge` are those before the end received a segment. A pair that must keep no promise may shrink windows when it
    /// wakes.
    pub fn check_promise(&mut self, side: Side, una: i64, edge: i64) {
        let from = &self.ends[side];
        // An acknowledgement without news may be late: it has the state of the time when it was sent.
        if !self.orderly || !self.scenario.keep || self.doomed || from.dead || from.una <= una {
            return;
        }
        let now = from.snd_edge;
        // Allow for the rounding of a scaled field, and for bytes that went both ways in a drain: they were counted as
        // bytes that the socket would skip.
        let far = self.ends[side.other()].config.our_scale;
        let slack = (1 << from.config.peer_scale) + (1 << far) + 2 * from.config.mss;
        let lowest = &mut self.coupled[side];
        let allowed = lowest.is_some_and(|(l, _)| now + slack > l);
        // The end has heard of it, and no earlier segment is on its way any more.
        let delay = self.scenario.links[side].delay + MS;
        if lowest.is_some_and(|(l, sent)| now <= l && self.now > sent + delay) {
            *lowest = None;
        }
        if now + slack <= edge && !allowed {
            self.fail(format!("{side:?} was offered {edge}, and now {now}"));
        }
    }

    fn check_timestamp(&mut self, side: Side, s: &Segment) {
        let Some(ts) = s.ts else { return };
        let last = &mut self.last_ts[side];
        // Two CPUs reorder segments, as any network does; a clock that goes back would do so by more.
        let slack = if self.scenario.interleave > 0 || !self.tasks.is_empty() {
            200
        } else {
            0
        };
        if let Some(l) = last
            && ts.val.before(*l)
            && !ts.val.before(*l - slack)
        {
            return;
        }
        if last.is_some_and(|l| ts.val.before(l)) {
            self.stats.add("TSval went back");
            // TSval of a reset has no effect, and another connection, whose SYN has replaced the flow, a clock of its own.
            if s.has(flag::RST) || self.flow.slot.mode == Mode::Replaced {
                return;
            }
            if !self.doomed && self.scenario.forge == 0 {
                let what = format!("TSval to {side:?} went back: {} after {:?}", ts.val, self.last_ts);
                self.fail(what);
            }
            return;
        }
        *last = Some(ts.val);
    }

    /// Checks the trap on a forwarded segment of a side.
    pub fn check_trap(&mut self, side: Side, s: &Segment, far: &Segment) {
        if let Some(floor) = self.trap_floor[side]
            && far.len > 0
            // User space has sent on the bytes that the socket has taken.
            && s.at + u64::from(s.len) > self.taken[side]
            && s.at < FORGED
            && (s.seq + s.len).after(floor)
        {
            self.fail(format!(
                "trapped payload of {side:?} was forwarded: {} beyond {floor}",
                show(s)
            ));
        }
    }

    /// Checks the invariants after each step.
    pub fn check_invariants(&mut self) {
        for side in Side::BOTH {
            self.taken[side] = self.taken[side].max(self.locals[side].as_ref().map_or(0, |l| l.taken_to));
        }
        if self.flow.slot.mode == Mode::Aborted && !self.doomed {
            self.doomed = true;
        }
        for side in Side::BOTH {
            let from = &self.ends[side];
            if let Some(rec) = self.flow.record(side)
                && !self.doomed
                && rec.placement != Placement::Alone
                && (rec.rx_end.after(from.snd_seq(from.nxt)) || rec.rx_ack.after(from.rcv_seq(from.rcv_nxt)))
            {
                let (end, ack) = (rec.rx_end, rec.rx_ack);
                let what = format!("{side:?} is noted at {end} and {ack}, and is not there");
                self.fail(what);
                return;
            }
        }
        for side in Side::BOTH {
            let from = self.flow.leg(side);
            let relayed = matches!(self.flow.slot.mode, Mode::Drain);
            if let Some(local) = &self.locals[side]
                && relayed
                && self.is_slotted()
                && !self.doomed
                && (local.rcv_seq(local.rcv_nxt) - from.adj_seq).after(from.cut)
            {
                let at = local.rcv_seq(local.rcv_nxt) - from.adj_seq;
                self.fail(format!(
                    "the socket of {side:?} has {at}, beyond the cut at {}",
                    from.cut
                ));
                return;
            }
        }
        for side in Side::BOTH {
            let from = self.flow.leg(side);
            let in_path = matches!(self.flow.slot.mode, Mode::Track | Mode::Drain | Mode::Undrain);
            if let Some(local) = &self.locals[side]
                && in_path
                && self.is_slotted()
                && !self.doomed
                && (from.loc_edge + from.adj_seq).after(local.rcv_seq(local.rcv_edge))
            {
                let edge = local.rcv_seq(local.rcv_edge) - from.adj_seq;
                self.fail(format!(
                    "the socket of {side:?} offers {edge}, and is said to offer {}",
                    from.loc_edge
                ));
                return;
            }
        }
        if self.flow.slot.mode == Mode::Track && self.is_slotted() && self.tasks.is_empty() && !self.doomed {
            for side in Side::BOTH {
                let from = self.flow.leg(side);
                if from.rec.rx_ack.after(from.loc_end + 1) {
                    self.fail(format!("{side:?} acknowledged what its socket did not send"));
                    return;
                }
            }
        }
    }

    /// Checks that a receiver accepts a peer's segment within the offered window, also after the pair was spliced and
    /// is back.
    pub fn check_accepted(&mut self, side: Side, s: &Segment, outcome: &Outcome) {
        let from = &self.ends[side];
        let promised = self.coupled[side].map_or(from.snd_edge, |(l, _)| l.min(from.snd_edge));
        let promised = promised - 2 * from.config.mss;
        let offered = s.at < FORGED && s.len > 0 && (s.at + u64::from(s.len)) as i64 <= promised;
        if !offered || !self.orderly || !self.scenario.keep || self.doomed {
            return;
        }
        let cut_off = outcome.verdict == Verdict::Delivered && outcome.local.is_some_and(|l| l.len < s.len);
        let refused = [Verdict::DropWindow, Verdict::DropAck, Verdict::DropEcho].contains(&outcome.verdict);
        if cut_off || refused {
            self.fail(format!(
                "{side:?} was offered {promised}, and no receiver takes {}",
                show(s)
            ));
        }
    }

    /// Returns whether all written bytes are at their destination, and both streams have ended; or both ends were
    /// reset.
    pub fn is_complete(&self) -> bool {
        let [a, b] = &self.ends;
        let through = |from: &super::tcp::Tcp, to: &super::tcp::Tcp| {
            from.is_through() && to.got_fin() && to.received() == from.write
        };
        if through(a, b) && through(b, a) {
            return true;
        }
        // An end that has finished does not hear of the other's reset.
        let gone = |from: &super::tcp::Tcp, to: &super::tcp::Tcp| {
            from.dead || (from.is_through() && from.got_fin() && from.received() == to.write)
        };
        gone(a, b) && gone(b, a)
    }

    /// Returns the fault, the last lines of the trace, and the present state.
    pub fn report(&mut self, what: &str) -> String {
        let lines = std::env::var("LONGSPLICE_TRACE")
            .ok()
            .and_then(|v| v.parse().ok())
            .unwrap_or(60);
        let trace: Vec<_> = self.trace.take().unwrap_or_default().into();
        let trace = &trace[trace.len().saturating_sub(lines)..];
        format!(
            "{what}\n{}\n{:?}\n{}",
            trace.join("\n"),
            self.scenario,
            self.describe()
        )
    }

    /// Describes the present state for the report.
    pub fn describe(&self) -> String {
        let tcp = |t: &super::tcp::Tcp| {
            format!(
                "una {} nxt {} write {} fin {} edge {} | rcv {} unread {} eof {} fin {} edge {} | dead {} timers {:?}",
                t.una,
                t.nxt,
                t.write,
                t.fin,
                t.snd_edge,
                t.rcv_nxt,
                t.unread,
                t.eof,
                t.got_fin(),
                t.rcv_edge,
                t.dead,
                t.next_timer()
            )
        };
        let mut text = format!("now {} daemon {:?}\n", self.now, self.daemon);
        for side in Side::BOTH {
            text += &format!("{side:?} end   {}\n", tcp(&self.ends[side]));
            if let Some(local) = &self.locals[side] {
                text += &format!("{side:?} local {}\n", tcp(local));
            }
            text += &format!("{side:?} record {:?}\n", self.flow.record(side));
            text += &format!("{side:?} leg {:?}\n", self.flow.leg(side));
        }
        text += &format!("mode {:?} flags {}\n", self.flow.slot.mode, self.flow.slot.flags);
        text
    }
}

impl World {
    /// Makes both ends probe the other one: an idle one would not hear of a reset that was lost.
    pub fn probe(&mut self) {
        for side in Side::BOTH {
            let mut out = Vec::new();
            self.ends[side].keepalive(self.now, &mut out);
            self.end_says(side, out);
            let mut out = Vec::new();
            if let Some(local) = &mut self.locals[side] {
                local.keepalive(self.now, &mut out);
            }
            self.local_says(side, out);
        }
    }

    /// Adds up the counts of the sockets.
    pub fn collect(&mut self) {
        let calm = self.scenario.is_calm();
        let sockets: Vec<_> = self
            .ends
            .iter()
            .chain(self.locals.iter().flatten())
            .cloned()
            .collect();
        for (i, t) in sockets.iter().enumerate() {
            let end = i < 2;
            self.stats.add_n("timeouts", t.timeouts.into());
            if calm {
                self.stats.add_n(
                    if end {
                        "calm: timeouts of ends"
                    } else {
                        "calm: timeouts of sockets"
                    },
                    t.timeouts.into(),
                );
                self.stats.add_n(
                    if end {
                        "calm: beyond the window of ends"
                    } else {
                        "calm: beyond the window of sockets"
                    },
                    t.beyond_window.into(),
                );
                self.stats.add_n("calm: too old", t.too_old.into());
                self.stats.add_n("calm: SACK refused", t.sack_refused.into());
            }
        }
    }
}
