//! Moves a flow between slot and records, while segments pass: `demote` and `promote` of `flow_ops.bpf.c`, step by
//! step.

use super::{
    state::{Flow, Mode, Placement, Record, Side, seq_advance},
    steps::Steps,
};

/// Direction in which a flow moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the slot to the records: dormant to detached.
    Demote,
    /// From the records to the slot, which is in mode FINAL already.
    Promote,
}

/// Flow on its way between its slot and its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    direction: Direction,
    step: u8,
}

/// Merges what a segment notes only once it may pass, so that nothing goes back.
fn merge_late(to: &mut Record, from: &Record) {
    to.seen |= from.seen;
    seq_advance(&mut to.ts_high, from.ts_high);
}

/// Merges the second half of a record, so that nothing goes back: a segment may have noted more on either side.
fn merge(to: &mut Record, from: &Record) {
    merge_late(to, from);
    seq_advance(&mut to.rx_end, from.rx_end);
    seq_advance(&mut to.rx_ack, from.rx_ack);
    seq_advance(&mut to.rx_edge, from.rx_edge);
}

impl Transfer {
    /// Begins a transfer.
    #[must_use]
    pub fn new(direction: Direction) -> Transfer {
        Transfer { direction, step: 0 }
    }

    /// Returns the direction.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }
}

impl Steps for Transfer {
    type End = ();

    /// Takes one step.
    fn step(&mut self, flow: &mut Flow) -> Option<()> {
        let step = self.step;
        self.step = step.saturating_add(1);
        let is_last = match self.direction {
            Direction::Demote => demote(flow, step),
            Direction::Promote => promote(flow, step),
        };
        is_last.then_some(())
    }
}

fn demote(flow: &mut Flow, step: u8) -> bool {
    // A packet may wake the pair until this step: the first of the two has the flow.
    if step == 0 {
        return flow.slot.mode != Mode::Moved && !flow.transition(Mode::Final, Mode::Moved);
    }
    let side = if step.is_multiple_of(2) {
        Side::Client
    } else {
        Side::Server
    };
    let from = flow.leg(side).rec;
    match (step, &mut flow.records[side]) {
        (1 | 2, Some(rec)) if rec.placement == Placement::Slotted => {
            *rec = Record {
                placement: Placement::Detached,
                ..from
            };
        }
        (3 | 4, Some(rec)) if rec.placement == Placement::Detached => merge_late(rec, &from),
        _ => {}
    }
    step >= 4
}

fn promote(flow: &mut Flow, step: u8) -> bool {
    if step == 0 {
        copy(flow);
        return false;
    }
    let side = if step < 3 { Side::Client } else { Side::Server };
    if let Some(rec) = &mut flow.records[side] {
        if step.is_multiple_of(2) {
            let leg = &mut flow.slot.leg[side];
            merge(&mut leg.rec, rec);
            // The record lacks this field; use the least value that it can have.
            leg.rx_ts = leg.rec.ts_high - leg.rec.tsval_off;
        } else {
            rec.placement = Placement::Slotted;
        }
    }
    step >= 4
}

/// Fills the slot before programs can find it; later steps merge what was noted meanwhile.
fn copy(flow: &mut Flow) {
    for side in Side::BOTH {
        if let Some(rec) = flow.records[side] {
            flow.slot.leg[side].rec = rec;
        }
    }
    for side in Side::BOTH {
        let (from, to) = flow.legs(side);
        // Note the last promises to the ends, as far as the far ends' segments show them.
        from.tx_ack = to.rec.rx_ack + to.rec.ack_off;
        from.tx_edge = to.rec.rx_edge + to.rec.ack_off;
    }
}
