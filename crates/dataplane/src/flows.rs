//! Reads the directions of spliced flows from their records.

use std::io;

use longsplice_core::seq::{Offset, Seq};

use crate::{
    abi::{LS_RULED, Leg, PerSide, Side, ls_flow, ls_record},
    skel::types::{ls_placement, ls_seen, ls_trait},
    start_times::StartTimes,
    successor::SuccessorPlan,
    time::TICK,
};

/// State of one direction, read from its record.
#[derive(Debug, Clone, Copy)]
pub struct Direction {
    /// Leg that its segments arrive on.
    pub leg: Leg,
    /// Leg that they leave on.
    pub far: Leg,
    /// Side that sends them.
    pub side: Side,
    /// Serial number of the flow, the same in both directions.
    pub serial: u32,
    /// Slot that has the current state, while the flow has one.
    pub slot: Option<u32>,
    /// True if a FIN of this side's peer passed.
    pub fin: bool,
    /// True if a valid RST of this side's peer passed.
    pub reset: bool,
    /// End of the highest payload that passed.
    pub end: Seq,
    /// End of the stream, behind its FIN if that passed, in the far end's acknowledgements.
    pub end_at_far: Seq,
    /// Highest acknowledgement of this side's peer.
    pub ack: Seq,
    /// Payload bytes translated.
    pub bytes: u64,
    /// Offset that is added to sequence numbers.
    pub seq_off: Offset,
    /// True if the translation changes nothing but the time to live (papers' section III-F).
    pub identity: bool,
    /// True if the record may have a ruling ([`crate::Ruling`]). Not known of a flow with a slot.
    pub ruled: bool,
    /// Plan for a later process at the trap of this side's stream; `None`: there is no trap.
    pub trap: Option<SuccessorPlan>,
    /// Time that the flow has had a record. For a predecessor's flow, the time since the adoption.
    pub age: std::time::Duration,
    /// Time since a segment passed in this direction; exact to a tick (about a second).
    pub idle: std::time::Duration,
}

impl Direction {
    /// Reads the direction of a side. `leg` is the one to its peer, `far` the other one.
    pub(crate) fn new(
        side: Side,
        leg: Leg,
        far: Leg,
        r: &ls_record,
        start_times: &StartTimes,
        now: u32,
    ) -> Direction {
        let since = |tick: u32| TICK * now.saturating_sub(tick);
        let fin = has(r.seen, ls_seen::LS_SEEN_FIN.0);
        let (end, seq_off) = (Seq::new(r.rx_end), Offset::new(r.seq_off));
        Direction {
            leg,
            far,
            side,
            serial: r.serial,
            slot: (placement(r) == ls_placement::LS_SLOTTED).then_some(r.r#where),
            fin,
            reset: has(r.seen, ls_seen::LS_SEEN_RST.0),
            end,
            end_at_far: end + u32::from(fin) + seq_off,
            ack: Seq::new(r.rx_ack),
            bytes: u64::from(r.bytes_high) << 32 | u64::from(r.bytes_low),
            seq_off,
            identity: is_identity(leg, far, r),
            ruled: r.rate != 0 && r.burst & LS_RULED != 0,
            trap: (u32::from(r.placement) & ls_placement::LS_ARMED.0 != 0)
                .then(|| SuccessorPlan::from_raw(r.successor)),
            age: since(start_times.of(r.serial)),
            idle: since(r.last_seen),
        }
    }

    /// Returns the directions of an element of the table; none for legs that stand alone.
    pub(crate) fn of_flow(flow: &ls_flow, start_times: &StartTimes, now: u32) -> PerSide<Option<Direction>> {
        let directions = Direction::of_element(flow, start_times, now);
        PerSide::from_fn(|side| {
            let rec = &flow.from[side].rec;
            (is_present(rec) && !is_alone(rec)).then_some(directions[side])
        })
    }

    /// Returns both directions of an element, present or not.
    pub(crate) fn of_element(flow: &ls_flow, start_times: &StartTimes, now: u32) -> PerSide<Direction> {
        let legs = PerSide::from_fn(|side| Leg::from_tuple(&flow.from[side].key));
        PerSide::from_fn(|side| {
            let (leg, far) = (legs[side], legs[side.other()]);
            Direction::new(side, leg, far, &flow.from[side].rec, start_times, now)
        })
    }
}

/// Returns true if segments leave on the leg `far` as they came in on `leg`. Without timestamps, their offset has no
/// meaning.
pub(crate) fn is_identity(leg: Leg, far: Leg, r: &ls_record) -> bool {
    let addresses = (leg.peer, leg.local) == (far.local, far.peer);
    let clocks = !has(r.traits, ls_trait::LS_TIMESTAMPS.0) || r.tsval_off | r.tsecr_off == 0;
    let windows = r.scales & 15 == r.scales >> 4;
    let sack = !has(r.traits, ls_trait::LS_BLANK_SACK.0);
    addresses && clocks && windows && sack && r.seq_off | r.ack_off == 0
}

/// Returns the place of the current state of a direction.
pub(crate) fn placement(rec: &ls_record) -> ls_placement {
    ls_placement(u32::from(rec.placement) & !ls_placement::LS_ARMED.0)
}

/// Returns true if a direction has a record at all.
pub(crate) fn is_present(rec: &ls_record) -> bool {
    placement(rec) != ls_placement::LS_NONE
}

pub(crate) fn is_alone(rec: &ls_record) -> bool {
    placement(rec) == ls_placement::LS_ALONE
}

/// Returns true if an element has neither a whole flow nor a leg that stands alone. It may have a half of a flow, which was
/// inserted or removed no further.
pub(crate) fn is_left(flow: &ls_flow) -> bool {
    let present = flow.from.iter().filter(|d| is_present(&d.rec));
    present.count() < 2 && !flow.from.iter().any(|d| is_alone(&d.rec))
}

fn has(flags: u8, flag: u32) -> bool {
    u32::from(flags) & flag != 0
}

/// Converts an error for callers that match on its kind: libbpf-rs keeps the cause inside.
pub(crate) fn to_io(e: libbpf_rs::Error) -> io::Error {
    let kind = match e.kind() {
        libbpf_rs::ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
        libbpf_rs::ErrorKind::NotFound => io::ErrorKind::NotFound,
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("{e:#}"))
}
