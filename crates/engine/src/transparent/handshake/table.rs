//! Holds the handshakes under way, and counts them by their stage.

use std::collections::HashMap;

use super::{
    PATIENCE,
    pending::{Ends, Pending, Stage},
};

/// Handshakes under way, by the addresses of their ends. All that adds, replaces or drops one of them, or its stage, goes
/// through this table, which counts.
#[derive(Debug, Default)]
pub(super) struct Table {
    pending: HashMap<Ends, Pending>,
    counts: Counts,
}

/// Numbers of handshakes in the stages that are limited.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    unanswered: usize,
    unconfirmed: usize,
}

impl Counts {
    fn add(&mut self, stage: &Stage) {
        if let Some(count) = self.of(stage) {
            *count += 1;
        }
    }

    fn remove(&mut self, stage: &Stage) {
        if let Some(count) = self.of(stage) {
            *count -= 1;
        }
    }

    fn of(&mut self, stage: &Stage) -> Option<&mut usize> {
        match stage {
            Stage::Asked => Some(&mut self.unanswered),
            Stage::Unconfirmed(_) => Some(&mut self.unconfirmed),
            Stage::Passed | Stage::Answered(_) => None,
        }
    }
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of those without an answer.
    pub(super) fn unanswered(&self) -> usize {
        self.counts.unanswered
    }

    /// Returns the number of those whose client has not acknowledged the answer.
    pub(super) fn unconfirmed(&self) -> usize {
        self.counts.unconfirmed
    }

    pub(super) fn get(&self, ends: &Ends) -> Option<&Pending> {
        self.pending.get(ends)
    }

    /// Returns a handshake to be changed, but for its stage, which [`Table::set_stage`] replaces.
    pub(super) fn get_mut(&mut self, ends: &Ends) -> Option<&mut Pending> {
        self.pending.get_mut(ends)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Ends, &Pending)> {
        self.pending.iter()
    }

    /// Adds a handshake, in place of an older one between these ends.
    pub(super) fn insert(&mut self, ends: Ends, pending: Pending) {
        self.counts.add(&pending.stage);
        if let Some(replaced) = self.pending.insert(ends, pending) {
            self.counts.remove(&replaced.stage);
        }
    }

    pub(super) fn remove(&mut self, ends: &Ends) {
        if let Some(removed) = self.pending.remove(ends) {
            self.counts.remove(&removed.stage);
        }
    }

    /// Replaces the stage of a handshake. Returns the one before.
    pub(super) fn set_stage(&mut self, ends: &Ends, stage: Stage) -> Option<Stage> {
        let known = self.pending.get_mut(ends)?;
        self.counts.add(&stage);
        let before = std::mem::replace(&mut known.stage, stage);
        self.counts.remove(&before);
        Some(before)
    }

    /// Forgets handshakes that were begun too long ago, but for those whose client has not acknowledged the answer.
    pub(super) fn forget_old(&mut self) {
        self.pending.retain(|_, p| {
            let stays = p.since.elapsed() < PATIENCE || matches!(p.stage, Stage::Unconfirmed(_));
            if !stays {
                self.counts.remove(&p.stage);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{
        FlowHandle,
        services::rules::RulePacket,
        transparent::handshake::{
            opening::{Opening, SYN, tests::frame},
            pending::{Answered, Unconfirmed},
            step::Step,
            unheard::Unheard,
        },
    };

    fn pending(stage: Stage) -> (Ends, Pending) {
        let syn = Opening::read(&frame(SYN, 64, &[], 0)).unwrap();
        let pending = Pending {
            interface: 1,
            since: Instant::now(),
            sent_at: 0,
            repeated: false,
            stage,
            syn: syn.clone(),
        };
        ((syn.from, syn.to), pending)
    }

    fn answered() -> Answered {
        Answered {
            onward: Vec::new(),
            acknowledgement: None,
            built_at: Instant::now(),
            sent_at: None,
            handle: FlowHandle::default(),
        }
    }

    fn unconfirmed() -> Stage {
        let ((client, server), Pending { syn, .. }) = pending(Stage::Asked);
        Stage::Unconfirmed(Box::new(Unconfirmed {
            answered: answered(),
            sockets: Unheard::default(),
            step: Step {
                client,
                server,
                client_interface: 1,
                answer: None,
                has_unknown_options: false,
                is_known_server: false,
                is_beyond_limit: false,
                unconfirmed: 0,
                window: 0,
            },
            packet: RulePacket {
                rule: 0,
                copy: false,
                ifindex: 1,
                at: 0,
                packet: Vec::new(),
            },
            acknowledged_at: None,
            built_in: Duration::ZERO,
            seq: syn.seq,
            ack: syn.ack,
        }))
    }

    const STAGES: [fn() -> Stage; 4] = [
        || Stage::Asked,
        || Stage::Passed,
        unconfirmed,
        || Stage::Answered(answered()),
    ];

    /// Fails unless the counts are those of a table that has nothing but a handshake in this stage.
    fn assert_counts(table: &Table, stage: Option<&Stage>) {
        let expected = Counts {
            unanswered: usize::from(matches!(stage, Some(Stage::Asked))),
            unconfirmed: usize::from(matches!(stage, Some(Stage::Unconfirmed(_)))),
        };
        assert_eq!(table.counts, expected, "{stage:?}");
    }

    #[test]
    fn a_handshake_counts_in_its_present_stage_only() {
        for before in STAGES {
            for after in STAGES {
                let mut table = Table::default();
                let (ends, first) = pending(before());
                table.insert(ends, first);
                assert_counts(&table, Some(&before()));
                table.set_stage(&ends, after());
                assert_counts(&table, Some(&after()));
                // Another SYN between the same ends replaces it.
                table.insert(ends, pending(before()).1);
                assert_counts(&table, Some(&before()));
                table.insert(ends, pending(after()).1);
                assert_counts(&table, Some(&after()));
                table.remove(&ends);
                assert_counts(&table, None);
                assert!(table.set_stage(&ends, before()).is_none());
                assert_counts(&table, None);
            }
        }
    }

    #[test]
    fn an_old_handshake_counts_as_long_as_it_is_remembered() {
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        for stage in STAGES {
            let mut table = Table::default();
            let (ends, recent) = pending(stage());
            table.insert(ends, recent);
            table.forget_old();
            assert_counts(&table, Some(&stage()));
            table.get_mut(&ends).unwrap().since = long_ago;
            table.forget_old();
            let is_waiting = matches!(stage(), Stage::Unconfirmed(_));
            assert_eq!(table.get(&ends).is_some(), is_waiting);
            assert_counts(&table, Some(&stage()).filter(|_| is_waiting));
        }
    }
}
