//! Reads the `[[listener]]`s of the file, and checks each by itself and against the others.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
    time::Duration,
};

use longsplice_core::{
    limit::RateLimit,
    policy::{DetachPolicy, SplicePolicy},
    route::{Action, Route, Table},
};
use longsplice_engine::{
    IdlePolicy, Until,
    rules::{Network, Rule},
};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{
    guarded,
    http::{self, HttpConfig},
    idle::{DEFAULT_RELAY_IDLE_TIMEOUT, KeepaliveSetting, idle_policy},
    intercept::{self, InterceptConfig, SourceAddress},
    one_or_many::{OneOrMany, flatten, list},
    operations::OnReload,
    period::Period,
    protocol::Protocol,
    route, rules,
    settler::Settler,
    tls::{self, TlsConfig},
    upstream::DEFAULT_CONNECT_TIMEOUT,
};
use crate::address::{ListenAddr, PortRange, Target};

/// A listener: its addresses, targets and policies. The default is no usable one: its `connect_timeout` is 0.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListenerConfig {
    /// Name in logs and in `status`.
    pub name: String,
    /// Addresses that it listens on.
    pub listen: Vec<SocketAddr>,
    /// Targets of its connections; the first that answers is used. If empty, connections go to their original
    /// destination.
    pub to: Vec<Target>,
    /// Connections to other hosts that it intercepts.
    pub intercept: Option<InterceptConfig>,
    /// Selects when to splice.
    pub splice: SplicePolicy,
    /// Selects when to release the parked sockets.
    pub detach: DetachPolicy,
    /// Conditions for returning to the relay; the policy may splice again later.
    pub unsplice: Until,
    /// Rate limit of each connection's payload, relayed or spliced.
    pub rate_limit: RateLimit,
    /// Limit of the idle time of relayed connections, and the probes meanwhile.
    pub idle: IdlePolicy,
    /// Longest time for connecting to one address of a target.
    pub connect_timeout: Duration,
    /// Limit of the connections that this process holds; a detached flow does not count.
    pub max_connections: Option<u32>,
    /// Treatment of connections beyond that.
    pub on_full: OnFull,
    /// Congestion control of the legs to the clients; `None`: the kernel's own choice.
    pub congestion: Option<String>,
    /// True if a client's FIN ends its wait for a server, or for a server's reply.
    pub abort_on_close: bool,
    /// Part of a connection that is read before a server is chosen.
    pub protocol: Protocol,
    /// Upstream of connections that no route takes; `None` means `to`, or the original destination.
    pub upstream: Option<String>,
    /// Peers whose connections begin with a PROXY header. It is not read from other peers.
    pub accept_proxy: Vec<Network>,
    /// Length from which on a reply is spliced, and a connection under `auto` considered, in bytes; `None` means as the
    /// daemon measures.
    pub splice_min: Option<u64>,
    /// Treatment of its open flows when its configuration changes.
    pub on_reload: OnReload,
    /// Certificates, if it terminates TLS.
    pub tls: Option<TlsConfig>,
    /// Limits and options of HTTP.
    pub http: HttpConfig,
    /// Routes of connections or requests; the first match is used.
    pub routes: Table,
}

impl ListenerConfig {
    /// Returns true if what it splices depends on a length.
    pub(crate) fn has_splice_min(&self) -> bool {
        match self.protocol {
            Protocol::Http => self.splice != SplicePolicy::Never,
            Protocol::Tcp | Protocol::Tls => self.splice == SplicePolicy::Auto && self.tls.is_none(),
        }
    }

    /// Returns true if that length is measured.
    pub(crate) fn measures(&self) -> bool {
        self.has_splice_min() && self.splice_min.is_none()
    }

    /// Returns which source address its servers see.
    pub(crate) fn source(&self) -> SourceAddress {
        self.intercept
            .as_ref()
            .map_or(SourceAddress::Forwarder, |i| i.source)
    }

    /// Returns the rules by which it intercepts.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        self.intercept.as_ref().map_or_else(Vec::new, |intercept| {
            intercept.rules(&self.name, &self.listen, self.goes_on())
        })
    }

    /// Returns whether some of its connections go to their original destinations.
    fn goes_on(&self) -> bool {
        let by_route = |route: &Route| route.action == Action::Original;
        let rest = self.to.is_empty() && self.upstream.is_none() && !self.routes.takes_all();
        self.intercept.is_some() && (rest || self.routes.routes().iter().any(by_route))
    }

    /// Returns whether some of its connections go to the upstream of this name.
    pub(super) fn leads_to(&self, upstream: &str) -> bool {
        let by_route = |route: &Route| matches!(&route.action, Action::Upstream(name) if name == upstream);
        self.upstream.as_deref() == Some(upstream) || self.routes.routes().iter().any(by_route)
    }

    /// Returns whether its clients reach every address that this host reaches, with this host's address.
    pub(super) fn reaches_all(&self) -> bool {
        let is_open = |i: &InterceptConfig| i.to.is_empty() && i.source == SourceAddress::Forwarder;
        self.goes_on() && self.intercept.as_ref().is_some_and(is_open)
    }

    /// Returns whether a connection to this address is not forwarded: the address is link-local, of a metadata service
    /// or of this host itself, and `to` does not name it.
    pub(crate) fn is_guarded(&self, address: IpAddr) -> bool {
        let to = self.intercept.as_ref().map_or(&[][..], |i| i.to.as_slice());
        guarded::is_guarded(address, to)
    }
}

