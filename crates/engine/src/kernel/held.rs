//! Keeps packets that met a trap while there was no socket for them, and injects them once there is one.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use longsplice_core::{
    reap::{FlowEnd, Reaped},
    seq::Seq,
};
use longsplice_dataplane::{Dataplane, Event, EventKind, PerSide, Side};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::{packet, ring::Ring};

/// Payload of the pieces in which a packet is injected: one page holds it with its headers.
const PIECE: usize = 1400;

/// Maximum memory for held packets of one flow, and of all flows, in bytes. Packets beyond it are retransmitted.
const MOST_OF_FLOW: usize = 1 << 20;
const MOST_OF_ALL: usize = 32 << 20;

/// Maximum memory for a flow's copies, in bytes: they are fetched every millisecond.
const MOST_COPIES: usize = 8 << 20;

/// Memory that a packet takes besides its bytes.
const OVERHEAD: usize = 256;

/// Counts the memory of all held packets.
#[derive(Debug, Default)]
struct Budget(AtomicUsize);

impl Budget {
    /// Takes so many bytes, if they are left.
    fn take(&self, bytes: usize) -> bool {
        let sum = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= MOST_OF_ALL);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum)
            .is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Packets of a flow, in the order in which they came first: one for each place in a stream.
#[derive(Debug, Default)]
struct Kept {
    packets: Vec<Event>,
    places: HashMap<(Side, Seq), usize>,
    bytes: usize,
}

impl Kept {
    fn cost(event: &Event) -> usize {
        event.packet.len() + OVERHEAD
    }

    /// Keeps a packet if it holds more than the known one at its place, and there is room for it.
    fn keep(&mut self, event: Event, most: usize, budget: &Budget) {
        let place = (event.side, event.seq);
        let known = self.places.get(&place).map(|&at| (at, &self.packets[at]));
        let says = |event: &Event| (event.payload.len(), packet::has_fin(event));
        if known.is_some_and(|(_, known)| says(known) >= says(&event)) {
            return;
        }
        let (cost, old) = (
            Kept::cost(&event),
            known.map_or(0, |(_, known)| Kept::cost(known)),
        );
        let more = cost.saturating_sub(old);
        if self.bytes + more > most || !budget.take(more) {
            tracing::debug!(
                flow = event.serial,
                "no room for a packet: its sender will repeat it"
            );
            return;
        }
        budget.give_back(old.saturating_sub(cost));
        self.bytes = self.bytes + cost - old;
        match known {
            Some((at, _)) => self.packets[at] = event,
            None => {
                self.places.insert(place, self.packets.len());
                self.packets.push(event);
            }
        }
    }

    /// Returns all packets, and leaves none.
    fn take(&mut self, budget: &Budget) -> Vec<Event> {
        budget.give_back(std::mem::take(&mut self.bytes));
        self.places = HashMap::new();
        std::mem::take(&mut self.packets)
    }
}

/// Packets that are held for one flow.
#[derive(Debug)]
pub(crate) struct FlowQueue {
    state: Mutex<State>,
    notify: Notify,
    news: Notify,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct State {
    kept: Kept,
    copies: Kept,
    /// Number from which each side's stream belongs to the sockets, once they are awake; `None`: from anywhere on.
    awake: Option<PerSide<Option<Seq>>>,
    /// End of the flow in the kernel half, once it is known.
    over: Option<Reaped>,
}

impl FlowQueue {
    fn new(budget: Arc<Budget>) -> FlowQueue {
        FlowQueue {
            state: Mutex::default(),
            notify: Notify::new(),
            news: Notify::new(),
            budget,
        }
    }

    /// Returns true if packets wait for a socket.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.state.lock().kept.packets.is_empty()
    }

    /// Returns how the flow has ended in the kernel half; `None`: the reaper has seen no end of it.
    pub(crate) fn over(&self) -> Option<Reaped> {
        self.state.lock().over
    }

    /// Waits until a packet has come, or the flow has ended, since the last return.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }

    /// Waits until an acknowledgement has come that the slot watches for, since the last return.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// Returns the copies that have come.
    pub(crate) fn take_copies(&self) -> Vec<Event> {
        self.state.lock().copies.take(&self.budget)
    }

    /// Injects the held packets, and all later ones at once: the sockets are awake from `bases` on. Returns true if there
    /// were any.
    pub(crate) fn let_in(&self, plane: &Dataplane, bases: PerSide<Option<Seq>>) -> bool {
        let mut state = self.state.lock();
        state.awake = Some(bases);
        let packets = state.kept.take(&self.budget);
        for event in &packets {
            inject(plane, event, bases[event.side]);
        }
        !packets.is_empty()
    }

    /// Keeps a packet.
    pub(crate) fn keep(&self, event: Event) {
        self.state.lock().kept.keep(event, MOST_OF_FLOW, &self.budget);
    }

    /// Holds packets again: the flow is spliced again.
    pub(crate) fn keep_out(&self) {
        self.state.lock().awake = None;
    }

