//! Holds the rules of a daemon: the user's rules, then those of intercepting listeners; and the routes that these need.

use std::{net::Ipv6Addr, sync::Arc, time::Duration};

use longsplice_engine::{
    Splicer,
    intercept::{Owner, Routing, RoutingError, is_local, own_addresses},
    rules::{self, Action, Family, Rule, RulesError, RulesInfo},
};
use tokio::sync::Mutex;

use crate::config::{AccelerateConfig, Config};

/// Interval between two looks at the routes.
const KEEP: Duration = Duration::from_secs(1);

/// Reason why rules or routes could not be set.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The rules could not be set.
    #[error("cannot put the rules in force: {0}")]
    Rules(#[from] RulesError),
    /// The routing could not be set.
    #[error(transparent)]
    Routing(#[from] RoutingError),
}

/// Sets rules, and keeps those of the listeners among them.
#[derive(Debug)]
pub struct RuleManager {
    instance: String,
    splicer: Splicer,
    accelerates: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fixed: Fixed,
    /// True if rules were left out, which was logged.
    has_left_out: bool,
    routing: Option<Routing>,
    /// Process that removes the routes.
    owner: Owner,
    /// Routes that the configuration in force needs.
    needs: Needs,
    /// True if there may be routes that only a predecessor needs.
    has_predecessor: bool,
}

/// Rules of the listeners and of the accelerator.
#[derive(Debug, Default)]
struct Fixed {
    all: Vec<Rule>,
    /// Those without which the daemon does not work. The others pass what is for this host itself, which the kernel half
    /// and the accelerator tell apart as well, if later.
    needed: Vec<Rule>,
}

/// Interfaces whose packets must be routed to this host, and their families.
#[derive(Debug, Default, Clone)]
struct Needs {
    interfaces: Vec<String>,
    families: Vec<Family>,
}

impl RuleManager {
    /// Sets the rules and routes of a configuration. Unless the routes belong to a running predecessor, it first removes those
    /// that a killed one has left. The needed routes stay until [`RuleManager::end`]. `accelerates`: an accelerator reads the
    /// packets of its section.
    ///
    /// # Errors
    /// [`SetupError`]; nothing but a running predecessor's routes is left then.
    pub async fn set_up(
        config: &Config,
        splicer: &Splicer,
        owner: Owner,
        accelerates: bool,
    ) -> Result<RuleManager, SetupError> {
        if owner == Owner::Us
            && let Err(error) = Routing::clear(config.instance.as_str())
        {
            tracing::warn!(%error, "the routes of a predecessor could not be looked for");
        }
        let state = State {
            fixed: Fixed::default(),
            has_left_out: false,
            routing: None,
            owner,
            needs: Needs::default(),
            has_predecessor: owner == Owner::Other,
        };
        let book = RuleManager {
            instance: config.instance.to_string(),
            splicer: splicer.clone(),
            accelerates,
            state: Mutex::new(state),
        };
        book.change(config).await?;
        splicer.lift_predecessors_rules().await;
        Ok(book)
    }

    /// Sets the rules and routes of the next configuration. Routes that it does not need stay until [`RuleManager::trim`].
    ///
    /// # Errors
    /// [`SetupError`]; the old rules stay in force.
    pub async fn change(&self, config: &Config) -> Result<(), SetupError> {
        let mut state = self.state.lock().await;
        let changed = self.change_state(&mut state, config).await;
        if changed.is_err() {
            state.trim();
        }
        changed
    }

    /// Sets the rules and routes of the next configuration. An error may leave routes that only that one needs.
    async fn change_state(&self, state: &mut State, config: &Config) -> Result<(), SetupError> {
        let accelerate = config.accelerate.as_ref().filter(|_| self.accelerates);
        let needs = Needs::of(config, accelerate);
        // Add routes first: the rules deliver packets over them.
        state.extend(&self.instance, &needs)?;
        let fixed = Fixed::of(config, accelerate)?;
        let rules = fixed.behind(config.rules.clone(), &mut state.has_left_out);
        let in_force = self.splicer.rules().rules;
        // Do not set equal rules again: they continue to count.
        if !in_force.iter().map(|info| &info.rule).eq(&rules) {
            self.splicer.set_rules(rules).await?;
        }
        (state.fixed, state.needs) = (fixed, needs);
        Ok(())
    }

    /// Removes routes that the configuration in force does not need.
    pub async fn trim(&self) {
        self.state.lock().await.trim();
    }

    /// Sets the routes again that another program has removed, each second. Without them connections that are taken over
    /// would bypass this host. Removes what only a predecessor needed, once that has ended.
    pub async fn keep_routes(self: Arc<Self>) {
        let mut has_failed = false;
        loop {
            tokio::time::sleep(KEEP).await;
            let mut state = self.state.lock().await;
            state.clear_predecessors(&self.instance, &self.splicer);
            let Some(routing) = state.routing.as_ref().filter(|_| state.owner == Owner::Us) else {
                continue;
            };
            match routing.restore() {
                Ok(missing) => {
                    if missing > 0 {
                        tracing::warn!(
                            missing,
                            "another program had removed routing rules of intercepted connections, which are set again \
                             (systemd-networkd leaves them with ManageForeignRoutingPolicyRules=no and ManageForeignRoutes=no)"
                        );
                    }
                    has_failed = false;
                }
                // Write one line, until it works again.
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::error!("{error}");
                    }
                }
            }
        }
    }

    /// Says which process removes the routes from now on: the one that serves.
    pub async fn set_owner(&self, owner: Owner) {
        let mut state = self.state.lock().await;
        state.owner = owner;
        if let Some(routing) = &mut state.routing {
            routing.set_owner(owner);
        }
    }

    /// Removes all routes, if they are this process's.
    pub async fn end(&self) {
        let mut state = self.state.lock().await;
        state.routing = None;
        state.clear_predecessors(&self.instance, &self.splicer);
    }

    /// Leaves the packets to the rules of a successor that serves: the rules of this process stand before those, and would
    /// decide first. It keeps those that bring the segments of its connections to their sockets. What its rules say of
    /// spliced flows holds on.
    pub async fn leave_to_successor(&self) {
        let mut state = self.state.lock().await;
        let State {
            fixed, has_left_out, ..
        } = &mut *state;
        let rules = fixed.behind(Vec::new(), has_left_out);
        let following: Vec<Rule> = rules.into_iter().filter_map(following).collect();
        // Without rules there is nothing in the successor's way, and perhaps no kernel half.
        if self.splicer.rules().rules.is_empty() {
            return;
        }
        if let Err(error) = self.splicer.set_packet_rules(following).await {
            tracing::warn!(%error, "the rules of this process stay before those of its successor until it ends");
        }
    }

    /// Replaces the user's rules.
    ///
    /// # Errors
    /// [`RulesError`]; the old rules stay in force.
    pub async fn load(&self, rules: Vec<Rule>) -> Result<(), RulesError> {
        // Hold the lock, so that a reload waits.
        let mut state = self.state.lock().await;
        let State {
            fixed, has_left_out, ..
        } = &mut *state;
        self.splicer.set_rules(fixed.behind(rules, has_left_out)).await
    }

    /// Returns all rules with their counts.
    pub fn info(&self) -> RulesInfo {
        self.splicer.rules()
    }
}

