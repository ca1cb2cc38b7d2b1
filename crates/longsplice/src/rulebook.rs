//! The rules of a daemon: those that its user sets, before those by which listeners intercept.

use longsplice_engine::{
    Splicer,
    intercept::{Routing, RoutingError},
    rules::{Family, Rule, RulesError, RulesInfo},
};

use crate::config::Config;

/// Why a daemon could not set up what its configuration says of packets.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The rules.
    #[error("cannot put the rules in force: {0}")]
    Rules(#[from] RulesError),
    /// The routing.
    #[error(transparent)]
    Routing(#[from] RoutingError),
}

/// Sets rules, and keeps those of the listeners among them.
#[derive(Debug)]
pub struct RuleBook {
    splicer: Splicer,
    /// Those of the listeners.
    fixed: Vec<Rule>,
}

/// Puts in force what the configuration says of packets. What a killed predecessor has left of its routes goes in any case. The
/// routes that are needed are there until the second value is dropped, which nobody else is to hold.
///
/// # Errors
/// [`SetupError`]; nothing is left then.
pub async fn set_up(config: &Config, splicer: &Splicer) -> Result<(RuleBook, Option<Routing>), SetupError> {
    if let Err(error) = Routing::clear(config.instance.as_str()) {
        tracing::warn!(%error, "the routes of a predecessor could not be looked for");
    }
    let book = RuleBook {
        splicer: splicer.clone(),
        fixed: config.listeners.iter().flat_map(|l| l.rules()).collect(),
    };
    // First the way, then what is sent on it.
    let routing = routing(config)?;
    if !(book.fixed.is_empty() && config.rules.is_empty()) {
        book.load(config.rules.clone()).await?;
    }
    Ok((book, routing))
}

fn routing(config: &Config) -> Result<Option<Routing>, RoutingError> {
    let mut interfaces = Vec::new();
    let mut families = Vec::new();
    for listener in &config.listeners {
        let Some(intercept) = &listener.intercept else {
            continue;
        };
        interfaces.extend(intercept.all_interfaces());
        for family in listener.listen.iter().map(|a| Family::of(a.ip())) {
            if !families.contains(&family) {
                families.push(family);
            }
        }
    }
    interfaces.sort();
    interfaces.dedup();
    match interfaces.is_empty() {
        true => Ok(None),
        false => Routing::set(config.instance.as_str(), &interfaces, &families).map(Some),
    }
}

impl RuleBook {
    /// Puts the user's rules in force, in the place of those before.
    ///
    /// # Errors
    /// [`RulesError`]; those before are still in force.
    pub async fn load(&self, mut rules: Vec<Rule>) -> Result<(), RulesError> {
        rules.extend(self.fixed.iter().cloned());
        self.splicer.set_rules(rules).await
    }

    /// All of them, and what they have seen.
    pub fn info(&self) -> RulesInfo {
        self.splicer.rules()
    }
}
