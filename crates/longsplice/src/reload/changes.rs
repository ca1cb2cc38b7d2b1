//! Applies `on_reload`: decides which open connections end because the configuration changed.

use std::{collections::HashMap, sync::Arc};

use crate::{
    config::{ListenerConfig, OnReload},
    listener::{Decided, Destination, KeptFacts, Settings},
};

/// Settings of the new generation, by listener.
#[derive(Debug, Default)]
pub(super) struct Next {
    listeners: HashMap<String, Arc<Settings>>,
}

impl Next {
    pub(super) fn new<'a>(settings: impl Iterator<Item = &'a Arc<Settings>>) -> Next {
        Next {
            listeners: settings
                .map(|s| (s.listener.name.clone(), Arc::clone(s)))
                .collect(),
        }
    }

    /// Returns whether a connection with this decision, on these facts, must end under the new settings of its
    /// listener. If the listener is gone, its old `on_reload` counts.
    pub(super) fn ends(&self, decided: &Decided, facts: Option<&KeptFacts>) -> bool {
        let next = self.listeners.get(&decided.listener.name);
        let how = next.map_or(decided.listener.on_reload, |next| next.listener.on_reload);
        match (how, next) {
            (OnReload::Keep, _) => false,
            (OnReload::Recheck | OnReload::Reset, None) => true,
            (OnReload::Reset, Some(next)) => has_changed(decided, next),
            (OnReload::Recheck, Some(next)) => match facts {
                Some(facts) => !arrives(decided, next.decide(&facts.facts()).1),
                None => has_changed(decided, next),
            },
        }
    }
}

/// Returns whether a part of the decision is gone, or decides differently.
fn has_changed(decided: &Decided, next: &Settings) -> bool {
    if !decides_alike(&decided.listener, &next.listener) {
        return true;
    }
    let destination = match decided.route() {
        Some(route) if !next.listener.routes.routes().contains(route) => return true,
        Some(route) => next.destination(Some(route)),
        None => next.destination(None),
    };
    !arrives(decided, destination)
}

/// Returns whether two versions of a listener treat a connection alike before its routes are asked.
fn decides_alike(a: &ListenerConfig, b: &ListenerConfig) -> bool {
    a.protocol == b.protocol
        && a.upstream == b.upstream
        && a.intercept == b.intercept
        && a.accept_proxy == b.accept_proxy
        && a.tls.is_some() == b.tls.is_some()
}

/// Returns whether this destination includes the server that was decided on.
fn arrives(decided: &Decided, destination: Destination<'_>) -> bool {
    match (destination, decided.upstream()) {
        (Destination::Upstream(upstream), Some(name)) => {
            let server = decided.server.as_deref();
            upstream.name() == name && server.is_none_or(|server| upstream.has(server.id()))
        }
        (Destination::Original, None) => true,
        _ => false,
    }
}
