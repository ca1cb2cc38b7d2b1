//! A flow's way into and through its drain: what its sockets have is noted, and delivered to the last byte.

use std::{io, time::Duration};

use longsplice_core::{
    drain::{self, DirectionSnapshot},
    seq::{Offset, Seq},
};
use longsplice_dataplane::{Mode, Side};
use longsplice_repair::{options, tcp_info, unacknowledged, unread};

use super::Flow;
use crate::{announce::Announcer, legs::has_ended, pump::Pump};

/// How long a packet may take from the programs to its socket: to another processor that is busy, mostly.
const LATE: Duration = Duration::from_micros(500);

/// How far a drain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Some old byte is not yet acknowledged by the far end.
    Draining,
    /// All are, but a socket could not be woken where the segments stopped.
    Drained,
    /// All are, and the sockets can be parked.
    Parkable,
}

impl Flow {
    /// Whether its sockets are known to have nothing but what the kernel half knows of, as far as one look can tell. One that
    /// came back was watched all the time.
    pub(crate) fn note_streams(&self, pump: &Pump) -> bool {
        // Of one whose connection has ended the pump is about to say so.
        self.drained || self.note_sockets(pump).unwrap_or(false)
    }

    /// What came to a socket while nobody watched, or is between the programs and the socket, was not noted. False if it
    /// holds something out of order; an error of kind `NotFound` if a connection has ended.
    fn note_sockets(&self, pump: &Pump) -> io::Result<bool> {
        let mut peeks = self.plane.peek_both(self.legs)?;
        let mut ended = [false; 2];
        for side in Side::BOTH {
            let (x, peek) = (self.leg(side), &mut peeks[side.index()]);
            let beyond = peek.rcv_nxt.wrapping_sub(x.mapping.seq.wrapping_add(x.end())) as i32 > 0;
            // A FIN is none of the payload. In the numbers after the look at the state it is counted for sure.
            let unseen = !x.fin && beyond && tcp_info(pump.socket(side)).is_ok_and(|i| has_ended(&i));
            ended[side.index()] = x.fin || unseen;
            if unseen {
                *peek = self.plane.peek(self.legs[side.index()])?;
            }
        }
        for side in Side::BOTH {
            self.slot()
                .note_socket(side, &peeks[side.index()], ended[side.index()]);
        }
        Ok(peeks.iter().all(|p| !p.out_of_order))
    }

    /// Notes what a socket may have sent after it was asked and before its flow was registered: what its peer echoes of that is
    /// nobody's guess, and says nothing of what it was told later.
    pub(crate) fn note_clocks(&self, pump: &Pump) {
        if !self.timestamps {
            return;
        }
        for side in Side::BOTH {
            // It was asked a moment ago; if it cannot be now, its connection has ended.
            if let Ok(latest) = options::latest_timestamp(pump.socket(side)) {
                self.slot().note_sent(side, latest);
            }
        }
    }

    /// Notes what was between the programs and a socket when the flow was registered: in the queue of another processor, in the
    /// socket's backlog. It comes to the socket after everything else was noted, and a socket that is parked without our knowing of
    /// it would wake with it, in the place of what passed meanwhile.
    pub(crate) fn note_latecomers(&mut self, pump: &Pump) {
        let is_due = self.unnoted_since.is_some_and(|since| since.elapsed() >= LATE);
        if !is_due {
            return;
        }
        // What is not found has ended in order, as the pump would have said otherwise: both streams are here.
        let noted = self.note_sockets(pump);
        if noted.unwrap_or_else(|e| e.kind() == io::ErrorKind::NotFound) {
            self.unnoted_since = None;
        }
    }

    /// Whether its sockets are known to have nothing but what the kernel half knows of.
    pub(crate) fn all_noted(&self) -> bool {
        self.unnoted_since.is_none()
    }

    /// Goes from Track to Drain, after [`Self::note_streams`]: new segments pass from now on. False if something else happened to the slot.
    pub(crate) fn start_drain(&mut self, pump: &Pump, announcer: &Announcer) -> io::Result<bool> {
        if self.timestamps {
            let mut offsets = [0; 2];
            for side in Side::BOTH {
                let clock = options::timestamp_clock(pump.socket(side.other()))?;
                // A socket that was spliced before may be behind what its peer was sent meanwhile.
                let sent = self.leg(side.other()).ts_sent;
                let now = if (sent.wrapping_sub(clock) as i32) > 0 {
                    sent
                } else {
                    clock
                };
                offsets[side.index()] = match self.one_clock {
                    true => 0,
                    false => now.wrapping_sub(self.leg(side).peer_ts),
                };
            }
            self.slot().set_timestamp_offsets(offsets);
        }
        self.drained = true;
        let started = self.slot().switch(Mode::Track, Mode::Drain);
        // Whoever waits for a window that the coupling kept back hears of it now: the far end, which has granted it
        // already, may have nothing more to say.
        self.announce_windows(announcer, &Side::BOTH.map(|side| self.leg(side)), 0);
        Ok(started)
    }

    /// How far the drain is, for cuts that were read before the pump's last step. `at_trap` says whose budget is used up,
    /// where there are traps: then the kernel half is told in which directions the local sockets have nothing left, so that
    /// it may wake them.
    pub(crate) fn drain_progress(
        &self,
        pump: &Pump,
        cuts: [u32; 2],
        at_trap: Option<[bool; 2]>,
    ) -> io::Result<Progress> {
        let states = Side::BOTH.map(|side| self.leg(side));
        let mut snapshots = Vec::with_capacity(2);
        for side in Side::BOTH {
            let (x, o) = (&states[side.index()], &states[side.other().index()]);
            let cut = cuts[side.index()];
            let copied = self.copied(side, pump);
            let send_queue = unacknowledged(pump.socket(side.other()))?;
            let mut acknowledged = Seq::new(o.rx_ack);
            // An acknowledgement that went by the programs before the flow was registered is not in the record; the socket
            // has it. What it had sent by then is acknowledged where it has nothing left.
            if send_queue == 0 && !acknowledged.after(Seq::new(o.loc_end)) {
                self.slot().note_acknowledged(side.other(), o.loc_end);
                acknowledged = Seq::new(o.loc_end);
            }
            let mut snapshot = DirectionSnapshot {
                held: pump.held(side) as u64,
                unread: 0,
                copied: Seq::new(copied),
                cut: Seq::new(cut),
                acknowledged,
                offset: Offset::new(x.seq_off),
                send_queue,
            };
            // Asked only where it decides: what is not acknowledged is not through, whatever is unread.
            if drain::drained(&snapshot) {
                snapshot.unread = unread(pump.socket(side))?;
            }
            // At its limit the pump will pass on no more, whatever there is.
            let passed_on = copied == cut || (pump.stopped(side) && at_trap.is_some_and(|t| t[side.index()]));
            if at_trap.is_some()
                && self.all_noted()
                && passed_on
                && snapshot.held == 0
                && snapshot.send_queue == 0
            {
                self.slot().set_read_to(side, cut);
            }
            snapshots.push(snapshot);
        }
        let passed_all_ends = Side::BOTH.iter().all(|&s| pump.eof(s) == pump.passed_eof(s));
        Ok(match () {
            () if !passed_all_ends || !snapshots.iter().all(drain::drained) => Progress::Draining,
            () if snapshots.iter().all(drain::parkable) => Progress::Parkable,
            () => Progress::Drained,
        })
    }
}
