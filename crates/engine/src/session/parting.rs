//! Gives up the slot of a pair that came back, or was not spliced in the end, and is relayed on.

use longsplice_dataplane::Side;
use tokio::time::Instant;

use super::{
    looks::LOOK,
    pair::{Parting, Session},
};
use crate::{flow::Flow, services::unpaired::SHARE};

impl Session<'_> {
    /// Keeps a flow while the pair is relayed: it may be spliced again soon.
    pub(super) fn keep_flow(&mut self, flow: Flow) {
        self.flow = Some(flow);
        self.parting = None;
    }

    /// Returns the time of the next step of the parting.
    pub(super) fn parts_at(&self) -> Option<Instant> {
        self.flow.as_ref().and(self.parting).map(|parting| parting.at)
    }

    /// Parts the legs of a pair that is settled and was not spliced for a while: others need its slot to come back.
    pub(super) fn part_in_time(&mut self, now: Instant) {
        let Some(flow) = &self.flow else { return };
        let first = Parting {
            at: now + SHARE,
            is_announced: false,
        };
        let Parting { at, is_announced } = *self.parting.get_or_insert(first);
        if now < at {
            return;
        }
        if !flow.is_quiescent() || flow.is_cut_off() {
            // Its sockets are about to report that.
            let at = now + LOOK;
            self.parting = Some(Parting { at, is_announced });
        } else if !is_announced && !flow.is_told() {
            // An end that was offered less than its socket takes is told now: nothing reminds it later.
            flow.stop_coupling();
            self.parting = Some(Parting {
                at: now + SHARE,
                is_announced: true,
            });
        } else if let Some(flow) = self.flow.take() {
            self.part(flow);
        }
    }

    /// Parts the legs of its flow. The records of the next one count from 0.
    fn part(&mut self, flow: Flow) {
        // Without a base, the next flow's records are told of earlier calls as it begins.
        if self.base_bytes.is_some() {
            let counted = flow.directions();
            for side in Side::BOTH {
                self.unrecorded[side] += counted[side].bytes;
            }
        }
        self.context.unpaired.part(flow);
        self.parting = None;
    }
}
