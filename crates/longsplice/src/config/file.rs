//! Reads the file: converts it as written into the configuration, applies defaults, and checks ranges and combinations
//! of keys.

use std::{ops::Range, os::unix::net::SocketAddr, path::PathBuf, time::Duration};

use longsplice_engine::{ParseXdpModeError, Shutdown, SplicerConfig, XdpMode, rules::Rule};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{
    accelerate::{self, AccelerateConfig},
    diagnostic::{Diagnostic, Source},
    listeners::{self, ListenerConfig, Shared},
    log::{LogConfig, RawLog},
    operations::{MemoryLimit, OnReload, OperationsConfig, RawAccessLog, RawMetrics},
    packet_rules,
    period::Period,
    rules,
    settler::Settler,
    upstream::{self, Targets, UpstreamConfig},
    warnings,
};
use crate::{address::PortRange, instance::InstanceName};

/// Default time for connections in control mode to end at a shutdown.
pub(crate) const DEFAULT_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// The checked configuration of a daemon.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub instance: InstanceName,
    /// Path of the admin socket, if it is not the usual one.
    pub admin: Option<PathBuf>,
    /// Settings of the engine; [`Config::splicer_config`] fills in its `instance`.
    pub splicer: SplicerConfig,
    pub memory: MemoryLimit,
    /// True if the daemon ends at its start if it could only relay.
    pub require_splice: bool,
    /// Treatment of spliced flows when the daemon ends.
    pub shutdown: OnShutdown,
    /// Time that connections in control mode have after a shutdown began.
    pub shutdown_timeout: Duration,
    /// Format and level of the log.
    pub log: LogConfig,
    /// Rules for incoming packets.
    pub rules: Vec<Rule>,
    /// Transparent accelerator.
    pub accelerate: Option<AccelerateConfig>,
    /// Metrics and logs.
    pub operations: OperationsConfig,
    /// Sets of servers.
    pub upstreams: Vec<UpstreamConfig>,
    /// Listeners and their destinations.
    pub listeners: Vec<ListenerConfig>,
    /// Diagnostics about settings that are valid but may be unintended.
    pub warnings: Vec<Diagnostic>,
    /// Diagnostic at the access log's path, for an error when it is opened.
    pub(crate) access_log_path: Option<Diagnostic>,
}

impl Default for Config {
    /// Returns the configuration of a file without a key.
    fn default() -> Config {
        Config {
            instance: InstanceName::default(),
            admin: None,
            splicer: SplicerConfig::default(),
            memory: MemoryLimit::default(),
            require_splice: false,
            shutdown: OnShutdown::default(),
            shutdown_timeout: DEFAULT_SHUTDOWN_TIMEOUT,
            log: LogConfig::default(),
            rules: Vec::new(),
            accelerate: None,
            operations: OperationsConfig::default(),
            upstreams: Vec::new(),
            listeners: Vec::new(),
            warnings: Vec::new(),
            access_log_path: None,
        }
    }
}

impl Config {
    /// Writes the warnings to the log, and which of the named interfaces are not there.
    pub(crate) fn log_warnings(&self) {
        for warning in &self.warnings {
            tracing::warn!("{}", warning.brief());
        }
        for missing in self.missing_interfaces() {
            tracing::warn!("{missing} until it comes (`ip -br link` lists those that are there)");
        }
    }

    /// Tells which of the named interfaces are not there, and what does not work over them.
    fn missing_interfaces(&self) -> Vec<String> {
        let watched = self.splicer.interfaces.iter().flatten();
        let watched = watched.map(|name| {
            (
                name,
                format!("there is no interface `{name}`: nothing is spliced over it"),
            )
        });
        let sides = self.accelerate.iter().flat_map(AccelerateConfig::sides);
        let accelerated = sides.flat_map(|(side, names)| {
            names.iter().map(move |name| {
                let text = format!(
                    "there is no interface `{name}`, which `{side}` of the accelerator names (--{side}): nothing is accelerated over it"
                );
                (name, text)
            })
        });
        watched
            .chain(accelerated)
            .filter(|(name, _)| !rules::is_there(name))
            .map(|(_, text)| text)
            .collect()
    }