/// Treatment of a connection beyond `max_connections`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnFull {
    /// Leave it in the kernel's queue.
    #[default]
    Wait,
    /// Reset it.
    Refuse,
}

/// The table as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Option<Spanned<String>>,
    listen: Spanned<OneOrMany<ListenAddr>>,
    to: Option<Spanned<OneOrMany<Target>>>,
    pub(super) intercept: Option<Spanned<intercept::Raw>>,
    splice: Option<SplicePolicy>,
    detach: Option<DetachPolicy>,
    unsplice: Option<Spanned<Until>>,
    rate_limit: Option<RateLimit>,
    relay_idle_timeout: Option<Spanned<Period>>,
    keepalive: Option<KeepaliveSetting>,
    connect_timeout: Option<Spanned<Period>>,
    max_connections: Option<Spanned<i64>>,
    on_full: Option<OnFull>,
    congestion: Option<Spanned<String>>,
    abort_on_close: Option<bool>,
    protocol: Option<Protocol>,
    upstream: Option<Spanned<String>>,
    accept_proxy: Option<Spanned<OneOrMany<Network>>>,
    splice_min: Option<Spanned<String>>,
    on_reload: Option<OnReload>,
    tls: Option<Spanned<tls::Raw>>,
    http: Option<Spanned<http::Raw>>,
    #[serde(default)]
    route: Vec<Spanned<route::Raw>>,
}

/// Values from the rest of the file that every listener needs.
pub(super) struct Shared {
    pub(super) source_ports: Option<PortRange>,
    pub(super) upstreams: Vec<String>,
    pub(super) on_reload: OnReload,
}

