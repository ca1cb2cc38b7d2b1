//! Checks the `[[listener]]`s of the file, each by itself and against the others.

use std::{ops::Range, time::Duration};

use longsplice_engine::Until;
use toml::Spanned;

use super::{
    DEFAULT_CONNECT_TIMEOUT, DEFAULT_RELAY_IDLE_TIMEOUT, ListenerConfig, OnChange, idle_policy, intercept,
    packet_rules,
    raw::{self, flatten},
    route, rules,
    settle::Settler,
};
use crate::address::{ListenAddr, PortRange, Target};

/// Values from the rest of the file that every listener needs.
pub(super) struct Shared {
    pub(super) source_ports: Option<PortRange>,
    pub(super) upstreams: Vec<String>,
    pub(super) on_change: OnChange,
}

impl Settler<'_> {
    pub(super) fn listeners(
        &mut self,
        given: Vec<Spanned<raw::Listener>>,
        shared: &Shared,
    ) -> Vec<ListenerConfig> {
        if given.is_empty() {
            let help = "add a [[listener]] with listen = \"0.0.0.0:8080\" and to = \"192.0.2.1:80\"";
            self.complain(0..0, "there is no listener, so nothing would be forwarded", help);
        }
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
        given: raw::Listener,
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
        let splice_from = self.splice_from(given.splice_from, protocol);
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
        let unnamed = listen.first().map(ToString::to_string).unwrap_or_default();
        let name = given
            .name
            .map_or(unnamed, |name| self.listener_name(name, earlier));
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
            connect_timeout: self.period(
                "connect_timeout",
                given.connect_timeout,
                DEFAULT_CONNECT_TIMEOUT,
                ms,
                ms * 600_000,
            ),
            max_connections: given
                .max_connections
                .map(|n| self.count("max_connections", Some(&n), 1, 1 << 26)),
            on_full: given.on_full.unwrap_or_default(),
            abort_on_close: given.abort_on_close.unwrap_or_default(),
            protocol,
            upstream,
            accept_proxy: packet_rules::list(given.accept_proxy),
            splice_from,
            on_change: given.on_change.unwrap_or(shared.on_change),
            tls: self.tls(given.tls, protocol),
            http: self.http(given.http, protocol, &routes, place),
            routes,
        }
    }

    fn targets(
        &mut self,
        given: Option<Spanned<raw::OneOrMany<Target>>>,
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

    fn intercept(&mut self, given: Spanned<intercept::Raw>) -> Option<intercept::InterceptConfig> {
        let span = given.span();
        let settled = intercept::settle(given.into_inner());
        settled
            .map_err(|complaint| self.complain(span, complaint.message, complaint.help))
            .ok()
    }

    fn listener_name(&mut self, name: Spanned<String>, earlier: &[ListenerConfig]) -> String {
        if name.get_ref().is_empty() || name.get_ref().chars().any(char::is_control) {
            self.complain(
                name.span(),
                "this is no name",
                "use any text, or leave the key out",
            );
        }
        if earlier.iter().any(|l| l.name == *name.get_ref()) {
            let message = format!("another listener is named `{}`", name.get_ref());
            self.complain(
                name.span(),
                message,
                "logs and `status` tell listeners apart by their names",
            );
        }
        name.into_inner()
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
                let message = format!("port 0 in `{addr}`: nobody could know where to connect");
                self.complain(address.span(), message, "use 1 to 65535");
            }
            if let Some(clash) = taken.iter().find_map(|e| rules::overlap(addr, *e)) {
                self.complain(address.span(), clash, "give each address to one listener");
            }
            if let Some(clash) = source_ports.and_then(|r| rules::in_source_ports(addr, r)) {
                self.complain(address.span(), clash, "keep listeners out of source_ports");
            }
            for to in to {
                if let Some(loops) = rules::connects_to_itself(addr, to.get_ref()) {
                    self.complain(to.span(), loops, "name the server that is to be reached");
                }
            }
            taken.push(addr);
        }
    }
}
