//! Decides what the rules say of spliced flows, and counts for the rules (docs/decisions/0040).

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use longsplice_core::rules::{FlowDecision, Rule, decide};
use longsplice_dataplane::{Dataplane, Leg, PerSide, RuledCounts, Ruling};
use parking_lot::Mutex;

use crate::{
    api::{FlowId, FlowRuled},
    services::sighting::Sighting,
};

/// Counts of a rule for spliced flows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FlowCounts {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) flows: u64,
    pub(crate) dropped: u64,
}

/// Holds the flows that match a rule.
#[derive(Debug, Default)]
pub(crate) struct SplicedFlows {
    state: Mutex<State>,
    /// False if no rule is for spliced flows, and no flow has a ruling.
    is_busy: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    rules: Arc<[Rule]>,
    /// Number of the set of rules; 0: none was set yet.
    set: u64,
    flows: HashMap<u32, Matched>,
    /// Counts of the present rules, but for the segments of flows in `flows`.
    counts: Vec<FlowCounts>,
    /// Parity of the current or last walk: it flips with each walk.
    walk: bool,
}

/// Flow that matches rules.
#[derive(Debug)]
struct Matched {
    /// [`State::set`] of its rules.
    set: u64,
    /// Indices of the rules.
    rules: Vec<usize>,
    /// True if the last rule drops or limits.
    decides: bool,
    sighting: Sighting,
}

impl SplicedFlows {
    /// Puts rules in force for flows that are spliced from now on. Returns true if [`SplicedFlows::judge_all`] has to decide
    /// about the others.
    pub(crate) fn set(&self, rules: Arc<[Rule]>) -> bool {
        let mut state = self.state.lock();
        state.counts = vec![FlowCounts::default(); rules.len()];
        state.rules = rules;
        state.set += 1;
        let is_busy = state.is_busy();
        self.is_busy.store(is_busy, Ordering::SeqCst);
        is_busy || state.set == 1
    }

    /// Decides about all flows by the present rules, and lifts rulings of a predecessor that none of them makes. Each flow
    /// changes at one moment, within this call. Fails if the flows cannot be read.
    pub(crate) fn judge_all(&self, plane: &Dataplane) -> io::Result<()> {
        plane.scan_flows(|directions| {
            if let Some((a, b)) = directions.complete() {
                let ruled = a.ruled || b.ruled;
                self.judge(plane, a.serial, PerSide::new(a.leg, b.leg), ruled);
            }
        })?;
        // Forget what a predecessor said of flows that have ended since.
        for serial in plane.ruled_flows() {
            let state = self.state.lock();
            if !state.flows.contains_key(&serial) {
                plane.forget_ruling(serial);
            }
        }
        Ok(())
    }

    /// Decides about one flow that is spliced now. `ruled`: its records are marked already, maybe by a predecessor.
    pub(crate) fn judge(&self, plane: &Dataplane, serial: u32, legs: PerSide<Leg>, ruled: bool) {
        if !ruled && !self.is_busy.load(Ordering::SeqCst) {
            return;
        }
        let mut state = self.state.lock();
        let decision = decide(&state.rules, legs.map(|leg| (leg.peer, leg.local)));
        let done = match decision {
            None => {
                let had = state.flows.remove(&serial).is_some();
                match had || ruled {
                    true => plane.lift_ruling(legs.client, serial),
                    false => Ok(()),
                }
            }
            // Its counts go on.
            Some(_) if state.flows.get(&serial).is_some_and(|m| m.set == state.set) => {
                plane.hold_ruling(legs.client, serial).map(drop)
            }
            Some(decision) => state.put(plane, serial, legs, decision),
        };
        if let Err(error) = done {
            tracing::error!(%error, flow = serial, "what the rules say of a spliced flow does not hold");
        }
    }

    /// Lifts the rulings of a predecessor, unless rules were set here already. Fails if the flows cannot be read.
    pub(crate) fn lift_predecessors(&self, plane: &Dataplane) -> io::Result<()> {
        let is_first = self.state.lock().set == 0;
        match is_first && self.set(Arc::default()) {
            true => self.judge_all(plane),
            false => Ok(()),
        }
    }