    /// Returns the settings for opening the engine.
    pub(crate) fn splicer_config(&self) -> SplicerConfig {
        SplicerConfig {
            instance: self.instance.to_string(),
            ..self.splicer.clone()
        }
    }
}

/// Returns `max_dormant` where it is not written: the default, lowered so that a small table needs no second setting.
pub(crate) fn usual_max_dormant(max_flows: u32) -> u32 {
    SplicerConfig::default().max_dormant.min(max_flows)
}

/// Treatment of spliced flows at a clean shutdown.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum, strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum OnShutdown {
    /// They run on in the kernel, and the next daemon of this instance adopts them.
    #[default]
    Keep,
    /// They are reset, and nothing stays in the kernel.
    End,
}

longsplice_core::named!(pub(crate) OnShutdown);

impl From<OnShutdown> for Shutdown {
    fn from(how: OnShutdown) -> Self {
        match how {
            OnShutdown::Keep => Shutdown::KeepSpliced,
            OnShutdown::End => Shutdown::EndSpliced,
        }
    }
}

/// The file as written: each key with its position.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    instance: Option<InstanceName>,
    admin: Option<Spanned<PathBuf>>,
    interfaces: Option<Spanned<Vec<Spanned<String>>>>,
    xdp: Option<Spanned<Vec<Spanned<String>>>>,
    xdp_mode: Option<Spanned<String>>,
    source_ports: Option<PortRange>,
    max_flows: Option<Spanned<i64>>,
    max_dormant: Option<Spanned<i64>>,
    idle_timeout: Option<Spanned<Period>>,
    record_ttl: Option<Spanned<Period>>,
    memory: Option<MemoryLimit>,
    require_splice: Option<bool>,
    shutdown: Option<OnShutdown>,
    shutdown_timeout: Option<Spanned<Period>>,
    log: Option<RawLog>,
    on_reload: Option<OnReload>,
    accelerate: Option<Spanned<accelerate::Raw>>,
    metrics: Option<Spanned<RawMetrics>>,
    access_log: Option<Spanned<RawAccessLog>>,
    #[serde(default)]
    upstream: Vec<Spanned<upstream::Raw>>,
    #[serde(default)]
    listener: Vec<Spanned<listeners::Raw>>,
    #[serde(default)]
    rule: Vec<Spanned<packet_rules::Raw>>,
}