impl Settler<'_> {
    pub(super) fn listeners(&mut self, given: Vec<Spanned<Raw>>, shared: &Shared) -> Vec<ListenerConfig> {
        let mut listeners: Vec<ListenerConfig> = Vec::new();
        for listener in given {
            let place = listener.span();
            let listener = self.listener(listener.into_inner(), place, &listeners, shared);
            listeners.push(listener);
        }
        listeners
    }

    fn listener(
        &mut self,
        given: Raw,
        place: Range<usize>,
        earlier: &[ListenerConfig],
        shared: &Shared,
    ) -> ListenerConfig {
        let listen_span = given.listen.span();
        let listen = flatten(given.listen);
        let of = route::Of {
            protocol: given.protocol.unwrap_or_default(),
            terminates: given.tls.is_some(),
            intercepts: given.intercept.is_some(),
            upstreams: &shared.upstreams,
        };
        let routed = !given.route.is_empty();
        let routes = self.routes(given.route, &of);
        let elsewhere = of.intercepts || given.upstream.is_some() || routes.takes_all();
        if routed && !elsewhere && given.to.is_none() {
            let help = "add upstream = \"NAME\" to the listener, or a last route without conditions";
            self.complain(place.clone(), "nothing is said of what no route takes", help);
        }
        if let (Some(to), Some(_)) = (&given.to, &given.upstream) {
            let help = "leave one of them out, or add the target to the servers of the upstream";
            self.complain(to.span(), "the listener has `to` and `upstream`", help);
        }
        let to = self.targets(given.to, elsewhere || routed, place.clone());
        let upstream = given
            .upstream
            .map(|name| self.upstream_name(name, &shared.upstreams));
        let protocol = given.protocol.unwrap_or_default();
        let splice_min = self.splice_min(given.splice_min);
        let intercept = given.intercept.and_then(|given| self.intercept(given));
        if listen.is_empty() {
            self.complain(
                listen_span,
                "the list is empty",
                "name an address, such as \"0.0.0.0:8080\"",
            );
        }
        self.listen_addresses(&listen, &to, earlier, shared.source_ports);
        let listen: Vec<_> = listen.into_iter().map(|a| a.into_inner().0).collect();
        let named_at = given.name.as_ref().map_or(place.clone(), Spanned::span);
        let name = self.listener_name(given.name, &listen, place.clone(), earlier);
        if !to.is_empty() && shared.upstreams.contains(&name) {
            let message = format!("an upstream is named `{name}`, too");
            let help = "metrics and `status` show the targets of `to` under the name of the listener";
            self.complain(named_at, message, help);
        }
        let ms = Duration::from_millis(1);
        let splice = given.splice.unwrap_or_default();
        let unsplice = given.unsplice.map_or_else(Until::closed, |given| {
            if let Some(complaint) = rules::unsplice(splice, *given.get_ref()) {
                self.complain(given.span(), complaint.message, complaint.help);
            }
            given.into_inner()
        });
        let relay_idle_timeout = self.period(
            "relay_idle_timeout",
            given.relay_idle_timeout,
            DEFAULT_RELAY_IDLE_TIMEOUT,
            ms * 1000,
            Duration::from_secs(365 * 86_400),
        );
        ListenerConfig {
            name,
            listen,
            to: to.into_iter().map(Spanned::into_inner).collect(),
            intercept,
            splice,
            detach: given.detach.unwrap_or_default(),
            unsplice,
            rate_limit: given.rate_limit.unwrap_or_default(),
            idle: idle_policy(Some(relay_idle_timeout), given.keepalive),
            connect_timeout: self.period_in(
                "connect_timeout",
                given.connect_timeout,
                DEFAULT_CONNECT_TIMEOUT,
                &rules::CONNECT_TIMEOUT,
            ),
            max_connections: given
                .max_connections
                .map(|n| self.count("max_connections", Some(&n), 1, 1 << 26)),
            on_full: given.on_full.unwrap_or_default(),
            congestion: self.congestion(given.congestion),
            abort_on_close: given.abort_on_close.unwrap_or_default(),
            protocol,
            upstream,
            accept_proxy: list(given.accept_proxy),
            splice_min,
            on_reload: given.on_reload.unwrap_or(shared.on_reload),
            tls: self.tls(given.tls, protocol),
            http: self.http(given.http, protocol, &routes, place),
            routes,
        }
    }

    fn targets(
        &mut self,
        given: Option<Spanned<OneOrMany<Target>>>,
        elsewhere: bool,
        place: Range<usize>,
    ) -> Vec<Spanned<Target>> {
        let help = "add where its connections go, such as to = \"192.0.2.1:80\"";
        let Some(given) = given else {
            if !elsewhere {
                self.complain(place, "missing key `to`", help);
            }
            return Vec::new();
        };
        let span = given.span();
        let to = flatten(given);
        if to.is_empty() {
            let help = "name one, such as \"192.0.2.1:80\"";
            self.complain(span, "the listener has no target", help);
        }
        to
    }

    fn intercept(&mut self, given: Spanned<intercept::Raw>) -> Option<InterceptConfig> {
        let span = given.span();
        let settled = intercept::settle(given.into_inner());
        settled
            .map_err(|complaint| self.complain(span, complaint.message, complaint.help))
            .ok()
    }

    /// Returns the name of a listener: the one that it was given, or its first address.
    fn listener_name(
        &mut self,
        given: Option<Spanned<String>>,
        listen: &[SocketAddr],
        place: Range<usize>,
        earlier: &[ListenerConfig],
    ) -> String {
        let Some(given) = given else {
            let Some(first) = listen.first() else {
                return String::new();
            };
            let name = first.to_string();
            // Skip a listener of this address, which was complained about.
            if earlier
                .iter()
                .any(|l| l.name == name && !l.listen.contains(first))
            {
                let message =
                    format!("another listener is named `{name}`, as this one is by its first address");
                let help = "logs and `status` tell listeners apart by their names: give this one a name";
                self.complain(place, message, help);
            }
            return name;
        };
        let name = given.get_ref();
        self.free_name(name, given.span());
        if earlier.iter().any(|l| l.name == *name) {
            let message = format!("another listener is named `{name}`");
            self.complain(
                given.span(),
                message,
                "logs and `status` tell listeners apart by their names",
            );
        }
        given.into_inner()
    }

    fn listen_addresses(
        &mut self,
        listen: &[Spanned<ListenAddr>],
        to: &[Spanned<Target>],
        earlier: &[ListenerConfig],
        source_ports: Option<PortRange>,
    ) {
        let mut taken: Vec<_> = earlier.iter().flat_map(|l| l.listen.iter().copied()).collect();
        for address in listen {
            let addr = address.get_ref().0;
            if addr.port() == 0 {
                let message = format!("port 0 in `{addr}`: clients could not know where to connect");
                self.complain(address.span(), message, "use 1 to 65535");
            }
            if let Some(clash) = taken.iter().find_map(|e| rules::overlap(addr, *e)) {
                self.complain(address.span(), clash, "give each address to one listener");
            }
            if let Some(clash) = source_ports.and_then(|r| rules::in_source_ports(addr, r)) {
                self.complain(address.span(), clash, "keep listeners out of source_ports");
            }
            for to in to {
                self.refuse_itself(&[addr], to);
            }
            taken.push(addr);
        }
    }

    /// Complains of a target that is the listener itself, at one of these addresses.
    pub(super) fn refuse_itself(&mut self, listen: &[SocketAddr], to: &Spanned<Target>) {
        let mut listen = listen.iter();
        if let Some(loops) = listen.find_map(|at| rules::connects_to_itself(*at, to.get_ref())) {
            self.complain(to.span(), loops, "name the server that is to be reached");
        }
    }
}
