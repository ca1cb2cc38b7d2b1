//! Takes released connections over again whose path begins to lose segments: each loss is then repaired on its own leg.
//!
//! The kernel half counts the segments out of order of detached flows. Here they are compared with what has passed. A
//! connection that was taken over again for its losses stays so until its room is needed, or until a command.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use longsplice_engine::{Distance, FlowId, LOSS_SEGMENTS, LOSSY, PerSide};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Accelerator, admission::Place, all_open, counts::AgainReason};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Number of segments for one judgement, as for the advisor.
const SEGMENTS: u64 = LOSS_SEGMENTS as u64;

/// Bytes of a usual segment.
const SEGMENT: u64 = 1_400;

/// Segments out of order that one loss causes, at most: the first one behind the gap, and the repeated one.
const PER_LOSS: u64 = 2;

/// Number of judgements in a row that must find losses.
const IN_A_ROW: u32 = 2;

/// Largest number of times that one connection is taken over for its losses.
const MOST_TIMES: u32 = 3;

/// Time after its first release before which a connection is not taken over again; twice as long after each further one.
const REST: Duration = Duration::from_secs(5);

/// Largest number of released connections that are watched; some 150 bytes each.
const MOST: usize = 16_384;

/// Addresses of a connection's ends: the client, the server.
type Ends = (SocketAddr, SocketAddr);

/// A released connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Released {
    pub(super) ends: Ends,
    pub(super) class: usize,
    /// Side of the client; `None`: unknown.
    pub(super) client: Option<Place>,
    pub(super) round_trips: PerSide<Option<Duration>>,
    /// Number of times that it was taken over for its losses.
    pub(super) times: u32,
}

/// Watches the losses of a released connection.
#[derive(Debug)]
struct Watched {
    released: Released,
    since: Instant,
    losses: Losses,
}

/// Judges the losses of a connection by the segments out of order among what has passed.
#[derive(Debug, Default)]
struct Losses {
    /// Segments out of order, and bytes, at the last judgement.
    last: Option<(u32, u64)>,
    in_a_row: u32,
}

impl Losses {
    /// Takes the present counts. Returns true if the path is lossy.
    fn look(&mut self, out_of_order: u32, bytes: u64) -> bool {
        let Some((last_out_of_order, last_bytes)) = self.last else {
            self.last = Some((out_of_order, bytes));
            return false;
        };
        let segments = bytes.saturating_sub(last_bytes) / SEGMENT;
        if segments < SEGMENTS {
            return false;
        }
        self.last = Some((out_of_order, bytes));
        let new = u64::from(out_of_order.wrapping_sub(last_out_of_order));
        self.in_a_row = match new >= PER_LOSS && new * LOSSY >= segments * PER_LOSS {
            true => self.in_a_row + 1,
            false => 0,
        };
        self.in_a_row >= IN_A_ROW
    }
}

/// Released connections, by flow.
#[derive(Debug, Default)]
pub(super) struct ReleasedTable(HashMap<FlowId, Watched>);

impl ReleasedTable {
    fn insert(&mut self, id: FlowId, released: Released) {
        let watched = Watched {
            released,
            since: Instant::now(),
            losses: Losses::default(),
        };
        self.0.insert(id, watched);
    }

    /// Takes back that a connection was taken over for its losses. It rests before the next attempt, all the same.
    fn stays_released(&mut self, id: FlowId, released: Released) {
        if let Some(watched) = self.0.get_mut(&id) {
            watched.released = released;
        }
    }

    /// Watches a connection that was just released. One that finds no room stays released.
    fn watch(&mut self, id: FlowId, released: Released) {
        if self.0.len() < MOST {
            self.insert(id, released);
        }
    }

    /// Forgets connections that have ended, if there is no room for a further one. Each of them is looked up, so this leaves
    /// the table to others meanwhile.
    fn forget_ended(table: &Mutex<ReleasedTable>, is_there: impl Fn(FlowId, Ends) -> bool) {
        let began = Instant::now();
        let all: Vec<(FlowId, Ends)> = {
            let table = table.lock();
            if table.0.len() < MOST {
                return;
            }
            let ends = |(id, watched): (&FlowId, &Watched)| (*id, watched.released.ends);
            table.0.iter().map(ends).collect()
        };
        let ended = all.into_iter().filter(|(id, ends)| !is_there(*id, *ends));
        let ended: HashSet<FlowId> = ended.map(|(id, _)| id).collect();
        let stays = |id: &FlowId, watched: &mut Watched| watched.since > began || !ended.contains(id);
        table.lock().0.retain(stays);
    }

    pub(super) fn remove(&mut self, id: FlowId) {
        self.0.remove(&id);
    }

    /// Returns what is known of a released connection.
    pub(super) fn get(&self, id: FlowId) -> Option<Released> {
        self.0.get(&id).map(|watched| watched.released)
    }
}

impl Accelerator {
    /// Watches a connection that was just released.
    pub(super) fn watch(&self, id: FlowId, released: Released) {
        self.released.lock().watch(id, released);
    }

    /// Returns whether a released connection runs on without sockets.
    fn is_released(&self, id: FlowId, (client, server): Ends) -> bool {
        let flow = self.splicer().transparent_flow(client, server);
        flow.is_some_and(|flow| flow.id == id)
    }

