//! Releases connections: all of them at a shutdown, the least useful ones when memory runs short, and one of a lower class
//! when a connection of a higher one finds no room.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use longsplice_engine::{
    FlowHandle, FlowId, FlowInfo, FlowState, PerSide, RequestError, handshake::Step, reason::SpliceReason,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{Accelerator, losses::Released};

/// Time between two attempts to release a connection.
const AGAIN: Duration = Duration::from_millis(50);

/// Divisor for the share of connections that is released at once when memory runs short; at least one is released.
const SHARE: usize = 20;

/// Number of connections that are asked at a time when memory runs short. Each attempt takes some round trips, up to 20 or a
/// second where a reader has stopped.
const AT_ONCE: usize = 64;

/// Time for which a connection that could not be released keeps its room. Each attempt holds its ends up.
const PAUSE: Duration = Duration::from_secs(5);

/// A taken-over connection that a task carries.
#[derive(Debug)]
pub(super) struct Carried {
    handle: FlowHandle,
    /// Class of its ends; the first class is served first.
    class: usize,
    room: Room,
}

/// Says whether a connection was asked for its room.
#[derive(Debug, Clone, Copy)]
enum Room {
    Unasked,
    Asked,
    /// Refusal to release it, at this time.
    Refused(Instant),
}

impl Carried {
    pub(super) fn new(handle: FlowHandle, class: usize) -> Carried {
        let room = Room::Unasked;
        Carried { handle, class, room }
    }

    /// Forgets that it was asked for its room.
    pub(super) fn stay(&mut self) {
        self.room = Room::Unasked;
    }

    /// Returns its flow, if it may be asked for its room.
    fn may_be_asked(&self) -> Option<FlowId> {
        let may = match self.room {
            Room::Unasked => true,
            Room::Asked => false,
            Room::Refused(at) => at.elapsed() >= PAUSE,
        };
        self.handle.id().filter(|_| may)
    }
}

impl Accelerator {
    /// Returns the class of a connection: the first one that has an end of it. Others are behind all classes.
    pub(super) fn class_of(&self, step: &Step) -> usize {
        let classes = &self.config.classes;
        let ends = [step.client.ip(), step.server.ip()];
        let has_end = |class: &crate::config::AccelerateClass| {
            class
                .networks
                .iter()
                .any(|network| ends.iter().any(|end| network.contains(*end)))
        };
        classes.iter().position(has_end).unwrap_or(classes.len())
    }

    /// Counts a release, and watches the connection from now on.
    pub(super) fn note_release(&self, handle: &FlowHandle, released: &mut Released) {
        self.counts.released(handle.reason());
        let known = handle.round_trips();
        released.round_trips = PerSide::from_fn(|side| known[side].or(released.round_trips[side]));
        // The losses of a full queue are no reason to take it over again.
        let is_watched = handle.reason() != Some(SpliceReason::StandingQueue);
        if let Some(id) = handle.id().filter(|_| is_watched) {
            self.watch(id, *released);
        }
    }

    /// Returns the number of connections that have sockets here.
    pub(super) fn held(&self) -> usize {
        self.carried.lock().len() + self.unconfirmed.load(Ordering::Relaxed) + self.early.connecting()
    }

    /// Makes room for a connection of a class: releases the oldest connection of the last class, if that is behind this
    /// one; the next one, if that cannot be released. Returns false if there is none.
    pub(super) fn make_room(self: &Arc<Self>, class: usize) -> bool {
        let mut asked = self.ask_last_behind(class);
        let found = asked.is_some();
        let (accelerator, began) = (Arc::clone(self), Instant::now());
        let release = async move {
            while let Some((number, id)) = asked {
                if accelerator.gives_room(number, id).await {
                    return;
                }
                // Ask none a second time.
                let may_go_on = began.elapsed() < PAUSE;
                asked = may_go_on.then(|| accelerator.ask_last_behind(class)).flatten();
            }
        };
        if found {
            tokio::spawn(release);
        }
        found
    }

    /// Returns whether a connection could be asked to make room for one of a class.
    pub(super) fn can_make_room(&self, class: usize) -> bool {
        let carried = self.carried.lock();
        carried
            .values()
            .any(|c| c.class > class && c.may_be_asked().is_some())
    }

