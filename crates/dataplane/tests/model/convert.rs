//! Converts the state of the machine into that of the kernel half, and back: field by field.

use longsplice_core::seq::{Offset, Seq};
use longsplice_model::{Flow, Leg, Mode, Placement, Record, Slot};

use crate::support::raw::types::{ls_leg, ls_mode, ls_placement, ls_record, ls_slot, ls_trait};

const MODES: [(Mode, ls_mode); 10] = [
    (Mode::Free, ls_mode::LS_FREE),
    (Mode::Track, ls_mode::LS_TRACK),
    (Mode::Drain, ls_mode::LS_DRAIN),
    (Mode::Final, ls_mode::LS_FINAL),
    (Mode::Replaced, ls_mode::LS_REPLACED),
    (Mode::Aborted, ls_mode::LS_ABORTED),
    (Mode::Undrain, ls_mode::LS_UNDRAIN),
    (Mode::Waking, ls_mode::LS_WAKING),
    (Mode::Moved, ls_mode::LS_MOVED),
    (Mode::Freeze, ls_mode::LS_FREEZE),
];

const PLACEMENTS: [(Placement, ls_placement); 3] = [
    (Placement::Detached, ls_placement::LS_DETACHED),
    (Placement::Slotted, ls_placement::LS_SLOTTED),
    (Placement::Alone, ls_placement::LS_ALONE),
];

/// Traits that the machine does not model.
const ADDRESSING: u8 =
    (ls_trait::LS_SIDE_SERVER.0 | ls_trait::LS_FAR_LOCAL.0 | ls_trait::LS_ECN.0 | ls_trait::LS_FAMILIES.0)
        as u8;

/// Writes the machine's record over the kernel half's, which has addresses besides.
pub fn write_record(to: &mut ls_record, from: &Record) {
    to.seq_off = from.seq_off.raw();
    to.ack_off = from.ack_off.raw();
    to.tsval_off = from.tsval_off.raw();
    to.tsecr_off = from.tsecr_off.raw();
    to.scales = from.wscale_in | from.wscale_out << 4;
    to.traits = (to.traits & ADDRESSING) | from.traits;
    let placement = PLACEMENTS
        .iter()
        .find(|(p, _)| *p == from.placement)
        .expect("a placement")
        .1;
    let armed = if from.armed { ls_placement::LS_ARMED.0 } else { 0 };
    to.placement = (placement.0 | armed) as u8;
    to.seen = from.seen;
    to.rx_end = from.rx_end.raw();
    to.rx_ack = from.rx_ack.raw();
    to.rx_edge = from.rx_edge.raw();
    to.ts_high = from.ts_high.raw();
    to.trap = from.trap.raw();
    (to.bytes_high, to.bytes_low) = ((from.bytes >> 32) as u16, from.bytes as u32);
}

pub fn read_record(rec: &ls_record) -> Record {
    Record {
        seq_off: Offset::new(rec.seq_off),
        ack_off: Offset::new(rec.ack_off),
        tsval_off: Offset::new(rec.tsval_off),
        tsecr_off: Offset::new(rec.tsecr_off),
        wscale_in: rec.scales & 15,
        wscale_out: rec.scales >> 4,
        traits: rec.traits & !ADDRESSING,
        placement: PLACEMENTS
            .iter()
            .find(|(_, p)| p.0 == u32::from(rec.placement) & !ls_placement::LS_ARMED.0)
            .expect("a placement")
            .0,
        seen: rec.seen,
        armed: u32::from(rec.placement) & ls_placement::LS_ARMED.0 != 0,
        rx_end: Seq::new(rec.rx_end),
        rx_ack: Seq::new(rec.rx_ack),
        rx_edge: Seq::new(rec.rx_edge),
        ts_high: Seq::new(rec.ts_high),
        trap: Seq::new(rec.trap),
        bytes: u64::from(rec.bytes_high) << 32 | u64::from(rec.bytes_low),
    }
}

