//! Holds the rules of a daemon: the user's rules, then those of intercepting listeners; and the routes that these need.

mod fixed;

use std::{
    net::Ipv6Addr,
    sync::{Arc, Weak},
    time::Duration,
};

use longsplice_engine::{
    Splicer,
    intercept::{Owner, Routing, RoutingError, is_local},
    rules::{Family, Rule, RulesError, RulesInfo},
};
use tokio::sync::Mutex;

use crate::config::{AccelerateConfig, Config, ListenerConfig};
use fixed::{Fixed, following};

/// Interval between two looks at the routes.
const KEEP: Duration = Duration::from_secs(1);

/// Reason why rules or routes could not be set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    /// The rules could not be set.
    #[error("cannot put the rules in force: {0}")]
    Rules(#[from] RulesError),
    /// The routing could not be set.
    #[error(transparent)]
    Routing(#[from] RoutingError),
}

/// Sets rules, and keeps those of the listeners among them.
#[derive(Debug)]
pub(crate) struct RuleManager {
    instance: String,
    splicer: Splicer,
    accelerates: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Rules of the user: those of the file, or loaded ones.
    users: Vec<Rule>,
    fixed: Fixed,
    /// True if rules were left out, which was logged.
    has_left_out: bool,
    routing: Option<Routing>,
    /// Process that removes the routes.
    owner: Owner,
    /// Routes that the configuration in force needs.
    needs: Needs,
    /// Listeners of earlier configurations that intercepted: their connections hold them, and need rules and routes as long.
    earlier: Vec<Weak<ListenerConfig>>,
    /// True if there may be routes that only another process needs.
    is_shared: bool,
}

/// Interfaces whose packets must be routed to this host, and their families.
#[derive(Debug, Default, Clone)]
struct Needs {
    interfaces: Vec<String>,
    families: Vec<Family>,
}

impl RuleManager {
    /// Sets the rules and routes of a configuration. Unless another process of the instance runs, it first removes the routes
    /// that a killed one has left. The needed routes stay until [`RuleManager::end`]. `accelerates`: an accelerator reads the
    /// packets of its section. If it fails, nothing but a running predecessor's routes is left.
    pub(crate) async fn set_up(
        config: &Config,
        splicer: &Splicer,
        owner: Owner,
        accelerates: bool,
    ) -> Result<RuleManager, SetupError> {
        // A process that was replaced may run on, although its successor was killed.
        let is_shared = owner == Owner::Other || splicer.sees_other_process();
        if !is_shared && let Err(error) = Routing::clear(config.instance.as_str()) {
            tracing::warn!(%error, "the routes of a predecessor could not be looked for");
        }
        let state = State {
            users: Vec::new(),
            fixed: Fixed::default(),
            has_left_out: false,
            routing: None,
            owner,
            needs: Needs::default(),
            earlier: Vec::new(),
            is_shared,
        };
        let manager = RuleManager {
            instance: config.instance.to_string(),
            splicer: splicer.clone(),
            accelerates,
            state: Mutex::new(state),
        };
        manager.change(config, Vec::new()).await?;
        splicer.lift_predecessors_rules().await;
        Ok(manager)
    }

    /// Sets the rules and routes of the next configuration. Connections of the listeners that it retires are followed as long
    /// as they hold these. Routes that it does not need stay until [`RuleManager::trim`]. If it fails, the old rules
    /// stay in force.
    pub(crate) async fn change(
        &self,
        config: &Config,
        retired: Vec<Weak<ListenerConfig>>,
    ) -> Result<(), SetupError> {
        let mut state = self.state.lock().await;
        let changed = self.change_state(&mut state, config, retired).await;
        if changed.is_err() {
            state.trim(&self.splicer);
        }
        changed
    }

    /// Sets the rules and routes of the next configuration. An error may leave routes that only that one needs.
    async fn change_state(
        &self,
        state: &mut State,
        config: &Config,
        retired: Vec<Weak<ListenerConfig>>,
    ) -> Result<(), SetupError> {
        let accelerate = config.accelerate.as_ref().filter(|_| self.accelerates);
        let needs = Needs::of(config, accelerate);
        // Add routes first: the rules deliver packets over them.
        state.extend(&self.instance, &needs)?;
        let mut fixed = Fixed::of(config, accelerate)?;
        let earlier = [state.earlier.as_slice(), &retired].concat();
        fixed.follow(&held(&earlier));
        let rules = fixed.behind(&config.rules, &mut state.has_left_out);
        self.set_if_other(rules).await?;
        (state.fixed, state.needs, state.earlier) = (fixed, needs, earlier);
        state.users.clone_from(&config.rules);
        Ok(())
    }

    /// Sets these rules. Equal ones are not set again: they continue to count.
    async fn set_if_other(&self, rules: Vec<Rule>) -> Result<(), RulesError> {
        let in_force = self.splicer.rules().rules;
        match in_force.iter().map(|info| &info.rule).eq(&rules) {
            true => Ok(()),
            false => self.splicer.set_rules(rules).await,
        }
    }

    /// Removes rules and routes that neither the configuration in force nor an open connection needs. Routes stay while
    /// another process of the instance runs.
    pub(crate) async fn trim(&self) {
        let mut state = self.state.lock().await;
        self.trim_state(&mut state).await;
    }

    async fn trim_state(&self, state: &mut State) {
        state.earlier.retain(is_held);
        state.fixed.follow(&held(&state.earlier));
        let rules = state.fixed.behind(&state.users, &mut state.has_left_out);
        if let Err(error) = self.set_if_other(rules).await {
            tracing::warn!(%error, "the rules of a listener that is gone stay until the next reload");
        }
        state.trim(&self.splicer);
    }

    /// Sets the routes again that another program has removed, each second. Without them connections that are taken over
    /// would bypass this host. Removes what only another process or an open connection needed, once that has ended.
    pub(crate) async fn keep_routes(self: Arc<Self>) {
        let mut has_failed = false;
        loop {
            tokio::time::sleep(KEEP).await;
            let mut state = self.state.lock().await;
            // A successor decides, once it serves.
            if state.owner == Owner::Other {
                continue;
            }
            if !state.earlier.iter().all(is_held) {
                self.trim_state(&mut state).await;
            }
            state.clear_others(&self.instance, &self.splicer);
            let Some(routing) = &state.routing else { continue };
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
    pub(crate) async fn set_owner(&self, owner: Owner) {
        let mut state = self.state.lock().await;
        state.owner = owner;
        if let Some(routing) = &mut state.routing {
            routing.set_owner(owner);
        }
    }

    /// Removes all routes, unless another process of the instance runs: connections of both need them, and the last process
    /// removes them.
    pub(crate) async fn end(&self) {
        let owner = match self.splicer.is_only_process() {
            true => Owner::Us,
            false => Owner::Other,
        };
        self.set_owner(owner).await;
        let mut state = self.state.lock().await;
        state.routing = None;
        state.clear_others(&self.instance, &self.splicer);
    }

    /// Leaves the packets to the rules of a successor that serves: the rules of this process stand before those, and would
    /// decide first. It keeps those that bring the segments of its connections to their sockets. What its rules say of
    /// spliced flows holds on.
    pub(crate) async fn leave_to_successor(&self) {
        let mut state = self.state.lock().await;
        let State {
            fixed, has_left_out, ..
        } = &mut *state;
        let rules = fixed.behind(&[], has_left_out);
        let following: Vec<Rule> = rules.into_iter().filter_map(following).collect();
        // Without rules there is nothing in the successor's way, and perhaps no kernel half.
        if self.splicer.rules().rules.is_empty() {
            return;
        }
        if let Err(error) = self.splicer.set_packet_rules(following).await {
            tracing::warn!(%error, "the rules of this process stay before those of its successor until it ends");
        }
    }

    /// Replaces the user's rules. If it fails, the old rules stay in force.
    pub(crate) async fn load(&self, rules: Vec<Rule>) -> Result<(), RulesError> {
        // Hold the lock, so that a reload waits.
        let mut state = self.state.lock().await;
        let State {
            fixed, has_left_out, ..
        } = &mut *state;
        self.splicer.set_rules(fixed.behind(&rules, has_left_out)).await?;
        state.users = rules;
        Ok(())
    }

    /// Returns all rules with their counts.
    pub(crate) fn info(&self) -> RulesInfo {
        self.splicer.rules()
    }
}

/// Returns true if an open connection holds this listener's settings.
fn is_held(listener: &Weak<ListenerConfig>) -> bool {
    listener.strong_count() > 0
}

fn held(listeners: &[Weak<ListenerConfig>]) -> Vec<Arc<ListenerConfig>> {
    listeners.iter().filter_map(Weak::upgrade).collect()
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

    /// Removes routes that neither the configuration in force nor an open connection needs, unless another process runs,
    /// whose connections may need them.
    fn trim(&mut self, splicer: &Splicer) {
        if !splicer.is_only_process() {
            self.is_shared = true;
            return;
        }
        let mut needs = self.needs.clone();
        held(&self.earlier)
            .iter()
            .for_each(|listener| needs.add(listener));
        match &mut self.routing {
            Some(routing) if !needs.interfaces.is_empty() => {
                routing.keep_only(&needs.interfaces, &needs.families);
            }
            _ => self.routing = None,
        }
    }

    /// Removes the routes of other processes that this one does not need, once they have ended.
    fn clear_others(&mut self, instance: &str, splicer: &Splicer) {
        if !self.is_shared || self.owner != Owner::Us || !splicer.is_only_process() {
            return;
        }
        self.is_shared = false;
        self.trim(splicer);
        if let Err(error) = Routing::clear_but(instance, self.routing.as_ref()) {
            tracing::warn!(%error, "the routes that only another process needed are left");
        }
    }
}

impl Needs {
    fn of(config: &Config, accelerate: Option<&AccelerateConfig>) -> Needs {
        let mut needs = Needs::default();
        config.listeners.iter().for_each(|listener| needs.add(listener));
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

    /// Adds what a listener needs, if it intercepts.
    fn add(&mut self, listener: &ListenerConfig) {
        let Some(intercept) = &listener.intercept else {
            return;
        };
        self.interfaces.extend(intercept.all_interfaces());
        for family in listener.listen.iter().map(|a| Family::of(a.ip())) {
            if !self.families.contains(&family) {
                self.families.push(family);
            }
        }
    }
}
