//! Implements the second way back (papers' section III-D): collects copies of all that is unacknowledged while segments
//! pass, then lets the sockets take over its retransmission.

use std::{collections::BTreeMap, io, time::Duration};

use longsplice_core::seq::Seq;
use longsplice_dataplane::{Event, LegState, Mode, PerSide, Side};
use longsplice_repair::{enter, fit_send_buffer, seed_send_queue};
use tokio::time::{Instant, sleep_until};

use super::Flow;
use crate::relay::pump::Pump;

/// Longest time to collect copies: a sender's retransmissions bring what was missed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest time that the last copies may take once nothing new passes.
const LAST: Duration = Duration::from_millis(20);

/// Interval between two looks at the acknowledgements.
const TICK: Duration = Duration::from_millis(1);

/// Maximum number of bytes to collect in one direction. A direction with more in flight is left to the ends.
const MOST: usize = 16 << 20;

/// Payload of one direction, by its distance from the start of the collection.
#[derive(Debug, Default)]
struct Copies {
    origin: Option<Seq>,
    pieces: BTreeMap<u32, Vec<u8>>,
    bytes: usize,
}

impl Copies {
    /// Drops copies that lie before `from`, which never goes back.
    fn advance(&mut self, from: Seq) {
        let origin = *self.origin.get_or_insert(from);
        let gone = from.distance_from(origin);
        self.pieces.retain(|at, piece| {
            let stays = (*at).saturating_add(piece.len() as u32) > gone;
            self.bytes -= if stays { 0 } else { piece.len() };
            stays
        });
    }

    fn add(&mut self, event: &Event) {
        let (Some(origin), Some(payload)) = (self.origin, event.packet.get(event.payload.clone())) else {
            return;
        };
        // A segment from before the collection may end within it: keep that part.
        let (at, skip) = match event.seq - origin {
            n if n < 0 => (0, n.unsigned_abs() as usize),
            n => (n as u32, 0),
        };
        if let Some(rest) = payload.get(skip..).filter(|r| !r.is_empty()) {
            let known = self.pieces.get(&at).map_or(0, Vec::len);
            if known < rest.len() && self.bytes - known + rest.len() <= MOST {
                self.bytes = self.bytes - known + rest.len();
                self.pieces.insert(at, rest.to_vec());
            }
        }
    }

    /// Returns all bytes from one sequence number to another one, if they are there.
    fn range(&self, from: Seq, to: Seq) -> Option<Vec<u8>> {
        let origin = self.origin?;
        let (mut at, to) = (from.distance_from(origin), to.distance_from(origin));
        let mut bytes = Vec::with_capacity(to.checked_sub(at)? as usize);
        while at < to {
            let (start, piece) = self
                .pieces
                .range(..=at)
                .rev()
                .find(|(start, piece)| **start + piece.len() as u32 > at)?;
            let part = &piece[(at - start) as usize..];
            let part = &part[..part.len().min((to - at) as usize)];
            bytes.extend_from_slice(part);
            at += part.len() as u32;
        }
        Some(bytes)
    }
}

/// Returns the beginning and the end of the bytes that the far end may lack, in x's numbers; `end` is the end of x's
/// payload. A FIN that o acknowledged is sent again by the socket: it stands at `end`, and so does the socket.
fn outstanding(o: &LegState, end: Seq) -> (Seq, Seq) {
    let acked = o.rx_ack + o.ack_off;
    (acked.min(end), end)
}

/// Copies of both directions.
#[derive(Debug, Default)]
struct Collection {
    copies: PerSide<Copies>,
}

impl Collection {
    /// Takes the copies that have come. Returns the outstanding bytes of each direction, up to `ends`, once they are all
    /// there.
    fn collect(&mut self, flow: &Flow, ends: impl Fn(&LegState) -> Seq) -> Option<PerSide<(Seq, Vec<u8>)>> {
        let states = PerSide::from_fn(|side| flow.leg(side));
        let spans = PerSide::from_fn(|side| {
            let (x, o) = (&states[side], &states[side.other()]);
            outstanding(o, ends(x))
        });
        for side in Side::BOTH {
            self.copies[side].advance(spans[side].0);
        }
        for event in flow.held().take_copies() {
            self.copies[event.side].add(&event);
        }
        let PerSide { client, server } = PerSide::from_fn(|side| {
            let (from, to) = spans[side];
            Some((from, self.copies[side].range(from, to)?))
        });
        Some(PerSide {
            client: client?,
            server: server?,
        })
    }
}

/// Returns true if a FIN or a reset was forwarded: such a pair is left to its ends. A FIN is acknowledged together with the
/// bytes before it. A socket that was given those bytes and has not sent the FIN itself would refuse that acknowledgement
/// for ever. The sockets know nothing of a reset.
fn has_ended(flow: &Flow) -> bool {
    Side::BOTH.iter().any(|&side| {
        let x = flow.leg(side);
        x.fin || x.reset
    })
}