fn write_leg(to: &mut ls_leg, from: &Leg) {
    write_record(&mut to.rec, &from.rec);
    to.cut = from.cut.raw();
    to.rx_ts = from.rx_ts.raw();
    to.loc_acked = from.loc_acked.raw();
    to.loc_end = from.loc_end.raw();
    to.loc_ack = from.loc_ack.raw();
    to.loc_edge = from.loc_edge.raw();
    to.tx_ack = from.tx_ack.raw();
    to.tx_edge = from.tx_edge.raw();
    to.max_inflight = from.max_inflight;
    to.adj_seq = from.adj_seq.raw();
    to.adj_ack = from.adj_ack.raw();
    to.base = from.base.raw();
    to.bypassed = from.bypassed;
    to.delivered = from.delivered.raw();
    to.rx_shrunk = from.rx_shrunk;
    to.loc_shrunk = from.loc_shrunk;
}

fn read_leg(leg: &ls_leg) -> Leg {
    Leg {
        // Meaningless within a slot.
        rec: Record {
            placement: Placement::Detached,
            ..read_record(&leg.rec)
        },
        cut: Seq::new(leg.cut),
        rx_ts: Seq::new(leg.rx_ts),
        loc_acked: Seq::new(leg.loc_acked),
        loc_end: Seq::new(leg.loc_end),
        loc_ack: Seq::new(leg.loc_ack),
        loc_edge: Seq::new(leg.loc_edge),
        tx_ack: Seq::new(leg.tx_ack),
        tx_edge: Seq::new(leg.tx_edge),
        max_inflight: leg.max_inflight,
        adj_seq: Offset::new(leg.adj_seq),
        adj_ack: Offset::new(leg.adj_ack),
        base: Seq::new(leg.base),
        bypassed: leg.bypassed,
        delivered: Seq::new(leg.delivered),
        rx_shrunk: leg.rx_shrunk,
        loc_shrunk: leg.loc_shrunk,
    }
}

pub fn write_slot(to: &mut ls_slot, from: &Slot) {
    to.mode = MODES.iter().find(|(m, _)| *m == from.mode).expect("a mode").1.0;
    to.flags = from.flags;
    for (to, from) in to.leg.iter_mut().zip(&from.leg) {
        write_leg(to, from);
    }
}

pub fn read_slot(slot: &ls_slot) -> Slot {
    Slot {
        mode: MODES.iter().find(|(_, m)| m.0 == slot.mode).expect("a mode").0,
        flags: slot.flags,
        leg: [read_leg(&slot.leg[0]), read_leg(&slot.leg[1])],
    }
}

/// Prints a line for each field.
fn pretty(flow: &Flow) -> String {
    let mut text = String::new();
    for line in format!("{flow:#?}").lines() {
        match line.trim_start().chars().next() {
            _ if line.ends_with("Seq(") || line.ends_with("Offset(") => {
                text += &line[..line.find(':').expect("a field") + 2];
            }
            Some('0'..='9') => text = text + line.trim() + "\n",
            Some(')') if !text.ends_with("}\n") => {}
            _ => text = text + line + "\n",
        }
    }
    text
}

/// Prints all of it on a line for each leg.
pub fn brief(flow: &Flow) -> String {
    let text = format!("{flow:?}")
        .replace("Seq(", "")
        .replace("Offset(", "")
        .replace("), ", ", ");
    text.replace("Leg {", "\n  Leg {").replace("slot:", "\nslot:")
}

/// Returns the fields in which two states differ, or `None`.
pub fn difference(kernel: &Flow, machine: &Flow) -> Option<String> {
    let mut machine = *machine;
    for leg in &mut machine.slot.leg {
        leg.rec.placement = Placement::Detached;
    }
    if *kernel == machine {
        return None;
    }
    let (k, m) = (pretty(kernel), pretty(&machine));
    let mut path: Vec<&str> = Vec::new();
    let mut text = String::new();
    for (a, b) in k.lines().zip(m.lines()) {
        let depth = (a.len() - a.trim_start().len()) / 4;
        path.truncate(depth);
        path.push(a.trim());
        if a != b {
            text += &format!("  {}: the machine has {}\n", path.join(" "), b.trim());
        }
    }
    Some(text)
}
