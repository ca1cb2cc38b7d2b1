//! Keeps decisions, and their facts, so that they can be made again.

use std::{net::IpAddr, sync::Arc};

use longsplice_core::route::{Action, Facts, Route};

use super::Settings;
use crate::{
    config::{ListenerConfig, OnReload},
    upstream::Server,
};

/// Limit in bytes for each open connection; most requests have less. A decision on more is not made again.
pub(crate) const MAX_KEPT: usize = 4096;

/// Owned copy of the facts of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptFacts {
    client: IpAddr,
    method: Option<String>,
    host: Option<String>,
    path: Option<String>,
    other_paths: Vec<String>,
    query: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    sni: Option<String>,
    alpn: Vec<Vec<u8>>,
}

impl KeptFacts {
    /// Copies the facts, with these header fields in place of their own. Returns `None` if the copy would be longer
    /// than [`MAX_KEPT`].
    pub(crate) fn keep<'h>(
        facts: &Facts<'_>,
        headers: impl Iterator<Item = (&'h str, &'h [u8])>,
    ) -> Option<KeptFacts> {
        let mut room = MAX_KEPT;
        let mut pay = |n: usize| -> Option<()> {
            room = room.checked_sub(n)?;
            Some(())
        };
        let mut own = |text: Option<&str>| -> Option<Option<String>> {
            pay(text.map_or(0, str::len))?;
            Some(text.map(str::to_owned))
        };
        let (method, host) = (own(facts.method)?, own(facts.host)?);
        let (path, query, sni) = (own(facts.path)?, own(facts.query)?, own(facts.sni)?);
        let mut kept = KeptFacts {
            client: facts.client,
            method,
            host,
            path,
            other_paths: Vec::new(),
            query,
            headers: Vec::new(),
            sni,
            alpn: Vec::new(),
        };
        for path in facts.other_paths {
            pay(path.len())?;
            kept.other_paths.push(path.clone());
        }
        for protocol in facts.alpn {
            pay(protocol.len())?;
            kept.alpn.push(protocol.clone());
        }
        for (name, value) in headers {
            pay(name.len() + value.len())?;
            kept.headers.push((name.to_owned(), value.to_owned()));
        }
        Some(kept)
    }

    /// Returns the facts for a decision.
    pub(crate) fn facts(&self) -> Facts<'_> {
        Facts {
            client: self.client,
            method: self.method.as_deref(),
            host: self.host.as_deref(),
            path: self.path.as_deref(),
            other_paths: &self.other_paths,
            query: self.query.as_deref(),
            headers: &self.headers,
            sni: self.sni.as_deref(),
            alpn: &self.alpn,
        }
    }
}

/// Decision about a connection, or about the request that it carries now.
#[derive(Debug, Clone)]
pub(crate) struct Decided {
    /// Generation of the configuration that decided.
    pub generation: u64,
    /// The listener at that time.
    pub listener: Arc<ListenerConfig>,
    /// Index of the route in that listener; `None` if no route matched.
    pub route: Option<usize>,
    pub server: Option<Arc<Server>>,
    /// Facts of the decision, if they are kept.
    pub facts: Option<KeptFacts>,
}

impl Decided {
    /// Returns the route, if one matched.
    pub(crate) fn route(&self) -> Option<&Route> {
        self.listener.routes.routes().get(self.route?)
    }

    /// Returns the name of the upstream; `None` means the original destination.
    pub(crate) fn upstream(&self) -> Option<&str> {
        let listener = &self.listener;
        match self.route().map(|route| &route.action) {
            Some(Action::Upstream(name)) => Some(name),
            Some(_) => None,
            None if listener.upstream.is_none() && listener.to.is_empty() => None,
            None => Some(listener.upstream.as_ref().unwrap_or(&listener.name)),
        }
    }

    /// Returns the name of the `[[upstream]]`; `None` if the listener's `to` decides, or the original destination.
    pub(super) fn named_upstream(&self) -> Option<&str> {
        self.upstream()
            .filter(|_| self.route.is_some() || self.listener.upstream.is_some())
    }

    /// Returns whether its flow must be remembered when it runs on in the kernel: for a reload, or for its server's
    /// load.
    pub(super) fn matters(&self) -> bool {
        self.listener.on_reload != OnReload::Keep || self.named_upstream().is_some()
    }

    /// Returns whether facts are worth keeping.
    pub(crate) fn wants_facts(settings: &Settings) -> bool {
        settings.listener.on_reload == OnReload::Recheck
    }
}

#[cfg(test)]
mod tests {
    use longsplice_core::route::NoHeaders;

    use super::*;

    fn facts<'a>(path: &'a str, alpn: &'a [Vec<u8>]) -> Facts<'a> {
        Facts {
            client: "198.18.0.1".parse().unwrap(),
            method: Some("GET"),
            host: Some("a.example"),
            path: Some(path),
            other_paths: &[],
            query: None,
            headers: &NoHeaders,
            sni: Some("b.example"),
            alpn,
        }
    }

    #[test]
    fn what_is_kept_says_the_same() {
        let alpn = [b"h2".to_vec()];
        let kept = KeptFacts::keep(&facts("/x", &alpn), [("x-tenant", &b"a"[..])].into_iter()).unwrap();
        let again = kept.facts();
        assert_eq!((again.method, again.host), (Some("GET"), Some("a.example")));
        assert_eq!(
            (again.path, again.query, again.sni),
            (Some("/x"), None, Some("b.example"))
        );
        assert_eq!(again.alpn, alpn);
        assert!(again.headers.any("X-Tenant", &mut |value| value == b"a"));
    }

    #[test]
    fn too_much_is_not_kept() {
        let rest = "GET".len() + "a.example".len() + "b.example".len();
        let fits = "p".repeat(MAX_KEPT - rest);
        assert!(KeptFacts::keep(&facts(&fits, &[]), std::iter::empty()).is_some());
        let long = "p".repeat(MAX_KEPT - rest + 1);
        assert_eq!(KeptFacts::keep(&facts(&long, &[]), std::iter::empty()), None);
        let one = [("n", &b"v"[..])];
        assert_eq!(KeptFacts::keep(&facts(&fits, &[]), one.into_iter()), None);
    }
}
