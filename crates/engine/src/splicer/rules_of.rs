//! Sets and reads the rules of a splicer.

use std::io;

use longsplice_dataplane::Dataplane;

use super::Splicer;
use crate::{
    context::Context,
    kernel::Kernel,
    services::rules::{self, Scope},
};

impl Splicer {
    /// Replaces the rules for packets that come in, in their order. The change is atomic: a packet sees the old ones or
    /// the new ones. They end with the splicer or the process. Packets of a spliced flow do not come to them: what rules
    /// with [`rules::Match::spliced`] say is decided for each flow, and has been when this returns. It outlives the
    /// process, and holds until the next one calls this, or [`Splicer::lift_predecessors_rules`].
    ///
    /// # Errors
    /// Returns [`rules::RulesError`]; the rules before are still in force.
    pub async fn set_rules(&self, rules: Vec<rules::Rule>) -> Result<(), rules::RulesError> {
        self.replace_rules(rules, Scope::All).await
    }

    /// Replaces the rules for packets, as [`Splicer::set_rules`] does. Those before hold on for spliced flows: a process
    /// whose successor sets the rules leaves the packets to it so. [`Splicer::rules`] has no counts of flows from now on.
    ///
    /// # Errors
    /// Returns [`rules::RulesError`]; the rules before are still in force.
    pub async fn set_packet_rules(&self, rules: Vec<rules::Rule>) -> Result<(), rules::RulesError> {
        self.replace_rules(rules, Scope::Packets).await
    }

    async fn replace_rules(&self, rules: Vec<rules::Rule>, scope: Scope) -> Result<(), rules::RulesError> {
        let context = self.context.clone();
        let set = move || {
            let plane = context.plane_for_rules()?;
            let set = context.maintenance.run(|| context.rules.set(plane, rules, scope));
            set.unwrap_or_else(|| Err(rules::RulesError::Unavailable("the splicer has ended".into())))
        };
        // Use a blocking thread: the kernel waits until no packet looks at the old rules.
        tokio::task::spawn_blocking(set)
            .await
            .map_err(|e| rules::RulesError::System(e.to_string()))?
    }

    /// Lifts what the rules of a predecessor say of its spliced flows, unless [`Splicer::set_rules`] was called.
    pub async fn lift_predecessors_rules(&self) {
        let lift =
            |context: &Context, kernel: &Kernel| context.rules.spliced.lift_predecessors(&kernel.plane);
        if let Some(Err(error)) = self.context.run_blocking(lift).await {
            tracing::warn!(%error, "the rules of a predecessor hold on for its flows");
        }
    }

    /// Returns the rules in force, and their counters. Reads counters of each CPU, and blocks while rules are set: a task
    /// should leave it to `spawn_blocking`.
    pub fn rules(&self) -> rules::RulesInfo {
        self.context
            .rules
            .info(self.context.plane().map(|plane| &**plane))
    }

    /// Returns true if no other process serves this instance: neither a predecessor that ends its last connections, nor a
    /// successor that starts. False if this splicer only relays, which does not see them.
    pub fn is_only_process(&self) -> bool {
        self.context
            .plane()
            .is_some_and(|plane| !plane.has_served_siblings())
    }

    /// Returns true if another process serves this instance. False if this splicer only relays, which does not see it.
    pub fn sees_other_process(&self) -> bool {
        self.context
            .plane()
            .is_some_and(|plane| plane.has_served_siblings())
    }

    /// Returns the reader of packets that rules send to a program. There is one reader for an instance.
    ///
    /// # Errors
    /// [`rules::RulesError::Unavailable`], [`rules::RulesError::System`].
    pub fn rule_packets(&self) -> Result<rules::RulePackets, rules::RulesError> {
        self.context.rules.packets(self.context.plane_for_rules()?)
    }

    /// Injects a packet that a program was asked about at its interface, in its present form, with its TCP checksum set.
    /// Rules that ask or copy leave it alone; the other rules apply again.
    ///
    /// # Errors
    /// Returns an error if its interface is gone, or if it has over 3,000 bytes, which no packet that opens a connection
    /// has.
    pub fn let_in(&self, packet: &rules::RulePacket) -> io::Result<()> {
        let plane = self.context.plane_for_rules().map_err(io::Error::other)?;
        self.context.rules.let_in(plane, packet)
    }
}

impl Context {
    fn plane_for_rules(&self) -> Result<&Dataplane, rules::RulesError> {
        let why = || {
            self.why_not
                .as_ref()
                .map(|(why, _)| why.clone())
                .unwrap_or_default()
        };
        self.plane()
            .map(|plane| &**plane)
            .ok_or_else(|| rules::RulesError::Unavailable(why()))
    }
}
