//! Packets that met a trap while there was no socket for them: kept until there is one, then let in.

use std::{
    collections::HashMap,
    io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use longsplice_core::reap::FlowEnd;
use longsplice_dataplane::{Dataplane, Event, EventKind, Events, Side};
use tokio::sync::Notify;

use crate::{packet, ring::Ring, splicer::Inner};

/// Payload of the pieces in which a packet is let in: one page holds it with its headers.
const PIECE: usize = 1400;

/// What is kept of one flow.
#[derive(Debug, Default)]
pub(crate) struct Held {
    state: Mutex<State>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct State {
    packets: Vec<Event>,
    copies: Vec<Event>,
    /// Where each side's stream is the sockets', once they are awake; `None`: from anywhere on.
    awake: Option<[Option<u32>; 2]>,
    over: bool,
}

impl Held {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything waits for a socket.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.state().packets.is_empty()
    }

    /// Whether the flow has ended in the kernel half.
    pub(crate) fn is_over(&self) -> bool {
        self.state().over
    }

    /// Returns after something has come, or the flow has ended, since the last return.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }

    /// The copies that have come.
    pub(crate) fn take_copies(&self) -> Vec<Event> {
        std::mem::take(&mut self.state().copies)
    }

    /// The sockets are awake from `bases` on: what was kept is let in, what comes later goes there at once. Whether there was
    /// anything.
    pub(crate) fn let_in(&self, plane: &Dataplane, bases: [Option<u32>; 2]) -> bool {
        let mut state = self.state();
        state.awake = Some(bases);
        let packets = std::mem::take(&mut state.packets);
        for event in &packets {
            inject(plane, event, bases[event.side.index()]);
        }
        !packets.is_empty()
    }

    /// Keeps a packet.
    pub(crate) fn keep(&self, event: Event) {
        self.state().packets.push(event);
    }

    /// The flow is spliced again.
    pub(crate) fn keep_out(&self) {
        self.state().awake = None;
    }

    fn push(&self, plane: &Dataplane, event: Event) {
        let mut state = self.state();
        match (event.kind, state.awake) {
            (EventKind::Copy, _) => state.copies.push(event),
            (EventKind::Held, Some(bases)) => inject(plane, &event, bases[event.side.index()]),
            (EventKind::Held, None) => state.packets.push(event),
        }
        drop(state);
        self.notify.notify_one();
    }

    fn end(&self) {
        self.state().over = true;
        self.notify.notify_one();
    }
}

/// Lets a packet in. It is cut at `base`: what lies below was forwarded before, and must not come to the socket, what lies
/// above must not be forwarded.
fn inject(plane: &Dataplane, event: &Event, base: Option<u32>) {
    let below = base.map_or(0, |b| b.wrapping_sub(event.seq));
    let below = if (below as i32) < 0 { 0 } else { below as usize };
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

/// The parts in which a packet is let in, of which `below` bytes lie below the base; and whether a part has the packet's
/// FIN and PSH. A FIN stands behind the payload: at the base, it is a piece of its own.
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

/// All flows of which packets may be kept, by serial number.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    flows: Mutex<HashMap<u32, Arc<Held>>>,
}

impl Holding {
    fn flows(&self) -> MutexGuard<'_, HashMap<u32, Arc<Held>>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept of a flow, for as long as somebody has it ([`Keeping`]).
    fn of(&self, serial: u32) -> Arc<Held> {
        self.flows().entry(serial).or_default().clone()
    }

    /// The map has one, and so has who leaves: nobody else.
    fn forget(&self, serial: u32, held: &Arc<Held>) {
        let mut flows = self.flows();
        if Arc::strong_count(held) <= 2 {
            flows.remove(&serial);
        }
    }

    /// Whoever waits for a flow is told if it has ended.
    pub(crate) fn ended(&self, serial: u32, end: &FlowEnd) {
        if let Some(held) = self.flows().get(&serial).filter(|_| end.is_over()) {
            held.end();
        }
    }
}

/// Reads the ring of the kernel half for as long as the splicer lives.
pub(crate) fn start(splicer: &Arc<Inner>) -> io::Result<()> {
    let Some(plane) = &splicer.plane else {
        return Ok(());
    };
    let mut events = Ring::new(plane.events()?, Events::take)?;
    let weak = Arc::downgrade(splicer);
    tokio::spawn(async move {
        loop {
            let batch = match events.next().await {
                Ok(batch) => batch,
                Err(error) => {
                    tracing::error!(%error, "cannot read the kernel half's packets");
                    return;
                }
            };
            let Some(splicer) = weak.upgrade() else { return };
            let Some(plane) = &splicer.plane else { return };
            for event in batch {
                let known = splicer.holding.flows().get(&event.serial).cloned();
                match known {
                    Some(held) => held.push(plane, event),
                    None => crate::reclaim::serve_orphan(&splicer, event),
                }
            }
        }
    });
    Ok(())
}

/// Keeps a flow's packets for as long as its task has it.
#[derive(Debug)]
pub(crate) struct Keeping {
    splicer: Arc<Inner>,
    serial: u32,
    pub(crate) held: Arc<Held>,
}

impl Keeping {
    pub(crate) fn new(splicer: &Arc<Inner>, serial: u32) -> Keeping {
        Keeping {
            splicer: splicer.clone(),
            serial,
            held: splicer.holding.of(serial),
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.splicer.holding.forget(self.serial, &self.held);
    }
}

/// Of one side or the other.
pub(crate) fn bases(owed: [bool; 2], base: [u32; 2]) -> [Option<u32>; 2] {
    Side::BOTH.map(|side| owed[side.index()].then_some(base[side.index()]))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Beyond it.
        assert_eq!(pieces(100, 101, true), [(0..100, true)]);
        assert_eq!(pieces(0, 0, true), [(0..0, true)]);
    }

    #[test]
    fn a_fin_at_the_base_is_a_piece_of_its_own() {
        // Together they would be held again, and again.
        assert_eq!(pieces(100, 100, true), [(0..100, false), (100..100, true)]);
        assert_eq!(pieces(100, 100, false), [(0..100, true)]);
    }
}