/// Checks and converts the file. Fails with all that is wrong with the file.
pub(super) fn settle(file: File, source: &Source<'_>) -> Result<Config, Vec<Diagnostic>> {
    let mut s = Settler::new(source);
    let splicer = s.splicer(&file);
    let source_ports = file.source_ports;
    let log = file.log.map_or_else(LogConfig::default, |log| s.log(&log));
    if let Some(admin) = &file.admin {
        s.admin_path(admin);
    }
    let mut wrong = Vec::new();
    let (rules, mut places) = packet_rules::settle(file.rule, source, &mut wrong);
    s.wrong.append(&mut wrong);
    let accelerate = file.accelerate.map(|section| {
        let place = section.span();
        let accelerate = s.accelerate(section.into_inner(), place.clone());
        s.watched_sides(&accelerate, splicer.interfaces.as_deref(), &place);
        (accelerate, place)
    });
    if file.listener.is_empty() && accelerate.is_none() {
        let help = "add a [[listener]] with listen = \"0.0.0.0:8080\" and to = \"192.0.2.1:80\", or a section [accelerate]";
        s.complain(0..0, "there is no listener, so nothing would be forwarded", help);
    }
    let intercepts = |l: &Spanned<listeners::Raw>| l.get_ref().intercept.as_ref().map(Spanned::span);
    let intercept_places: Vec<_> = file.listener.iter().map(intercepts).collect();
    let targets: Vec<_> = file.upstream.iter().map(|raw| raw.get_ref().targets()).collect();
    let by_request: Vec<_> = file
        .upstream
        .iter()
        .map(|raw| raw.get_ref().by_request())
        .collect();
    let upstreams = s.upstreams(file.upstream);
    let shared = Shared {
        source_ports,
        upstreams: upstreams.iter().map(|u| u.name.clone()).collect(),
        on_reload: file.on_reload.unwrap_or_default(),
    };
    let listeners = s.listeners(file.listener, &shared);
    s.loops(&listeners, &targets);
    let taken: Vec<_> = listeners.iter().flat_map(|l| l.listen.iter().copied()).collect();
    let access_log_path = file.access_log.as_ref().map(|log| {
        let place = log.get_ref().path.span();
        source.at(place, "cannot open the access log", None)
    });
    let operations = s.operations(file.metrics, file.access_log, &taken);
    let mut all = rules.clone();
    for (listener, place) in listeners.iter().zip(&intercept_places) {
        all.extend(listener.rules());
        places.resize(all.len(), place.clone().unwrap_or_default());
    }
    if let Some((accelerate, place)) = &accelerate {
        // The host's own addresses may change: here only the number of rules matters.
        all.extend(accelerate.rules(&[]));
        places.resize(all.len(), place.clone());
    }
    packet_rules::check(&all, rules.len(), &places, source, &mut s.wrong);
    let mut warnings = warnings::of_intercepts(&listeners, intercept_places, source);
    warnings.extend(warnings::of_upstreams(&upstreams, by_request, &listeners, source));
    let config = Config {
        warnings,
        access_log_path,
        instance: file.instance.unwrap_or_default(),
        admin: file.admin.map(Spanned::into_inner),
        splicer,
        memory: file.memory.unwrap_or_default(),
        require_splice: file.require_splice.unwrap_or_default(),
        shutdown: file.shutdown.unwrap_or_default(),
        shutdown_timeout: s.period(
            "shutdown_timeout",
            file.shutdown_timeout,
            DEFAULT_SHUTDOWN_TIMEOUT,
            Duration::ZERO,
            Duration::from_secs(86_400),
        ),
        log,
        rules,
        accelerate: accelerate.map(|(accelerate, _)| accelerate),
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
    /// Checks that no upstream of a listener has that listener as a server.
    fn loops(&mut self, listeners: &[ListenerConfig], all: &[Targets]) {
        for listener in listeners {
            let servers = all.iter().filter(|of| listener.leads_to(&of.upstream));
            for server in servers.flat_map(|of| &of.servers) {
                self.refuse_itself(&listener.listen, server);
            }
        }
    }

    fn splicer(&mut self, file: &File) -> SplicerConfig {
        let default = SplicerConfig::default();
        let max_flows = self.count("max_flows", file.max_flows.as_ref(), default.max_flows, 1 << 26);
        let dormant = usual_max_dormant(max_flows);
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
            record_ttl: self.period(
                "record_ttl",
                file.record_ttl.clone(),
                default.record_ttl,
                second,
                second * 3600,
            ),
            ..default
        }
    }

    fn interfaces(&mut self, list: &Spanned<Vec<Spanned<String>>>) -> Vec<String> {
        if list.get_ref().is_empty() {
            let help = "name at least one, or leave the key out to watch all that are up";
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

    /// Complains about a side of the accelerator over which nothing is spliced: its connections could never be released.
    fn watched_sides(
        &mut self,
        accelerate: &AccelerateConfig,
        watched: Option<&[String]>,
        place: &Range<usize>,
    ) {
        let help =
            "add it there, or leave `interfaces` out: connections that are taken over could not be released";
        for name in accelerate.interfaces() {
            if let Some(complaint) = rules::unwatched(&name, watched, help) {
                self.complain(place.clone(), complaint.message, complaint.help);
            }
        }
    }

    fn xdp(&mut self, file: &File) -> Vec<String> {
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

    fn xdp_mode(&mut self, file: &File) -> XdpMode {
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

    fn admin_path(&mut self, path: &Spanned<PathBuf>) {
        if !path.get_ref().is_absolute() {
            let help = "a relative path would depend on where the daemon was started";
            self.complain(path.span(), "the path of the admin socket is not absolute", help);
            return;
        }
        // The socket is made under a name beside it, which is longer by one byte.
        let mut made_at = path.get_ref().clone().into_os_string();
        made_at.push("~");
        if let Err(error) = SocketAddr::from_pathname(made_at) {
            let help = "use 106 bytes at most, none of them zero";
            self.complain(
                path.span(),
                format!("no socket can have this path: {error}"),
                help,
            );
        }
    }
}
