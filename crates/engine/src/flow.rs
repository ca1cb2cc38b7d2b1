//! A registered flow that still has its sockets, between relay and detached.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use longsplice_core::{
    coupling::{self, Coupling, DirectionProgress, LegProgress},
    drain::{self, DirectionSnapshot},
    reason::RelayReason,
    seq::{Offset, Seq},
};
use longsplice_dataplane::{Dataplane, Direction, Leg, LegState, Mode, Side, Slot};
use longsplice_repair::{TcpInfo, close_silently, options, tcp_info, unacknowledged, unread, unsent};
use tokio::{net::TcpStream, time::Instant};

use crate::{
    announce::Announcer,
    legs::{Assessment, Refusal},
    pump::Pump,
};

/// With less than this, in bytes, an end's window is nearly closed: it may stop any moment.
const NEARLY_CLOSED: i32 = 128 << 10;

/// A flow in the kernel half's table, with a slot.
#[derive(Debug)]
pub(crate) struct Flow {
    plane: Arc<Dataplane>,
    slot: Option<Slot>,
    legs: [Leg; 2],
    timestamps: bool,
    interfaces: [u32; 2],
    /// `copied_seq` of each socket less what the pump had consumed then: what the pump consumes later is added.
    copied_base: [u32; 2],
    /// Nobody has this flow's records to themselves any more: they stay when it is dropped.
    released: bool,
}

impl Flow {
    /// Registers the pair: from then on its packets are noted. `pump` must not move between the assessment and this.
    pub(crate) fn register(
        plane: &Arc<Dataplane>,
        assessment: &Assessment,
        pump: &Pump,
        serial: u32,
    ) -> Result<Flow, Refusal> {
        let slot = plane
            .take_slot()
            .filter(|_| plane.flow_count() < plane.max_flows());
        let slot = slot.ok_or_else(|| Refusal::for_now(RelayReason::TableFull))?;
        plane
            .register(&slot, serial, assessment.plan.timestamps, &assessment.start(pump))
            .map_err(|e| match e.kind() {
                io::ErrorKind::AlreadyExists => Refusal::for_now(RelayReason::NotEstablished),
                io::ErrorKind::Other => Refusal::for_now(RelayReason::TableFull),
                _ => Refusal::system("cannot register a flow", &e),
            })?;
        let copied_base = Side::BOTH.map(|side| {
            assessment.peeks[side.index()]
                .copied_seq
                .wrapping_sub(pump.consumed(side) as u32)
        });
        let flow = Flow {
            plane: plane.clone(),
            slot: Some(slot),
            legs: assessment.legs,
            timestamps: assessment.plan.timestamps,
            interfaces: [assessment.peeks[1].ifindex, assessment.peeks[0].ifindex],
            copied_base,
            released: false,
        };
        // What came between the peek and the registration was not noted.
        for side in Side::BOTH {
            if let Ok(peek) = plane.peek(flow.legs[side.index()]) {
                flow.slot().note_socket(side, &peek);
            }
        }
        Ok(flow)
    }

    fn slot(&self) -> &Slot {
        self.slot
            .as_ref()
            .expect("the slot is taken only when the flow is consumed")
    }

    pub(crate) fn mode(&self) -> Mode {
        self.slot().mode()
    }

    /// What passed, translated, in both directions.
    pub(crate) fn directions(&self) -> [Direction; 2] {
        self.plane.directions(self.slot(), self.legs)
    }

    fn leg(&self, side: Side) -> LegState {
        self.plane.leg(self.slot(), side)
    }

    /// Begins to couple the windows (papers' section III-E).
    pub(crate) fn start_coupling(&self, infos: &[TcpInfo; 2]) {
        self.set_rooms(infos);
        self.slot().set_coupling(true);
    }

    /// How much each end may have under way, from what our socket toward the other end has.
    fn set_rooms(&self, infos: &[TcpInfo; 2]) {
        for side in Side::BOTH {
            let (x, o) = (&infos[side.index()], &infos[side.other().index()]);
            let rtt_x = micros(x.min_rtt_us().unwrap_or_else(|| x.rtt_us()));
            let room = coupling::room(o.snd_cwnd(), o.snd_mss(), rtt_x, micros(o.rtt_us()));
            self.slot().set_room(side, room);
        }
    }

    /// What the drain still has to wait for. Also follows the congestion windows, and has sockets announce a window
    /// that their peers would not hear of otherwise.
    pub(crate) fn coupling_obstacle(
        &self,
        pump: &Pump,
        announcer: &Announcer,
        since: Instant,
        rates: [u64; 2],
    ) -> io::Result<Option<coupling::Obstacle>> {
        let infos = [
            tcp_info(pump.socket(Side::Client))?,
            tcp_info(pump.socket(Side::Server))?,
        ];
        self.set_rooms(&infos);
        let states = Side::BOTH.map(|side| self.leg(side));
        let mut directions = Vec::with_capacity(2);
        for side in Side::BOTH {
            let (x, o) = (side, side.other());
            let (from, to) = (&states[x.index()], &states[o.index()]);
            // An end that has said its last byte uses no window.
            let offered = if pump.passed_eof(x) {
                from.rx_end
            } else {
                from.tx_edge
            };
            directions.push(DirectionProgress {
                offered: Seq::new(offered),
                sent: Seq::new(from.rx_end),
                far_edge: Seq::new(to.rx_edge),
                offset: Offset::new(from.seq_off),
                shrunk: true,
                backlog: u64::from(unread(pump.socket(x))?)
                    + pump.held(x) as u64
                    + u64::from(unsent(pump.socket(o))?),
                rate: rates[x.index()],
            });
        }
        let legs = infos.map(|i| LegProgress {
            rtt: micros(i.rtt_us()),
            rto: micros(i.rto_us()),
            recovering: i.ca_state().is_recovering(),
        });
        let coupling = Coupling {
            elapsed: since.elapsed(),
            legs,
            directions: [directions[0], directions[1]],
        };
        let obstacle = coupling::obstacle(&coupling);
        if obstacle == Some(coupling::Obstacle::Window) {
            self.announce_windows(announcer, &states, NEARLY_CLOSED);
        }
        Ok(obstacle)
    }