    /// Looks after released connections until the process ends.
    pub(super) async fn watch_losses(self: Arc<Self>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if self.closing.load(Ordering::Relaxed) {
                return;
            }
            self.notrack.look();
            ReleasedTable::forget_ended(&self.released, |id, ends| self.is_released(id, ends));
            for (id, released) in self.lossy() {
                self.take_over_again(id, released).await;
            }
        }
    }

    /// Returns the released connections that are to be taken over for their losses.
    fn lossy(&self) -> Vec<(FlowId, Released)> {
        let disorders = match self.splicer().disorders() {
            Ok(disorders) => disorders,
            Err(error) => {
                tracing::debug!(%error, "losses of released connections are not seen");
                return Vec::new();
            }
        };
        let mut table = self.released.lock();
        let mut lossy = Vec::new();
        for (id, out_of_order) in disorders {
            let Some(watched) = table.0.get_mut(&id) else {
                continue;
            };
            let (client, server) = watched.released.ends;
            let flow = self.splicer().transparent_flow(client, server);
            let Some(flow) = flow.filter(|flow| flow.id == id) else {
                continue;
            };
            let sum = out_of_order.client.wrapping_add(out_of_order.server);
            let bytes = flow.to_server.bytes + flow.to_client.bytes;
            let rest = REST * 2_u32.pow(watched.released.times.min(MOST_TIMES));
            let is_due = watched.since.elapsed() >= rest && watched.released.times < MOST_TIMES;
            if watched.losses.look(sum, bytes) && is_due && self.gains_by_repair(&watched.released) {
                lossy.push((id, watched.released));
            }
        }
        lossy
    }

    /// Returns whether losses of a connection are repaired faster on one of its legs than over both.
    fn gains_by_repair(&self, released: &Released) -> bool {
        let (Some(client), Some(server)) = (released.round_trips.client, released.round_trips.server) else {
            return true;
        };
        self.config.has_congestion_control()
            || self.config.thresholds().judge(client, server) != Distance::OneLeg
    }

    /// Takes a connection over for its losses, if there is room for it.
    async fn take_over_again(self: &Arc<Self>, id: FlowId, released: Released) {
        let is_full = self.carried.lock().len() >= self.config.max_connections as usize;
        let all = all_open(&self.shared, Some(self));
        if is_full || !self.shared.memory.admits_taken_over(all) {
            return;
        }
        let (client, server) = released.ends;
        let taken = Released {
            times: released.times + 1,
            ..released
        };
        // The task that still carries it learns the number of times from here.
        self.released.lock().insert(id, taken);
        let returned = match self.splicer().request_unsplice(id).await {
            Ok(returned) => returned,
            Err(error) => {
                self.released.lock().stays_released(id, released);
                return tracing::debug!(flow = %id, %error, "lossy, and not taken over again");
            }
        };
        let now = std::time::Instant::now();
        self.distances.lock().note_lossy([client.ip(), server.ip()], now);
        if let Some(returned) = returned {
            self.resume(returned, AgainReason::Losses);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const WINDOW: u64 = SEGMENTS * SEGMENT;

    fn released() -> Released {
        Released {
            ends: ("198.18.1.1:1".parse().unwrap(), "198.18.2.1:2".parse().unwrap()),
            class: 0,
            client: None,
            round_trips: PerSide::both(None),
            times: 0,
        }
    }

    /// Each look-up is a system call, and each release would make 16,384 of them.
    #[test]
    fn a_full_table_is_looked_through_once_a_look_and_stays_open_to_others() {
        let table = Mutex::new(ReleasedTable::default());
        let look_ups = Cell::new(0);
        let look = |is_there: fn(FlowId) -> bool| {
            ReleasedTable::forget_ended(&table, |id, _| {
                look_ups.set(look_ups.get() + 1);
                assert!(table.try_lock().is_some(), "a release waits");
                is_there(id)
            });
        };
        let add = |id| table.lock().watch(FlowId(id), released());
        let most = MOST as u32;
        (0..most - 1).for_each(add);
        look(|_| false);
        add(most - 1);
        add(most);
        assert_eq!(look_ups.get(), 0);
        assert!(table.lock().get(FlowId(most)).is_none(), "there is no room");
        look(|id| id.0 != 7);
        assert_eq!(look_ups.get(), MOST);
        add(most);
        let is_known = |id| table.lock().get(FlowId(id)).is_some();
        assert_eq!([6, 7, most].map(is_known), [true, false, true]);
    }

    #[test]
    fn an_attempt_that_fails_is_none_of_the_three() {
        let mut table = ReleasedTable::default();
        let before = released();
        table.insert(FlowId(1), Released { times: 1, ..before });
        table.stays_released(FlowId(1), before);
        assert_eq!(table.get(FlowId(1)).unwrap().times, 0);
        // It has ended meanwhile.
        table.stays_released(FlowId(2), before);
        assert!(table.get(FlowId(2)).is_none());
    }

    #[test]
    fn two_lossy_windows_in_a_row_are_a_lossy_path() {
        let mut losses = Losses::default();
        assert!(!losses.look(1_000, 0), "no judgement without a beginning");
        assert!(!losses.look(1_002, WINDOW));
        assert!(!losses.look(1_004, WINDOW * 3 / 2), "too little has passed");
        assert!(losses.look(1_004, WINDOW * 2));
    }

    #[test]
    fn a_single_burst_is_no_lossy_path() {
        let mut losses = Losses::default();
        losses.look(0, 0);
        assert!(!losses.look(50, WINDOW));
        assert!(!losses.look(50, 2 * WINDOW));
        assert!(!losses.look(60, 3 * WINDOW));
        assert!(losses.look(62, 4 * WINDOW));
    }

    #[test]
    fn one_loss_in_a_thousand_segments_is_not_worth_it() {
        let mut losses = Losses::default();
        losses.look(u32::MAX, 0);
        for n in 1..10 {
            let out_of_order = u32::MAX.wrapping_add(2 * n);
            assert!(!losses.look(out_of_order, u64::from(n) * 1_000 * SEGMENT), "{n}");
        }
    }
}
