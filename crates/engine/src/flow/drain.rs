//! Drains a flow: notes all that its sockets hold, and delivers it to the last byte.

use std::{io, time::Duration};

use longsplice_core::{
    drain::{self, DirectionSnapshot},
    seq::Seq,
};
use longsplice_dataplane::{Mode, PerSide, Side};
use longsplice_repair::{options, tcp_info, unacknowledged, unread};
use tokio::time::Instant;

use super::{Flow, assess::has_ended};
use crate::relay::pump::Pump;

/// Longest time that a packet takes from the programs to its socket; a busy other processor is the usual cause.
const LATE: Duration = Duration::from_micros(500);

/// Progress of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Some old byte is not yet acknowledged by the far end.
    Draining,
    /// All old bytes are acknowledged by what the programs saw, but a socket still holds some.
    Contradicted,
    /// All old bytes are acknowledged, but a socket could not be woken where the segments stopped.
    Drained,
    /// All old bytes are acknowledged, and the sockets can be parked.
    Parkable,
}

impl Flow {
    /// Returns true if the kernel half knows of all that the sockets hold, as far as one look can tell. A flow that came
    /// back was watched all the time.
    pub(crate) fn note_streams(&self, pump: &Pump) -> bool {
        // An error means that a connection has ended, which the pump is about to report.
        self.drained || self.note_sockets(pump).unwrap_or(false)
    }

    /// Notes data that came to a socket before the programs watched it, or is between the programs and the socket.
    /// Returns false if a socket holds something out of order, and an error of kind `NotFound` if a connection has ended.
    fn note_sockets(&self, pump: &Pump) -> io::Result<bool> {
        let mut inspections = self.plane().inspect_both(self.legs)?;
        let mut ended = PerSide::both(false);
        for side in Side::BOTH {
            let (x, inspection) = (self.leg(side), &mut inspections[side]);
            let beyond = inspection.rcv_nxt - (x.end() + x.mapping.seq) > 0;
            // A FIN is not payload. In numbers that are read after the state, it is counted for sure.
            let unseen = !x.fin && beyond && tcp_info(pump.socket(side)).is_ok_and(|i| has_ended(&i));
            ended[side] = x.fin || unseen;
            if unseen {
                *inspection = self.plane().inspect(self.legs[side])?;
            }
        }
        for side in Side::BOTH {
            self.slot().note_socket(side, &inspections[side], ended[side]);
        }
        Ok(inspections.iter().all(|p| !p.out_of_order))
    }

    /// Notes the latest timestamp that a socket may have sent between its assessment and the registration of its flow.
    /// The peer's echo of it is predictable by no other means, and does not show that the peer has heard anything later.
    pub(crate) fn note_clocks(&self, pump: &Pump) {
        if !self.timestamps {
            return;
        }
        for side in Side::BOTH {
            // The assessment has just asked the socket; if it fails now, its connection has ended.
            if let Ok(latest) = options::latest_timestamp(pump.socket(side)) {
                self.slot().note_sent(side, latest);
            }
        }
    }

    /// Notes packets that were between the programs and a socket when the flow was registered: in the queue of another
    /// processor, or in the socket's backlog. Such a packet comes to the socket after everything else was noted. If the
    /// socket were parked without our knowing of it, it would later wake with these bytes instead of those that passed
    /// meanwhile.
    pub(crate) fn note_latecomers(&mut self, pump: &Pump) {
        if self.notes_latecomers_at().is_none_or(|at| Instant::now() < at) {
            return;
        }
        // A socket that is not found has ended in order, since the pump would have reported an error: both streams are
        // here.
        let noted = self.note_sockets(pump);
        if noted.unwrap_or_else(|e| e.kind() == io::ErrorKind::NotFound) {
            self.unnoted_since = None;
        }
    }

    /// Returns the time from which on [`Self::note_latecomers`] notes packets; `None`: all are noted.
    pub(crate) fn notes_latecomers_at(&self) -> Option<Instant> {
        self.unnoted_since.map(|since| Instant::from_std(since) + LATE)
    }

    /// Returns true if the kernel half knows of all that the sockets hold.
    pub(crate) fn all_noted(&self) -> bool {
        self.unnoted_since.is_none()
    }

