//! Makes the rules of the listeners and of the accelerator.

use std::sync::Arc;

use longsplice_engine::{
    intercept::own_addresses,
    rules::{self, Action, Rule, RulesError},
};

use crate::config::{AccelerateConfig, Config, ListenerConfig, rule_name};

/// Rules of the listeners and of the accelerator.
#[derive(Debug, Default)]
pub(super) struct Fixed {
    all: Vec<Rule>,
    /// Those without which the daemon does not work. The others pass what is for this host itself, which the kernel half
    /// and the accelerator tell apart as well, if later.
    needed: Vec<Rule>,
    /// Those that connections of earlier listeners need in addition.
    earlier: Vec<Rule>,
}

/// Returns the part of a rule that connections need which are open already.
pub(super) fn following(rule: Rule) -> Option<Rule> {
    match rule.action {
        Action::Deliver { .. } => Some(Rule {
            action: Action::Follow,
            ..rule
        }),
        Action::Pass | Action::Follow => Some(rule),
        _ => None,
    }
}

impl Fixed {
    pub(super) fn of(config: &Config, accelerate: Option<&AccelerateConfig>) -> Result<Fixed, RulesError> {
        let mut needed: Vec<Rule> = config.listeners.iter().flat_map(|l| l.rules()).collect();
        let mut all = needed.clone();
        if let Some(accelerate) = accelerate {
            let own =
                own_addresses().map_err(|e| RulesError::System(format!("the host's addresses: {e}")))?;
            all.extend(accelerate.rules(&own));
            needed.extend(accelerate.rules(&[]));
        }
        Ok(Fixed {
            all,
            needed,
            earlier: Vec::new(),
        })
    }

    /// Follows the connections of earlier listeners which the rules in force do not follow. They open nothing.
    pub(super) fn follow(&mut self, earlier: &[Arc<ListenerConfig>]) {
        let mut found: Vec<Rule> = Vec::new();
        for rule in earlier.iter().flat_map(|l| l.rules()).filter_map(following) {
            let has_it = |other: &Rule| {
                let follows = matches!(other.action, Action::Deliver { .. } | Action::Follow);
                follows && other.matching == rule.matching
            };
            if rule.action == Action::Follow && !self.all.iter().chain(&found).any(has_it) {
                let name = rule_name(&format!("earlier {}: {}", found.len() + 1, rule.name));
                found.push(Rule { name, ..rule });
            }
        }
        self.earlier = found;
    }

    /// Returns the whole set, the user's rules first. A host may have more addresses than a set has room for: leaves out all
    /// that is not needed then, and logs it once. Rules of earlier listeners are left out if there is no room for them
    /// either.
    pub(super) fn behind(&self, users: &[Rule], has_left_out: &mut bool) -> Vec<Rule> {
        let whole = [users, &self.all, &self.earlier].concat();
        if rules::check(&whole).is_ok() {
            *has_left_out = false;
            return whole;
        }
        let least = [users, &self.needed, &self.earlier].concat();
        if rules::check(&least).is_ok() {
            if !std::mem::replace(has_left_out, true) {
                tracing::info!(
                    left_out = self.all.len() - self.needed.len(),
                    "this host has too many addresses for a rule of each: the daemon is asked about handshakes with the host \
                     itself, too, and lets them in"
                );
            }
            return least;
        }
        if !self.earlier.is_empty() {
            tracing::warn!(
                left_out = self.earlier.len(),
                "the set of rules has no room for those of earlier listeners: their open connections stand still"
            );
        }
        [users, &self.needed].concat()
    }
}