    fn push(&self, plane: &Dataplane, event: Event) {
        let mut state = self.state.lock();
        match (event.kind, state.awake) {
            (EventKind::Copy, _) => state.copies.keep(event, MOST_COPIES, &self.budget),
            (EventKind::Held, Some(bases)) => inject(plane, &event, bases[event.side]),
            (EventKind::Held, None) => state.kept.keep(event, MOST_OF_FLOW, &self.budget),
            (EventKind::News, _) => return self.news.notify_one(),
        }
        drop(state);
        self.notify.notify_one();
    }

    fn end(&self, how: Reaped) {
        self.state.lock().over = Some(how);
        self.notify.notify_one();
    }
}

impl Drop for FlowQueue {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        for kept in [&mut state.kept, &mut state.copies] {
            kept.take(&self.budget);
        }
    }
}

/// Injects a packet, cut at `base`: the part below was forwarded before, and must not come to the socket; the part above
/// must not be forwarded.
fn inject(plane: &Dataplane, event: &Event, base: Option<Seq>) {
    let below = base.map_or(0, |base| base.bytes_since(event.seq)) as usize;
    for (part, ends) in pieces(event.payload.len(), below, packet::has_fin(event)) {
        match packet::piece(event, part, ends) {
            Some(piece) => {
                if let Err(error) = plane.inject(event.ifindex, &piece) {
                    tracing::debug!(%error, flow = event.serial, "a held packet was lost: its sender will repeat it");
                }
            }
            None => tracing::debug!(flow = event.serial, "a held packet cannot be cut"),
        }
    }
}

/// Returns the parts in which a packet is injected, of which `below` bytes lie below the base; the flag says if a part
/// has the packet's FIN and PSH. A FIN stands behind the payload: at the base, it is a piece of its own.
fn pieces(payload: usize, below: usize, fin: bool) -> Vec<(Range<usize>, bool)> {
    let cut = if below <= payload { below } else { 0 };
    let apart = fin && payload > 0 && cut == payload;
    let mut parts = Vec::new();
    let mut at = 0;
    while at < payload {
        let end = if at < cut { cut } else { payload };
        let next = (at + PIECE).min(end);
        parts.push((at..next, next == payload && !apart));
        at = next;
    }
    if apart || payload == 0 {
        parts.push((payload..payload, true));
    }
    parts
}

/// Holds all flows that may have held packets, by serial number.
#[derive(Debug, Default)]
pub(crate) struct HeldPackets(Arc<Flows>);

#[derive(Debug, Default)]
struct Flows {
    by_serial: Mutex<HashMap<u32, Holding>>,
    budget: Arc<Budget>,
}

/// Queue of a flow, and the number of its guards: the ring's reader has a reference, too, for a moment.
#[derive(Debug)]
struct Holding {
    queue: Arc<FlowQueue>,
    guards: usize,
}

impl Flows {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Holding>> {
        self.by_serial.lock()
    }

    fn find(&self, serial: u32) -> Option<Arc<FlowQueue>> {
        self.lock().get(&serial).map(|holding| holding.queue.clone())
    }

    /// Removes a flow when its last guard leaves.
    fn leave(&self, serial: u32) {
        let mut flows = self.lock();
        if let Entry::Occupied(mut entry) = flows.entry(serial) {
            entry.get_mut().guards -= 1;
            if entry.get().guards == 0 {
                entry.remove();
            }
        }
    }
}

impl HeldPackets {
    /// Holds a flow's packets for as long as the guard lives.
    pub(crate) fn hold(&self, serial: u32) -> HoldGuard {
        let new = || Holding {
            queue: Arc::new(FlowQueue::new(self.0.budget.clone())),
            guards: 0,
        };
        let mut flows = self.0.lock();
        let holding = flows.entry(serial).or_insert_with(new);
        holding.guards += 1;
        HoldGuard {
            queue: holding.queue.clone(),
            flows: Arc::clone(&self.0),
            serial,
        }
    }

    /// Tells the task that waits for a flow if it has ended, in order or by a reset.
    pub(crate) fn look(&self, serial: u32, end: &FlowEnd) {
        if end.is_closed() {
            self.ended(serial, Reaped::Closed);
        } else if end.is_reset() {
            self.ended(serial, Reaped::Reset);
        }
    }

    /// Tells the task that waits for a flow that it has ended.
    pub(crate) fn ended(&self, serial: u32, how: Reaped) {
        if let Some(holding) = self.0.lock().get(&serial) {
            holding.queue.end(how);
        }
    }
}

/// Starts the task that reads the ring of the programs. It calls `orphan` for each packet of a flow that no task holds, and
/// ends once `orphan` returns false. Fails if the ring cannot be read.
pub(crate) fn start(
    plane: &Arc<Dataplane>,
    held: &HeldPackets,
    orphan: impl Fn(Event) -> bool + Send + 'static,
) -> io::Result<()> {
    let mut events = Ring::new(plane.events()?)?;
    let (plane, flows) = (Arc::downgrade(plane), Arc::downgrade(&held.0));
    tokio::spawn(async move {
        loop {
            let batch = match events.next().await {
                Ok(batch) => batch,
                Err(error) => {
                    tracing::error!(%error, "cannot read the kernel half's packets");
                    return;
                }
            };
            let (Some(plane), Some(flows)) = (plane.upgrade(), flows.upgrade()) else {
                return;
            };
            for event in batch {
                let queue = flows.find(event.serial);
                match queue {
                    Some(queue) => queue.push(&plane, event),
                    // Copies and news are a task's that has gone, with a predecessor perhaps: no trap was met.
                    None if event.kind != EventKind::Held => {}
                    None if orphan(event) => {}
                    None => return,
                }
            }
        }
    });
    Ok(())
}