/// Returns the part of a rule that connections need which are open already.
fn following(rule: Rule) -> Option<Rule> {
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
    fn of(config: &Config, accelerate: Option<&AccelerateConfig>) -> Result<Fixed, RulesError> {
        let mut needed: Vec<Rule> = config.listeners.iter().flat_map(|l| l.rules()).collect();
        let mut all = needed.clone();
        if let Some(accelerate) = accelerate {
            let own =
                own_addresses().map_err(|e| RulesError::System(format!("the host's addresses: {e}")))?;
            all.extend(accelerate.rules(&own));
            needed.extend(accelerate.rules(&[]));
        }
        Ok(Fixed { all, needed })
    }

    /// Returns the whole set, the user's rules first. A host may have more addresses than a set has room for: leaves out all
    /// that is not needed then, and logs it once.
    fn behind(&self, users: Vec<Rule>, has_left_out: &mut bool) -> Vec<Rule> {
        let whole = [users.as_slice(), &self.all].concat();
        if rules::check(&whole).is_ok() {
            *has_left_out = false;
            return whole;
        }
        let least = [users.as_slice(), &self.needed].concat();
        if rules::check(&least).is_ok() && !std::mem::replace(has_left_out, true) {
            tracing::info!(
                left_out = self.all.len() - self.needed.len(),
                "this host has too many addresses for a rule of each: the daemon is asked about handshakes with the host \
                 itself, too, and lets them in"
            );
        }
        least
    }
}

impl State {
    fn extend(&mut self, instance: &str, needs: &Needs) -> Result<(), RoutingError> {
        let Needs { interfaces, families } = needs;
        match &mut self.routing {
            _ if interfaces.is_empty() => {}
            Some(routing) => routing.extend(interfaces, families)?,
            None => self.routing = Some(Routing::set(instance, interfaces, families, self.owner)?),
        }
        Ok(())
    }

    fn trim(&mut self) {
        let Needs { interfaces, families } = &self.needs;
        match &mut self.routing {
            Some(routing) if !interfaces.is_empty() => routing.keep_only(interfaces, families),
            _ => self.routing = None,
        }
    }

    /// Removes the routes of predecessors that the configuration in force does not need, once they have ended.
    fn clear_predecessors(&mut self, instance: &str, splicer: &Splicer) {
        if !self.has_predecessor || self.owner != Owner::Us || !splicer.is_only_process() {
            return;
        }
        self.has_predecessor = false;
        if let Err(error) = Routing::clear_but(instance, self.routing.as_ref()) {
            tracing::warn!(%error, "the routes that only a predecessor needed are left");
        }
    }
}

impl Needs {
    fn of(config: &Config, accelerate: Option<&AccelerateConfig>) -> Needs {
        let mut needs = Needs::default();
        for listener in &config.listeners {
            let Some(intercept) = &listener.intercept else {
                continue;
            };
            needs.interfaces.extend(intercept.all_interfaces());
            for family in listener.listen.iter().map(|a| Family::of(a.ip())) {
                if !needs.families.contains(&family) {
                    needs.families.push(family);
                }
            }
        }
        if let Some(accelerate) = accelerate {
            needs.interfaces.extend(accelerate.interfaces());
            needs.families = vec![Family::V4];
            // Without IPv6 on the loopback the kernel refuses the route, and forwards no IPv6 either.
            if is_local(Ipv6Addr::LOCALHOST.into()) {
                needs.families.push(Family::V6);
            }
        }
        needs.interfaces.sort();
        needs.interfaces.dedup();
        needs
    }
}
