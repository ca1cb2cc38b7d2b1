//! Warns about settings that are valid, but may be unintended.

use std::ops::Range;

use super::{
    diagnostic::{Diagnostic, Source},
    listeners::ListenerConfig,
    protocol::Protocol,
    upstream::UpstreamConfig,
};

/// Warns about listeners whose clients reach all that this host reaches; `places` are those of their `intercept`.
pub(super) fn of_intercepts(
    listeners: &[ListenerConfig],
    places: Vec<Option<Range<usize>>>,
    source: &Source<'_>,
) -> Vec<Diagnostic> {
    let open = listeners
        .iter()
        .zip(places)
        .filter(|(listener, _)| listener.reaches_all());
    open.filter_map(|(listener, place)| {
        let message = format!(
            "clients of listener {} reach every address that this host does, as this host (but for link-local ones and metadata services)",
            listener.name
        );
        let help = "name the servers' networks, such as to = \"198.18.0.0/15\"; to = [\"0.0.0.0/0\", \"::/0\"] says that it is meant";
        Some(source.at(place?, message, Some(help.to_owned())))
    })
    .collect()
}

/// Warns about upstreams that choose a server by a request, and get only connections of which no requests are read.
/// `by_request` are the keys that say so, with their positions.
pub(super) fn of_upstreams(
    upstreams: &[UpstreamConfig],
    by_request: Vec<Vec<(&'static str, Range<usize>)>>,
    listeners: &[ListenerConfig],
    source: &Source<'_>,
) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    for (upstream, keys) in upstreams.iter().zip(by_request) {
        let mut users = listeners.iter().filter(|l| l.leads_to(&upstream.name)).peekable();
        if users.peek().is_none() || users.any(|l| l.protocol == Protocol::Http) {
            continue;
        }
        for (key, place) in keys {
            let message = format!(
                "`{key}` has no effect: of the connections to upstream `{}` no requests are read",
                upstream.name
            );
            let help =
                "add protocol = \"http\" to a listener, or choose by the address: balance = \"hash=client\"";
            warnings.push(source.at(place, message, Some(help.to_owned())));
        }
    }
    warnings
}