/// Keeps a flow's packets for as long as a task has the flow.
#[derive(Debug)]
pub(crate) struct HoldGuard {
    pub(crate) queue: Arc<FlowQueue>,
    flows: Arc<Flows>,
    serial: u32,
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        self.flows.leave(self.serial);
    }
}

/// Returns the base of each side whose socket was bypassed, and `None` for others.
pub(crate) fn bases(bypassed: PerSide<bool>, base: PerSide<Seq>) -> PerSide<Option<Seq>> {
    PerSide::from_fn(|side| bypassed[side].then_some(base[side]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(side: Side, seq: u32, payload: usize) -> Event {
        Event {
            kind: EventKind::Held,
            serial: 1,
            side,
            ifindex: 1,
            seq: Seq::new(seq),
            tcp: 34,
            payload: 54..54 + payload,
            packet: vec![0; 54 + payload],
        }
    }

    #[test]
    fn a_packet_that_comes_again_is_kept_once_and_the_longest_one_wins() {
        let (mut kept, budget) = (Kept::default(), Budget::default());
        for _ in 0..100_000 {
            kept.keep(event(Side::Client, u32::MAX, 1000), MOST_OF_FLOW, &budget);
        }
        let used = 54 + 1000 + OVERHEAD;
        assert_eq!((kept.packets.len(), kept.bytes), (1, used));
        kept.keep(event(Side::Server, u32::MAX, 10), MOST_OF_FLOW, &budget);
        kept.keep(event(Side::Client, u32::MAX, 1400), MOST_OF_FLOW, &budget);
        kept.keep(event(Side::Client, u32::MAX, 900), MOST_OF_FLOW, &budget);
        let used = 2 * (54 + OVERHEAD) + 1400 + 10;
        assert_eq!((kept.bytes, budget.0.load(Ordering::Relaxed)), (used, used));
        let lengths: Vec<usize> = kept.take(&budget).iter().map(|e| e.payload.len()).collect();
        assert_eq!(lengths, [1400, 10]);
        assert_eq!((kept.bytes, budget.0.load(Ordering::Relaxed)), (0, 0));
        kept.keep(event(Side::Client, u32::MAX, 1000), MOST_OF_FLOW, &budget);
        assert_eq!(kept.packets.len(), 1);
    }

    #[test]
    fn neither_a_flow_nor_all_together_are_kept_without_end() {
        let holding = HeldPackets::default();
        let flows: Vec<_> = (0..100).map(|serial| holding.hold(serial)).collect();
        for held in &flows {
            for i in 0..10_000 {
                held.queue.keep(event(Side::Client, i * 1400, 1400));
            }
            let bytes = held.queue.state.lock().kept.bytes;
            assert!(bytes <= MOST_OF_FLOW, "{bytes}");
        }
        let all = holding.0.budget.0.load(Ordering::Relaxed);
        assert!(all <= MOST_OF_ALL && all > MOST_OF_ALL - 2000, "{all}");
        assert!(flows[0].queue.is_waiting() && !flows[99].queue.is_waiting());
        drop(flows);
        assert!(holding.0.lock().is_empty());
        assert_eq!(holding.0.budget.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_flow_whose_last_holder_leaves_while_a_packet_is_kept_is_forgotten() {
        let holding = HeldPackets::default();
        let [first, last] = [holding.hold(1), holding.hold(1)];
        let read = holding.0.find(1).unwrap();
        drop(first);
        assert!(holding.0.find(1).is_some());
        drop(last);
        assert!(holding.0.find(1).is_none());
        read.keep(event(Side::Client, 1, 1000));
        drop(read);
        assert_eq!(holding.0.budget.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_packet_is_cut_at_the_base_and_into_pages() {
        assert_eq!(pieces(100, 0, true), [(0..100, true)]);
        assert_eq!(pieces(100, 30, true), [(0..30, false), (30..100, true)]);
        assert_eq!(
            pieces(PIECE + 5, PIECE + 2, false),
            [
                (0..PIECE, false),
                (PIECE..PIECE + 2, false),
                (PIECE + 2..PIECE + 5, true)
            ]
        );
        // The base lies beyond the payload.
        assert_eq!(pieces(100, 101, true), [(0..100, true)]);
        assert_eq!(pieces(0, 0, true), [(0..0, true)]);
    }

    #[test]
    fn a_fin_at_the_base_is_a_piece_of_its_own() {
        // Together in one piece they would be held again and again.
        assert_eq!(pieces(100, 100, true), [(0..100, false), (100..100, true)]);
        assert_eq!(pieces(100, 100, false), [(0..100, true)]);
    }
}
