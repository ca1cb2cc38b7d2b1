//! From the file as written to the configuration: defaults, ranges, and what concerns several keys at once.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use longsplice_engine::{ParseXdpModeError, SplicerConfig, Until, XdpMode};
use toml::Spanned;

use super::{
    Config, DEFAULT_CONNECT_TIMEOUT, DEFAULT_GRACE, Diagnostic, ListenerConfig, LogConfig, OnChange, Period,
    diagnostic::Source,
    hint, intercept, packet_rules,
    raw::{self, flatten},
    route, rules,
};
use crate::address::{ListenAddr, PortRange, Target};

/// Collects everything that is wrong, so that one run of `check` shows all of it.
pub(super) struct Settler<'a> {
    source: &'a Source<'a>,
    wrong: Vec<Diagnostic>,
}

/// What every listener has to know of the rest of the file.
struct Shared {
    source_ports: Option<PortRange>,
    upstreams: Vec<String>,
    on_change: OnChange,
}

/// Decides what the file means, or says all that is wrong with it.
pub(super) fn settle(file: raw::File, source: &Source<'_>) -> Result<Config, Vec<Diagnostic>> {
    let mut s = Settler {
        source,
        wrong: Vec::new(),
    };
    let splicer = s.splicer(&file);
    let source_ports = file.source_ports;
    let log = file.log.map_or_else(LogConfig::default, |log| LogConfig {
        format: log.format.unwrap_or_default(),
        level: log.level.unwrap_or_default(),
    });
    if let Some(admin) = &file.admin {
        s.admin_path(admin);
    }
    let mut wrong = Vec::new();
    let (rules, mut places) = packet_rules::settle(file.rule, source, &mut wrong);
    s.wrong.append(&mut wrong);
    let listener_places: Vec<_> = file.listener.iter().map(Spanned::span).collect();
    let upstreams = s.upstreams(file.upstream);
    let shared = Shared {
        source_ports,
        upstreams: upstreams.iter().map(|u| u.name.clone()).collect(),
        on_change: file.on_change.unwrap_or_default(),
    };
    let listeners = s.listeners(file.listener, &shared);
    let taken: Vec<_> = listeners.iter().flat_map(|l| l.listen.iter().copied()).collect();
    let operations = s.operations(file.metrics, file.access_log, &taken);
    let mut all = rules.clone();
    for (listener, place) in listeners.iter().zip(listener_places) {
        all.extend(listener.rules());
        places.resize(all.len(), place);
    }
    packet_rules::check(&all, source, &mut s.wrong, |n| {
        places.get(n).cloned().unwrap_or_default()
    });
    let config = Config {
        instance: file.instance.unwrap_or_default(),
        admin: file.admin.map(Spanned::into_inner),
        splicer,
        shutdown: file.shutdown.unwrap_or_default(),
        grace: s.period(
            "grace",
            file.grace,
            DEFAULT_GRACE,
            Duration::ZERO,
            Duration::from_secs(86_400),
        ),
        log,
        rules,
        operations,
        upstreams,
        listeners,
    };
    s.wrong.sort_by_key(Diagnostic::line);
    if s.wrong.is_empty() {
        Ok(config)
    } else {
        Err(s.wrong)
    }
}