    /// Returns the counts of the present rules, in their order.
    pub(crate) fn counts(&self, plane: Option<&Dataplane>) -> Vec<FlowCounts> {
        let state = self.state.lock();
        let mut counts = state.counts.clone();
        if let Some(plane) = plane {
            for (&serial, matched) in state.flows.iter().filter(|(_, m)| m.set == state.set) {
                matched.add_to(&mut counts, plane.ruled_counts(serial));
            }
        }
        counts
    }

    /// Returns the names of the rules that a flow matches, and the counts of its segments.
    pub(crate) fn of_flow(&self, plane: &Dataplane, id: FlowId) -> (Vec<String>, Option<FlowRuled>) {
        if !self.is_busy.load(Ordering::SeqCst) {
            return (Vec::new(), None);
        }
        let state = self.state.lock();
        let Some(matched) = state.flows.get(&id.0).filter(|m| m.set == state.set) else {
            return (Vec::new(), None);
        };
        let names = matched.rules.iter().filter_map(|&rule| state.rules.get(rule));
        let sum = plane.ruled_counts(id.0).map(|counts| {
            counts.iter().fold(FlowRuled::default(), |sum, one| FlowRuled {
                packets: sum.packets + one.packets,
                bytes: sum.bytes + one.bytes,
                dropped: sum.dropped + one.dropped,
            })
        });
        (names.map(|rule| rule.name.clone()).collect(), sum)
    }

    /// Begins a walk over all flows. There is one at a time.
    pub(crate) fn walk(&self) -> Walk<'_> {
        let mut state = self.state.lock();
        state.walk = !state.walk;
        Walk {
            flows: self,
            is_needed: !state.flows.is_empty(),
        }
    }
}

impl State {
    /// Returns true if a rule is for spliced flows, or a flow has a ruling.
    fn is_busy(&self) -> bool {
        !self.flows.is_empty() || self.rules.iter().any(|rule| rule.matching.spliced)
    }

    /// Makes the ruling on a flow.
    fn put(
        &mut self,
        plane: &Dataplane,
        serial: u32,
        legs: PerSide<Leg>,
        FlowDecision { rules, drop, limit }: FlowDecision,
    ) -> io::Result<()> {
        let is_there = plane.rule_flow(legs.client, serial, &Ruling { drop, limit })?;
        if !is_there {
            self.flows.remove(&serial);
            return Ok(());
        }
        for &rule in &rules {
            self.counts[rule].flows += 1;
        }
        let matched = Matched {
            set: self.set,
            rules,
            decides: drop || !limit.is_none(),
            sighting: Sighting::new(self.walk),
        };
        self.flows.insert(serial, matched);
        Ok(())
    }
}

impl Matched {
    /// Adds the counts of its segments to those of its rules.
    fn add_to(&self, all: &mut [FlowCounts], counts: Option<PerSide<RuledCounts>>) {
        let Some(counts) = counts else { return };
        for &rule in &self.rules {
            for one in counts.iter() {
                all[rule].packets += one.packets;
                all[rule].bytes += one.bytes;
            }
        }
        if let Some(&last) = self.rules.last().filter(|_| self.decides) {
            all[last].dropped += counts.iter().map(|one| one.dropped).sum::<u64>();
        }
    }
}

/// Finds the matched flows that have ended.
pub(crate) struct Walk<'a> {
    flows: &'a SplicedFlows,
    /// True if there is a flow to look for.
    is_needed: bool,
}

impl Walk<'_> {
    /// Notes that there is a flow of this number.
    pub(crate) fn see(&mut self, serial: u32) {
        if !self.is_needed {
            return;
        }
        let mut state = self.flows.state.lock();
        let walk = state.walk;
        if let Some(matched) = state.flows.get_mut(&serial) {
            matched.sighting = Sighting::new(walk);
        }
    }

    /// Ends the walk, and forgets the flows that are gone. Their counts stay.
    pub(crate) fn end(self, plane: &Dataplane) {
        if !self.is_needed {
            return;
        }
        let mut state = self.flows.state.lock();
        let State {
            set,
            flows,
            counts,
            walk,
            ..
        } = &mut *state;
        flows.retain(|&serial, matched| {
            if !matched.sighting.is_gone_after(*walk) {
                return true;
            }
            if matched.set == *set {
                matched.add_to(counts, plane.ruled_counts(serial));
            }
            plane.forget_ruling(serial);
            false
        });
        self.flows.is_busy.store(state.is_busy(), Ordering::SeqCst);
    }
}