    /// Marks the oldest connection of the last class behind this one as asked for its room.
    fn ask_last_behind(&self, class: usize) -> Option<(u64, FlowId)> {
        let mut carried = self.carried.lock();
        let behind = carried.iter_mut().filter(|(_, c)| c.class > class);
        let (number, id, last) = behind
            .filter_map(|(number, c)| Some((*number, c.may_be_asked()?, c)))
            .max_by_key(|(number, _, c)| (c.class, std::cmp::Reverse(*number)))?;
        last.room = Room::Asked;
        Some((number, id))
    }

    /// Asks a connection for its room. Returns false if it stays: then it is not asked again for a while.
    async fn gives_room(&self, number: u64, id: FlowId) -> bool {
        self.note_room(number, Room::Asked);
        match self.splicer().request_splice(id).await {
            Ok(()) | Err(RequestError::AlreadySpliced(_)) => return true,
            Err(error) => tracing::debug!(flow = %id, %error, "it was to make room, and stays"),
        }
        self.note_room(number, Room::Refused(Instant::now()));
        false
    }

    fn note_room(&self, number: u64, room: Room) {
        if let Some(carried) = self.carried.lock().get_mut(&number) {
            carried.room = room;
        }
    }

    /// Releases a share of the connections because memory runs short: those in which the least has passed lately, but for
    /// those that could not be released a moment ago. Does nothing while an earlier call is still at it.
    pub(crate) fn relieve(self: &Arc<Self>) {
        if !self.relieving.swap(true, Ordering::Relaxed) {
            let accelerator = Arc::clone(self);
            tokio::spawn(async move {
                accelerator.release_least_useful().await;
                accelerator.relieving.store(false, Ordering::Relaxed);
            });
        }
    }

    async fn release_least_useful(self: &Arc<Self>) {
        let known = |(&number, c): (&u64, &Carried)| {
            let flow = self.splicer().pair(c.may_be_asked()?)?;
            // Leave out those that are on their way to a splice, or from one.
            (flow.state == FlowState::Relay).then_some((number, c.class, flow))
        };
        let mut flows: Vec<_> = self.carried.lock().iter().filter_map(known).collect();
        flows.sort_by(|(_, class, flow), (_, other_class, other)| {
            other_class
                .cmp(class)
                .then(usefulness(flow).total_cmp(&usefulness(other)))
        });
        flows.truncate(flows.len().div_ceil(SHARE));
        let mut asked = JoinSet::new();
        for (number, _, flow) in flows {
            if asked.len() >= AT_ONCE {
                asked.join_next().await;
            }
            let accelerator = Arc::clone(self);
            asked.spawn(async move { accelerator.gives_room(number, flow.id).await });
        }
        asked.join_all().await;
    }

    /// Takes no connection over any more, and releases all that it has, busy ones and those that wait for their server too, for
    /// at most `time`. Returns the number of connections that it still has.
    pub(crate) async fn close(&self, time: Duration) -> usize {
        self.closing.store(true, Ordering::Relaxed);
        self.stops.notify_one();
        let until = Instant::now() + time;
        loop {
            // Wait for those that cannot be asked yet: answered early, or with a task that has not begun.
            let connecting = self.early.connecting() + self.unconfirmed.load(Ordering::Relaxed);
            let (flows, unnamed) = {
                let carried = self.carried.lock();
                let flows: Vec<_> = carried.values().filter_map(|c| c.handle.id()).collect();
                let unnamed = carried.len() - flows.len();
                (flows, unnamed)
            };
            let mut asked = JoinSet::new();
            for id in flows {
                let splicer = self.splicer().clone();
                asked.spawn(async move { splicer.request_splice(id).await });
            }
            let answers = tokio::select! {
                answers = asked.join_all() => answers,
                () = sleep_until(until) => return self.carried.lock().len() + connecting,
            };
            // A pair that may never be spliced would answer so at each attempt: the time ends that.
            let stay = answers
                .iter()
                .filter(|answer| matches!(answer, Err(RequestError::StaysRelayed(..))))
                .count();
            let waiting = stay + unnamed + connecting;
            if waiting == 0 || Instant::now() >= until {
                return waiting;
            }
            sleep_until(until.min(Instant::now() + AGAIN)).await;
        }
    }
}

/// Returns how much a connection gains by being relayed, as far as its traffic shows: bytes a second over its life, and
/// less the longer it is idle.
fn usefulness(flow: &FlowInfo) -> f64 {
    let bytes = flow.to_server.bytes + flow.to_client.bytes;
    let idle = flow.idle_seconds.unwrap_or(0.0);
    bytes as f64 / (flow.age_seconds.max(0.001) * (1.0 + idle))
}
