//! Judges decisions by the configuration in force: whether a connection goes on, ends, or is decided about once more.

use std::sync::Arc;

use super::{Decided, Destination, KeptFacts, Settings};
use crate::config::{ListenerConfig, OnReload};

/// State of a decision that was just made known.
#[derive(Debug)]
pub(crate) enum Standing {
    /// The decision holds.
    Holds,
    /// Newer settings decide instead.
    Superseded(Arc<Settings>),
    /// The decision is void, and its connection ends.
    Void,
}

/// Returns whether a connection with this decision, on these facts, must end under the next settings of its listener.
/// `None` means that the listener is gone: then its old `on_reload` counts.
pub(crate) fn ends(decided: &Decided, facts: Option<&KeptFacts>, next: Option<&Settings>) -> bool {
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

/// Returns whether a connection that was received under one version of a listener may be decided about under the other
/// one: what is read before its protocol, and what its handshake offers, is the same.
pub(super) fn receives_alike(a: &ListenerConfig, b: &ListenerConfig) -> bool {
    is_read_alike(a, b) && a.tls == b.tls
}

/// Returns whether a session that was received under one version of a listener may go on under the other one. Its handshake
/// is over: certificates and protocols that are offered have no part in it.
pub(super) fn carries_alike(a: &ListenerConfig, b: &ListenerConfig) -> bool {
    is_read_alike(a, b) && a.tls.is_some() == b.tls.is_some()
}

fn is_read_alike(a: &ListenerConfig, b: &ListenerConfig) -> bool {
    a.protocol == b.protocol && a.intercept == b.intercept && a.accept_proxy == b.accept_proxy
}

/// Returns whether a part of the decision is gone, or decides differently.
fn has_changed(decided: &Decided, next: &Settings) -> bool {
    let (before, after) = (&decided.listener, &next.listener);
    if !carries_alike(before, after) || before.upstream != after.upstream {
        return true;
    }
    let destination = match decided.route() {
        Some(route) if !next.listener.routes.routes().contains(route) => return true,
        Some(route) => next.destination(Some(route)),
        None => next.destination(None),
    };
    !arrives(decided, destination)
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

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use longsplice_engine::{OpenError, Splicer, SplicerConfig};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        access_log::{AccessLog, End},
        config,
        listener::{Open, Service, Shared},
        upstream::Upstreams,
    };

    /// Returns the settings of a listener with these lines, in this generation.
    fn settings(splicer: &Splicer, generation: u64, lines: &str) -> Settings {
        let text =
            format!("[[listener]]\nname = \"l\"\nlisten = \"127.0.0.1:1\"\nto = \"127.0.0.1:2\"\n{lines}");
        let config = config::parse(Path::new("t"), &text).unwrap();
        Settings {
            generation,
            listener: Arc::new(config.listeners[0].clone()),
            upstreams: Arc::new(Upstreams::new(&config, splicer)),
            terminator: None,
        }
    }

    /// Returns a listener with these lines, and a connection of it.
    pub(in super::super) fn begin(lines: &str) -> (Arc<Service>, Open) {
        let why = OpenError::Unsupported("a test".into());
        let splicer = Splicer::relay_only(SplicerConfig::default(), why);
        let first = settings(&splicer, 1, lines);
        let shared = Shared::new(splicer, AccessLog::default(), CancellationToken::new());
        let service = Service::new(first, shared);
        let slot = service.slots.try_take().unwrap();
        (Arc::clone(&service), Open::new(service, slot, None))
    }

    /// Puts a configuration of the listener with these lines in force.
    pub(in super::super) fn reload(service: &Arc<Service>, generation: u64, lines: &str) {
        let next = settings(service.splicer(), generation, lines);
        let change = (Arc::clone(service), Arc::new(next));
        service.shared.switch(vec![change]);
    }

    /// Returns a decision of these settings.
    pub(in super::super) fn decided(settings: &Settings) -> Box<Decided> {
        Box::new(Decided {
            generation: settings.generation,
            listener: Arc::clone(&settings.listener),
            route: None,
            server: None,
            facts: None,
        })
    }

    #[tokio::test]
    async fn a_reload_between_a_decision_and_its_publication_is_noticed() {
        for on_reload in ["keep", "reset", "recheck"] {
            let lines = format!("on_reload = \"{on_reload}\"\n");
            let (service, open) = begin(&lines);
            let old = service.settings();
            assert!(matches!(open.publish(decided(&old)), Standing::Holds));
            reload(&service, 2, &lines);
            let newer = match open.publish(decided(&old)) {
                Standing::Superseded(newer) => newer,
                other => panic!("{on_reload}: {other:?}"),
            };
            assert_eq!(newer.generation, 2);
            assert!(matches!(open.publish(decided(&newer)), Standing::Holds));
            // The listener would read this connection in another way: it is not decided about by these settings.
            reload(&service, 3, &format!("{lines}protocol = \"tls\"\n"));
            let standing = open.publish(decided(&newer));
            let ended = match on_reload {
                "keep" => None,
                _ => Some(End::Reload),
            };
            assert_eq!(
                matches!(standing, Standing::Void),
                ended.is_some(),
                "{standing:?}"
            );
            assert_eq!(
                matches!(standing, Standing::Holds),
                ended.is_none(),
                "{standing:?}"
            );
            assert_eq!(open.to_end(), ended);
        }
    }

    #[tokio::test]
    async fn a_listener_that_is_gone_has_its_last_word() {
        for (on_reload, ended) in [
            ("keep", None),
            ("reset", Some(End::Reload)),
            ("recheck", Some(End::Reload)),
        ] {
            let (service, open) = begin(&format!("on_reload = \"{on_reload}\"\n"));
            service.retire();
            let standing = open.publish(decided(&service.settings()));
            assert_eq!(
                matches!(standing, Standing::Void),
                ended.is_some(),
                "{standing:?}"
            );
            assert_eq!(open.to_end(), ended);
        }
    }
}