impl Settler<'_> {
    pub(super) fn complain(&mut self, at: Range<usize>, message: impl Into<String>, help: &str) {
        self.wrong
            .push(self.source.at(at, message, Some(help.to_owned())));
    }

    /// Where a file is that is named in this one: relative to its folder, wherever the daemon was started.
    pub(super) fn beside(&self, path: &Path) -> PathBuf {
        self.source.folder().join(path)
    }

    fn splicer(&mut self, file: &raw::File) -> SplicerConfig {
        let default = SplicerConfig::default();
        let max_flows = self.count("max_flows", file.max_flows.as_ref(), default.max_flows, 1 << 26);
        // A table smaller than the usual number of dormant flows needs no second setting.
        let dormant = default.max_dormant.min(max_flows);
        let max_dormant = self.count("max_dormant", file.max_dormant.as_ref(), dormant, 1 << 20);
        if let (Some(given), true) = (&file.max_dormant, max_dormant > max_flows) {
            let message = format!("max_dormant is more than max_flows, which is {max_flows}");
            self.complain(given.span(), message, "dormant flows are a part of all flows");
        }
        let day = Duration::from_secs(86_400);
        let second = Duration::from_secs(1);
        SplicerConfig {
            interfaces: file.interfaces.as_ref().map(|list| self.interfaces(list)),
            xdp: self.xdp(file),
            xdp_mode: self.xdp_mode(file),
            max_flows,
            max_dormant,
            source_ports: file.source_ports.map(Into::into),
            idle_timeout: self.period(
                "idle_timeout",
                file.idle_timeout.clone(),
                default.idle_timeout,
                second,
                day * 365,
            ),
            linger: self.period(
                "linger",
                file.linger.clone(),
                default.linger,
                second,
                second * 3600,
            ),
            ..default
        }
    }

    fn interfaces(&mut self, list: &Spanned<Vec<Spanned<String>>>) -> Vec<String> {
        if list.get_ref().is_empty() {
            let help = "name at least one, or leave the key out to watch all that routes use";
            self.complain(list.span(), "no interface is named", help);
        }
        for name in list.get_ref() {
            if !rules::is_interface_name(name.get_ref()) {
                let message = format!("`{}` cannot be the name of an interface", name.get_ref());
                self.complain(name.span(), message, "`ip -br link` lists them");
            }
        }
        list.get_ref().iter().map(|name| name.get_ref().clone()).collect()
    }

    fn xdp(&mut self, file: &raw::File) -> Vec<String> {
        let watched: Option<Vec<String>> = file
            .interfaces
            .as_ref()
            .map(|list| list.get_ref().iter().map(|n| n.get_ref().clone()).collect());
        let given: &[Spanned<String>] = file.xdp.as_ref().map_or(&[], |list| list.get_ref());
        for name in given {
            if let Some(complaint) = rules::xdp(name.get_ref(), watched.as_deref()) {
                self.complain(name.span(), complaint.message, complaint.help);
            }
        }
        given.iter().map(|name| name.get_ref().clone()).collect()
    }

    fn xdp_mode(&mut self, file: &raw::File) -> XdpMode {
        let Some(given) = &file.xdp_mode else {
            return XdpMode::default();
        };
        if file.xdp.is_none() {
            let help = "name them, such as xdp = [\"eth0\", \"eth1\"]";
            self.complain(given.span(), "xdp_mode without xdp: no interface is named", help);
        }
        given
            .get_ref()
            .parse()
            .unwrap_or_else(|error: ParseXdpModeError| {
                self.complain(given.span(), error.to_string(), "native is in the driver");
                XdpMode::default()
            })
    }

    fn admin_path(&mut self, path: &Spanned<std::path::PathBuf>) {
        if !path.get_ref().is_absolute() {
            let help = "a relative path would depend on where the daemon was started";
            self.complain(path.span(), "the path of the admin socket is not absolute", help);
        }
    }

    /// A whole number from 1 to `most`.
    pub(super) fn count(&mut self, key: &str, given: Option<&Spanned<i64>>, default: u32, most: u32) -> u32 {
        let Some(given) = given else { return default };
        match u32::try_from(*given.get_ref()) {
            Ok(n) if (1..=most).contains(&n) => n,
            _ => {
                let message = format!("{key} is out of range: {}", given.get_ref());
                self.complain(given.span(), message, &format!("use 1 to {most}"));
                default
            }
        }
    }

    /// A span of time from `least` to `most`.
    pub(super) fn period(
        &mut self,
        key: &str,
        given: Option<Spanned<Period>>,
        default: Duration,
        least: Duration,
        most: Duration,
    ) -> Duration {
        let Some(given) = given else { return default };
        let value = given.get_ref().0;
        if (least..=most).contains(&value) {
            return value;
        }
        let message = format!("{key} is out of range: {}", Period(value));
        self.complain(
            given.span(),
            message,
            &format!("use {} to {}", Period(least), Period(most)),
        );
        default
    }

    fn listeners(&mut self, given: Vec<Spanned<raw::Listener>>, shared: &Shared) -> Vec<ListenerConfig> {
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
        let to = self.targets(given.to, elsewhere || routed, place);
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
        ListenerConfig {
            name,
            listen,
            to: to.into_iter().map(Spanned::into_inner).collect(),
            intercept,
            splice,
            detach: given.detach.unwrap_or_default(),
            unsplice,
            rate_limit: given.rate_limit.unwrap_or_default(),
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
            protocol,
            upstream,
            accept_proxy: packet_rules::list(given.accept_proxy),
            splice_from,
            on_change: given.on_change.unwrap_or(shared.on_change),
            tls: self.tls(given.tls, protocol),
            http: self.http(given.http, protocol),
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

    /// The name of an upstream that there is.
    pub(super) fn upstream_name(&mut self, name: Spanned<String>, known: &[String]) -> String {
        if !known.contains(name.get_ref()) {
            let message = format!("there is no upstream `{}`", name.get_ref());
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let help = match known.is_empty() {
                true => "add an [[upstream]] of that name".to_owned(),
                false => hint::suggest(
                    name.get_ref(),
                    &known,
                    "add an [[upstream]] of that name, or use one of",
                ),
            };
            self.complain(name.span(), message, &help);
        }
        name.into_inner()
    }

    /// How many there were.
    pub(super) fn complaints(&self) -> usize {
        self.wrong.len()
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