    /// An end that was offered more than the far end takes now must be told, and one that may send on, by more than
    /// `worth`, while its window is nearly closed.
    fn announce_windows(&self, announcer: &Announcer, states: &[LegState; 2], worth: i32) {
        for side in Side::BOTH {
            let (x, o) = (&states[side.index()], &states[side.other().index()]);
            let allowed = o.rx_edge.wrapping_add(o.ack_off);
            let behind = allowed.wrapping_sub(x.tx_edge) as i32;
            let open = x.tx_edge.wrapping_sub(x.rx_end) as i32;
            if (behind < 0 || (behind > worth && open < NEARLY_CLOSED))
                && let Err(error) = announcer.announce(self.legs[side.index()], x, self.timestamps)
            {
                tracing::debug!(%error, "cannot announce a window");
            }
        }
    }

    /// Goes from Track to Drain: new segments pass from now on. False if something else happened to the slot.
    pub(crate) fn start_drain(&self, pump: &Pump, announcer: &Announcer) -> io::Result<bool> {
        if self.timestamps {
            let mut offsets = [0; 2];
            for side in Side::BOTH {
                let clock = options::timestamp_clock(pump.socket(side.other()))?;
                offsets[side.index()] = clock.wrapping_sub(self.leg(side).peer_ts);
            }
            self.slot().set_timestamp_offsets(offsets);
        }
        let started = self.slot().switch(Mode::Track, Mode::Drain);
        // Whoever waits for a window that the coupling kept back hears of it now: the far end, which has granted it
        // already, may have nothing more to say.
        self.announce_windows(announcer, &Side::BOTH.map(|side| self.leg(side)), 0);
        Ok(started)
    }

    /// How far the drain is.
    pub(crate) fn drain_progress(&self, pump: &Pump) -> io::Result<Progress> {
        let states = Side::BOTH.map(|side| self.leg(side));
        let mut snapshots = Vec::with_capacity(2);
        for side in Side::BOTH {
            let (x, o) = (&states[side.index()], &states[side.other().index()]);
            let consumed = pump.consumed(side) as u32;
            snapshots.push(DirectionSnapshot {
                held: pump.held(side) as u64,
                unread: unread(pump.socket(side))?,
                copied: Seq::new(self.copied_base[side.index()].wrapping_add(consumed)),
                cut: Seq::new(x.cut),
                acknowledged: Seq::new(o.rx_ack),
                offset: Offset::new(x.seq_off),
                send_queue: unacknowledged(pump.socket(side.other()))?,
            });
        }
        let passed_all_ends = Side::BOTH.iter().all(|&s| pump.eof(s) == pump.passed_eof(s));
        Ok(match () {
            () if !passed_all_ends || !snapshots.iter().all(drain::drained) => Progress::Draining,
            () if snapshots.iter().all(drain::parkable) => Progress::Parkable,
            () => Progress::Drained,
        })
    }

    /// Goes from Drain to Final: the sockets are out of the path.
    pub(crate) fn finish(&self) -> bool {
        self.slot().switch(Mode::Drain, Mode::Final)
    }

    /// Adds to the records what was relayed before.
    pub(crate) fn add_relayed(&self, pump: &Pump) {
        for side in Side::BOTH {
            self.slot().add_bytes(side, pump.bytes(side));
        }
    }

    /// Lets the kernel half's records stand alone, and closes the sockets in silence. What is given back must be kept for
    /// a moment, then be passed to [`Settling::settle`].
    pub(crate) fn detach(mut self, pump: Pump) -> io::Result<Settling> {
        self.released = true;
        let slot = self
            .slot
            .take()
            .expect("the slot is taken only when the flow is consumed");
        let settling = Settling {
            slot,
            legs: self.legs,
            interfaces: self.interfaces,
        };
        match self.plane.release(&settling.slot, self.legs, self.interfaces) {
            // The tuple has a new owner already; the sockets must go all the same.
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::error!(error = %e, "cannot release a flow from its slot");
            }
            _ => {}
        }
        for socket in pump.into_sockets() {
            close_in_silence(socket)?;
        }
        Ok(settling)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if !self.released {
            self.plane.unregister(self.legs);
        }
    }
}

fn close_in_silence(socket: TcpStream) -> io::Result<()> {
    let fd = OwnedFd::from(socket.into_std()?);
    close_silently(fd).map_err(|e| {
        // In mode Final the kernel half drops whatever the socket says at its end.
        tracing::error!(error = %e.source, "cannot close a socket in silence");
        e.source.into()
    })
}

fn micros(us: u32) -> Duration {
    Duration::from_micros(us.into())
}

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

/// A slot that was left, before it may be used again.
#[derive(Debug)]
pub(crate) struct Settling {
    slot: Slot,
    legs: [Leg; 2],
    interfaces: [u32; 2],
}

impl Settling {
    /// Of a flow that a predecessor had.
    pub(crate) fn of_orphan(slot: Slot, legs: [Leg; 2]) -> Settling {
        Settling {
            slot,
            legs,
            interfaces: [0; 2],
        }
    }

    /// Collects what a segment noted in the slot while it was left, and frees it.
    pub(crate) fn settle(self, plane: &Dataplane) {
        let _ = plane.release(&self.slot, self.legs, self.interfaces);
    }
}