    /// Switches from Track to Drain, after [`Self::note_streams`]: new segments pass from now on. Returns false if the
    /// slot has changed otherwise.
    pub(crate) fn start_drain(&mut self, pump: &Pump) -> io::Result<bool> {
        if self.timestamps {
            let mut offsets = PerSide::both(0);
            for side in Side::BOTH {
                let clock = options::timestamp_clock(pump.socket(side.other()))?;
                // A socket that was spliced before may be behind the timestamps that its peer was sent meanwhile.
                let sent = self.leg(side.other()).ts_sent;
                let now = if (sent.wrapping_sub(clock) as i32) > 0 {
                    sent
                } else {
                    clock
                };
                offsets[side] = match self.one_clock {
                    true => 0,
                    false => now.wrapping_sub(self.leg(side).peer_ts),
                };
            }
            self.slot().set_timestamp_offsets(offsets);
        }
        self.drained = true;
        let started = self.slot().transition(Mode::Track, Mode::Drain);
        // Announce the windows that the coupling kept back: the far end, which has granted them already, may send nothing
        // more.
        self.announce_windows(&PerSide::from_fn(|side| self.leg(side)), 0);
        Ok(started)
    }

    /// Returns the progress of the drain, for cuts that were read before the pump's last step. With traps, `at_trap` says
    /// whose budget is used up. Then the kernel half is told in which directions the local sockets have delivered all, so
    /// that it may wake them.
    pub(crate) fn drain_progress(
        &self,
        pump: &Pump,
        cuts: PerSide<Seq>,
        at_trap: Option<PerSide<bool>>,
    ) -> io::Result<Progress> {
        let states = PerSide::from_fn(|side| self.leg(side));
        let mut snapshots = Vec::with_capacity(2);
        for side in Side::BOTH {
            let (x, o) = (&states[side], &states[side.other()]);
            let cut = cuts[side];
            let copied = self.copied(side, pump);
            // A segment that was late between the programs and its socket is in no record. The socket has acknowledged it.
            if copied.at_or_after(cut) && x.end().before(copied) {
                self.slot().note_received(side, copied, pump.eof(side));
            }
            let send_queue = unacknowledged(pump.socket(side.other()))?;
            let mut acknowledged = o.rx_ack;
            // An acknowledgement that passed the programs before the flow was registered is not in the record, but the
            // socket has it. If the socket's send queue is empty, all that it had sent by then is acknowledged.
            // A packet may have woken the flow since `o` was read: then its end is beyond bytes that bypassed the socket.
            if send_queue == 0
                && !acknowledged.after(o.loc_end)
                && self.slot().note_acknowledged(side.other(), o.loc_end)
            {
                acknowledged = o.loc_end;
            }
            let mut snapshot = DirectionSnapshot {
                held: pump.held(side) as u64,
                unread: 0,
                copied,
                cut,
                acknowledged,
                offset: x.seq_off,
                send_queue,
            };
            // Ask only if it decides: with unacknowledged bytes the drain goes on, whatever is unread.
            if drain::acknowledged(&snapshot) {
                snapshot.unread = unread(pump.socket(side))?;
            }
            // At its limit the pump passes on no more, whatever there is.
            let passed_on = copied == cut || (pump.stopped(side) && at_trap.is_some_and(|t| t[side]));
            if at_trap.is_some()
                && self.all_noted()
                && passed_on
                && snapshot.held == 0
                && snapshot.send_queue == 0
            {
                self.slot().set_delivered(side, cut);
            }
            snapshots.push(snapshot);
        }
        let passed_all_ends = Side::BOTH.iter().all(|&s| pump.eof(s) == pump.passed_eof(s));
        Ok(match () {
            () if snapshots.iter().any(drain::contradicted) => Progress::Contradicted,
            () if !passed_all_ends || !snapshots.iter().all(drain::drained) => Progress::Draining,
            () if snapshots.iter().all(drain::parkable) => Progress::Parkable,
            () => Progress::Drained,
        })
    }

    /// Makes the programs forget acknowledgements that the sockets did not take. The ends' real acknowledgements then
    /// come to the sockets again, and end the drain. Returns true if there were any.
    ///
    /// The acknowledgement of a FIN is believed from an end that is through: the FIN passed the socket by, too, and the end
    /// has closed, and answers the socket's own with a reset. If more than that is lacking, such an answer will end the
    /// drain.
    pub(crate) fn believe_sockets(&mut self) -> bool {
        let states = PerSide::from_fn(|side| self.leg(side));
        let mut disbelieved = false;
        for side in Side::BOTH {
            let x = &states[side];
            // A socket that is not found has ended its connection, which the pump reports.
            let Ok(inspection) = self.plane().inspect(self.legs[side]) else {
                continue;
            };
            let una = inspection.snd_una - x.mapping.ack;
            let lacking = x.loc_end - una;
            let is_through = self.is_through(&states, side);
            if lacking > i32::from(is_through) {
                self.through[side] = is_through;
                self.slot().disbelieve(side, una);
                disbelieved = true;
            }
        }
        disbelieved
    }
}