/// Takes over the outstanding bytes. Returns false if that cannot be done; then nothing has changed but that the flow may
/// be frozen.
pub(crate) async fn take_over(flow: &Flow, pump: &Pump) -> io::Result<bool> {
    let mut collection = Collection::default();
    // Set the origin before the first copy comes.
    collection.collect(flow, |x| x.rx_end);
    flow.slot().set_copying(true);
    let give_up = Instant::now() + PATIENCE;
    loop {
        let complete = collection.collect(flow, |x| x.rx_end).is_some();
        if complete || flow.mode() != Mode::Final {
            break;
        }
        let now = Instant::now();
        if now >= give_up || has_ended(flow) {
            flow.slot().set_copying(false);
            return Ok(false);
        }
        tokio::select! {
            () = flow.held().changed() => {}
            () = sleep_until(now + TICK) => {}
        }
    }
    if flow.plane().freeze(flow.slot())? != Mode::Freeze {
        return Ok(false);
    }
    let give_up = Instant::now() + LAST;
    let outstanding = loop {
        if has_ended(flow) {
            return Ok(false);
        }
        if let Some(all) = collection.collect(flow, |x| x.base) {
            break all;
        }
        if Instant::now() >= give_up {
            return Ok(false);
        }
        tokio::select! {
            () = flow.held().changed() => {}
            () = sleep_until(Instant::now() + TICK) => {}
        }
    };
    if let Err(error) = make_room(pump, &outstanding) {
        tracing::debug!(%error, "a socket cannot take what is outstanding: the ends keep it");
        return Ok(false);
    }
    let mut acked = PerSide::default();
    for side in Side::BOTH {
        let (from, bytes) = &outstanding[side];
        let other = side.other();
        acked[other] = *from + flow.leg(side).seq_off;
        if !bytes.is_empty() {
            seed(pump, other, bytes)?;
        }
    }
    let mode = flow.plane().take_over(flow.slot(), acked)?;
    flow.announce();
    Ok(mode == Mode::Track)
}

/// Makes room in both send queues for the bytes that came from the other sides.
fn make_room(pump: &Pump, outstanding: &PerSide<(Seq, Vec<u8>)>) -> Result<(), longsplice_repair::Error> {
    for side in Side::BOTH {
        let bytes = u32::try_from(outstanding[side].1.len()).unwrap_or(u32::MAX);
        fit_send_buffer(pump.socket(side.other()), bytes)?;
    }
    Ok(())
}

/// Puts bytes into the send queue of a parked socket, which has room for them, as if it had sent them.
fn seed(pump: &Pump, side: Side, bytes: &[u8]) -> io::Result<()> {
    let repair = enter(pump.socket(side))?;
    let seeded = seed_send_queue(&repair, bytes)?;
    repair.leave_silently()?;
    match seeded == bytes.len() {
        true => Ok(()),
        // The ends have it still: the caller builds other sockets.
        false => Err(io::Error::other("a socket did not take what is outstanding")),
    }
}

#[cfg(test)]
mod tests {
    use longsplice_core::seq::Offset;
    use longsplice_dataplane::EventKind;

    use super::*;

    fn event(seq: Seq, bytes: &[u8]) -> Event {
        Event {
            kind: EventKind::Copy,
            serial: 1,
            side: Side::Client,
            ifindex: 1,
            seq,
            payload: 0..bytes.len(),
            tcp: 0,
            packet: bytes.to_vec(),
        }
    }

    #[test]
    fn outstanding_is_payload_only() {
        let o = |rx_ack: Seq| LegState {
            rx_ack,
            ack_off: Offset::new(10),
            ..LegState::default()
        };
        let end = Seq::new(5);
        assert_eq!(outstanding(&o(end - 26), end), (end - 16, end));
        assert_eq!(outstanding(&o(end - 10), end), (end, end));
        // The FIN is sent again by the socket, at `end`.
        assert_eq!(outstanding(&o(end - 9), end), (end, end));
    }

    #[test]
    fn copies_are_joined_across_the_wrap_and_holes_are_seen() {
        let mut copies = Copies::default();
        let start = Seq::new(u32::MAX - 2);
        copies.advance(start);
        copies.add(&event(start - 2, b"xyab"));
        copies.add(&event(start + 4, b"efg"));
        assert_eq!(copies.range(start, start + 7), None);
        copies.add(&event(start + 1, b"bcde"));
        assert_eq!(copies.range(start, start + 7).unwrap(), b"abcdefg");
        copies.advance(start + 5);
        assert_eq!(copies.range(start + 5, start + 7).unwrap(), b"fg");
        assert_eq!(copies.range(start, start + 7), None);
        assert_eq!(copies.range(start + 7, start + 7).unwrap(), b"");
    }
}
