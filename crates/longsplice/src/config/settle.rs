//! Converts the file as written into the configuration: applies defaults, and checks ranges and combinations of keys.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use longsplice_engine::{ParseXdpModeError, SplicerConfig, XdpMode};
use toml::Spanned;

use super::{
    Config, DEFAULT_GRACE, Diagnostic, LogConfig, Period, diagnostic::Source, hint, listeners::Shared,
    packet_rules, raw, rules,
};

/// Collects all errors, so that one run of `check` shows all of them.
pub(super) struct Settler<'a> {
    source: &'a Source<'a>,
    wrong: Vec<Diagnostic>,
}

/// Checks and converts the file.
///
/// # Errors
/// All that is wrong with the file.
pub(super) fn settle(file: raw::File, source: &Source<'_>) -> Result<Config, Vec<Diagnostic>> {
    let mut s = Settler {
        source,
        wrong: Vec::new(),
    };
    let splicer = s.splicer(&file);
    let source_ports = file.source_ports;
    let log = file.log.map_or_else(LogConfig::default, |log| s.log(&log));
    if let Some(admin) = &file.admin {
        s.admin_path(admin);
    }
    let mut wrong = Vec::new();
    let (rules, mut places) = packet_rules::settle(file.rule, source, &mut wrong);
    s.wrong.append(&mut wrong);
    let listener_places: Vec<_> = file.listener.iter().map(Spanned::span).collect();
    let intercepts = |l: &Spanned<raw::Listener>| l.get_ref().intercept.as_ref().map(Spanned::span);
    let intercept_places: Vec<_> = file.listener.iter().map(intercepts).collect();
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
    let mut warnings = Vec::new();
    for (listener, place) in listeners.iter().zip(intercept_places) {
        if let Some(place) = place.filter(|_| listener.reaches_all()) {
            let message = format!(
                "clients of listener {} reach every address that this host does, as this host (but for link-local ones and metadata services)",
                listener.name
            );
            let help = "name the servers' networks, such as to = \"198.18.0.0/15\"; to = [\"0.0.0.0/0\", \"::/0\"] says that it is meant";
            warnings.push(source.at(place, message, Some(help.to_owned())));
        }
    }
    let config = Config {
        warnings,
        instance: file.instance.unwrap_or_default(),
        admin: file.admin.map(Spanned::into_inner),
        splicer,
        memory: file.memory.unwrap_or_default(),
        require_splice: file.require_splice.unwrap_or_default(),
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

    /// Returns the path of a file that is named in this one: relative to the folder of this file, not to the daemon's
    /// working directory.
    pub(super) fn beside(&self, path: &Path) -> PathBuf {
        self.source.folder().join(path)
    }

    fn log(&mut self, log: &raw::Log) -> LogConfig {
        let default = LogConfig::default();
        let unlimited = |n: &&Spanned<i64>| *n.get_ref() != 0;
        let given = log.lines_per_second.as_ref();
        LogConfig {
            format: log.format.unwrap_or_default(),
            level: log.level.unwrap_or_default(),
            lines_per_second: match given.filter(unlimited) {
                None if given.is_some() => 0,
                limit => self.count("log.lines_per_second", limit, default.lines_per_second, 1_000_000),
            },
        }
    }

    fn splicer(&mut self, file: &raw::File) -> SplicerConfig {
        let default = SplicerConfig::default();
        let max_flows = self.count("max_flows", file.max_flows.as_ref(), default.max_flows, 1 << 26);
        // Lower the default, so that a small table needs no second setting.
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

    /// Checks a whole number from 1 to `most`.
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

    /// Checks a duration from `least` to `most`.
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

    /// Checks that an upstream of this name exists.
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

    /// Returns the number of complaints so far.
    pub(super) fn complaints(&self) -> usize {
        self.wrong.len()
    }
}
