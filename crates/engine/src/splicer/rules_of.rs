//! The rules of a splicer.

use std::io;

use longsplice_dataplane::Dataplane;

use super::{Inner, Splicer};
use crate::rules;

impl Splicer {
    /// Puts rules for packets that come in, in their order, in the place of those before: at once, a packet sees the old ones
    /// or the new ones. They end with the splicer or the process. What belongs to a spliced flow does not come to them.
    ///
    /// # Errors
    /// [`rules::RulesError`]; those before are still in force.
    pub async fn set_rules(&self, rules: Vec<rules::Rule>) -> Result<(), rules::RulesError> {
        let inner = self.inner.clone();
        let set = move || {
            let plane = inner.plane_for_rules()?;
            let set = inner.upkeep.work(|| inner.rules.set(plane, rules));
            set.unwrap_or_else(|| Err(rules::RulesError::Unavailable("the splicer has ended".into())))
        };
        // The kernel waits until no packet looks at the old ones.
        tokio::task::spawn_blocking(set)
            .await
            .map_err(|e| rules::RulesError::System(e.to_string()))?
    }

    /// The rules in force, and what they have seen. Reads counters of each CPU, and waits while rules are set: a task should leave
    /// it to `spawn_blocking`.
    pub fn rules(&self) -> rules::RulesInfo {
        self.inner.rules.info()
    }

    /// The packets that rules have for a program. There is one reader for an instance.
    ///
    /// # Errors
    /// [`rules::RulesError::Unavailable`], [`rules::RulesError::System`].
    pub fn rule_packets(&self) -> Result<rules::RulePackets, rules::RulesError> {
        self.inner.rules.packets(self.inner.plane_for_rules()?)
    }

    /// Has a packet that a program was asked about come in where it came from, as it stands now, its TCP checksum put right.
    /// Rules that ask or copy leave it alone; the others are asked again.
    ///
    /// # Errors
    /// Its interface is gone; or it has over 3,000 bytes, which no packet that opens a connection has.
    pub fn let_in(&self, packet: &rules::RulePacket) -> io::Result<()> {
        let plane = self.inner.plane_for_rules().map_err(io::Error::other)?;
        self.inner.rules.let_in(plane, packet)
    }
}

impl Inner {
    fn plane_for_rules(&self) -> Result<&Dataplane, rules::RulesError> {
        let why = || {
            self.why_not
                .as_ref()
                .map(|(why, _)| why.clone())
                .unwrap_or_default()
        };
        self.plane
            .as_deref()
            .ok_or_else(|| rules::RulesError::Unavailable(why()))
    }
}
