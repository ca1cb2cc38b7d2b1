//! Couples the windows of a flow before it is spliced (papers' section III-E): offers its ends less, and lets a drain
//! wait.

use std::io;

use longsplice_core::{
    coupling::{self, Coupling, DirectionProgress, LegProgress},
    limit::RateLimit,
    seq::Seq,
};
use longsplice_dataplane::{LegState, PerSide, Side};
use longsplice_repair::{TcpInfo, unread};
use tokio::time::Instant;

use super::{Flow, micros};
use crate::relay::pump::Pump;

/// Window of an end, in bytes, below which it is nearly closed: the end may stop at any moment.
const NEARLY_CLOSED: i32 = 128 << 10;

/// Records that an end is offered less than before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Notice {
    /// Highest TSval that was sent to it with the old edge.
    tsval: u32,
    /// End of its stream at that time.
    sent: Seq,
}

impl Flow {
    /// Begins to couple the windows (papers' section III-E).
    pub(crate) fn start_coupling(&mut self, infos: &PerSide<TcpInfo>, limit: RateLimit) {
        self.limits = PerSide::new(limit.client, limit.server);
        self.set_rooms(infos);
        let states = PerSide::from_fn(|side| self.leg(side));
        self.slot().set_coupling(true);
        self.notices = PerSide::from_fn(|side| {
            let (x, o) = (&states[side], &states[side.other()]);
            let allowed = o.rx_edge + o.ack_off;
            if x.fin || x.tx_edge - allowed <= 0 {
                return None;
            }
            // Segments with a later TSval were sent with the new edge; this is the first one.
            let mut now = self.leg(side);
            let tsval = now.ts_sent;
            self.slot().set_echo(side, tsval);
            now.ts_sent = tsval.wrapping_add(1);
            self.announce_one(side, &now);
            Some(Notice {
                tsval,
                sent: x.rx_end,
            })
        });
    }

    /// Returns true if no end was last offered less than its socket takes.
    pub(crate) fn is_told(&self) -> bool {
        Side::BOTH.iter().all(|&side| !is_offered_less(&self.leg(side)))
    }

    /// Stops a coupling, and announces the whole window to ends that were offered less than their sockets take. An end
    /// whose window was closed would probe for it, ever more rarely.
    pub(crate) fn stop_coupling(&self) {
        self.slot().set_coupling(false);
        for side in Side::BOTH {
            let x = self.leg(side);
            if is_offered_less(&x) {
                self.announce_one(side, &x);
            }
        }
    }

    /// Sets how much each end may have in flight, from the congestion window of our socket toward the other end.
    fn set_rooms(&self, infos: &PerSide<TcpInfo>) {
        for side in Side::BOTH {
            let (x, o) = (&infos[side], &infos[side.other()]);
            let rtt_x = micros(x.min_rtt_us().unwrap_or_else(|| x.rtt_us()));
            let rtt_o = micros(o.rtt_us());
            let room = coupling::room(o.snd_cwnd(), o.snd_mss(), rtt_x, rtt_o);
            let limit = self.limits[side].map(|rate| coupling::limited_room(rate, rtt_x, rtt_o));
            self.slot()
                .set_max_inflight(side, limit.map_or(room, |limit| limit.min(room)));
        }
    }

    /// Returns the obstacle that the drain still has to wait for. Also follows the congestion windows, and announces
    /// windows that peers would not learn of otherwise.
    pub(crate) fn coupling_obstacle(
        &self,
        pump: &Pump,
        infos: &PerSide<TcpInfo>,
        since: Instant,
        rates: PerSide<u64>,
    ) -> io::Result<Option<coupling::Obstacle>> {
        self.set_rooms(infos);
        let states = PerSide::from_fn(|side| self.leg(side));
        let directions = PerSide::try_from_fn(|side| {
            let (x, o) = (side, side.other());
            let (from, to) = (&states[x], &states[o]);
            // An end that has sent its last byte uses no window.
            let offered = if pump.passed_eof(x) {
                from.rx_end
            } else {
                from.tx_edge
            };
            Ok::<_, io::Error>(DirectionProgress {
                offered,
                sent: from.rx_end,
                far_edge: to.rx_edge,
                offset: from.seq_off,
                notice: self.notice(x, from),
                backlog: u64::from(unread(pump.socket(x))?)
                    + pump.held(x) as u64
                    + u64::from(infos[o].notsent_bytes()),
                rate: rates[x],
            })
        })?;
        let legs = infos.as_ref().map(|i| LegProgress {
            rtt: micros(i.rtt_us()),
            base_rtt: micros(i.min_rtt_us().unwrap_or_else(|| i.rtt_us())),
            rto: micros(i.rto_us()),
            recovering: i.ca_state().is_recovering(),
        });
        let coupling = Coupling {
            elapsed: since.elapsed(),
            legs,
            directions,
        };
        let obstacle = coupling::obstacle(&coupling);
        // The local socket believes that its peer knows of a larger window, so it would not tell a waiting peer.
        if obstacle.is_some() {
            self.announce_windows(&states, NEARLY_CLOSED);
        }
        Ok(obstacle)
    }

    fn notice(&self, side: Side, state: &LegState) -> coupling::Notice {
        match self.notices[side] {
            None => coupling::Notice::Heard,
            Some(n) if self.timestamps && (state.peer_echo.wrapping_sub(n.tsval) as i32) > 0 => {
                coupling::Notice::Heard
            }
            Some(n) if n.sent != state.rx_end => coupling::Notice::Busy,
            Some(_) => coupling::Notice::Quiet,
        }
    }

    /// Announces a window to an end that was offered more than the far end takes now, and to one that may send on, by
    /// more than `worth`, while its window is nearly closed. Skips an end that has sent its FIN: it sends no more, and
    /// may be gone and answer with a reset.
    pub(super) fn announce_windows(&self, states: &PerSide<LegState>, worth: i32) {
        for side in Side::BOTH {
            let (x, o) = (&states[side], &states[side.other()]);
            let allowed = o.rx_edge + o.ack_off;
            let behind = allowed - x.tx_edge;
            let open = x.tx_edge - x.rx_end;
            // Announce half of a small window, too (RFC 9293 section 3.8.6.2.2).
            let worth = worth.min((o.rx_edge - o.rx_ack) / 2);
            if !x.fin && (behind < 0 || (behind > worth.max(open) && open < NEARLY_CLOSED)) {
                self.announce_one(side, x);
            }
        }
    }

    fn announce_one(&self, side: Side, state: &LegState) {
        let announcer = &self.kernel.announcer;
        if let Err(error) = announcer.announce(self.legs[side], state, self.timestamps, self.marked[side]) {
            tracing::debug!(%error, "cannot announce what was acknowledged and offered");
        }
    }

    /// Announces the current acknowledgement to both ends.
    pub(crate) fn announce(&self) {
        for side in Side::BOTH {
            self.announce_one(side, &self.leg(side));
        }
    }
}

/// Returns true if an end that may still send was last offered less than its socket takes.
fn is_offered_less(x: &LegState) -> bool {
    !x.fin && x.loc_latest - x.tx_edge > 0
}
