//! Reads the settings for operators: metrics, the access log, and the effect of a reload on open flows.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use longsplice_core::policy::{BYTE_UNITS, parse_bytes};
use serde::Deserialize;
use toml::Spanned;

use super::{period::Period, rules, settler::Settler};
use crate::address::ListenAddr;

/// Settings for monitoring.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OperationsConfig {
    /// Address for requests of metrics, health and readiness.
    pub metrics: Option<SocketAddr>,
    /// Log of requests and connections.
    pub access_log: Option<AccessLogConfig>,
}

/// Settings of the log of requests and connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessLogConfig {
    /// Path of the file; `None` means standard output.
    pub path: Option<PathBuf>,
    /// Format of a line.
    pub format: AccessLogFormat,
    /// Time from one record of a spliced flow to the next; `None`: no such records.
    pub flow_interval: Option<Duration>,
}

/// Format of a line of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum AccessLogFormat {
    /// One JSON object with all fields.
    #[default]
    Json,
    /// The Common Log Format of NCSA httpd.
    Common,
    /// The Common Log Format, with referrer and user agent.
    Combined,
}

longsplice_core::named!(pub(crate) AccessLogFormat);

/// Limit of the daemon's memory. Beyond it, no connection is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum MemoryLimit {
    /// The limits of its control group and of the machine.
    #[default]
    Auto,
    /// No limit.
    None,
    /// This many bytes, and no more than the limits of its control group and of the machine.
    Bytes(u64),
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryLimit, String> {
        match (text, parse_bytes(text)) {
            ("auto", _) => Ok(MemoryLimit::Auto),
            ("none", _) => Ok(MemoryLimit::None),
            (_, Some(bytes)) if bytes >= LEAST_MEMORY => Ok(MemoryLimit::Bytes(bytes)),
            (_, Some(_)) => Err(format!(
                "`{text}` is too little memory for a daemon: use 16MiB or more"
            )),
            _ => Err(format!(
                "`{text}` is no amount of memory: use auto, none, or a size such as 512MiB ({BYTE_UNITS})"
            )),
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::Auto => f.write_str("as its control group and the machine allow"),
            MemoryLimit::None => f.write_str("no limit"),
            MemoryLimit::Bytes(bytes) => write!(f, "at most {bytes} bytes"),
        }
    }
}

longsplice_core::from_text!(MemoryLimit);

/// Smallest limit in bytes: the programs and their maps alone need this.
const LEAST_MEMORY: u64 = 16 << 20;

/// Treatment of open flows when the settings that decided about them change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum OnReload {
    /// Leave them as they are.
    #[default]
    Keep,
    /// Leave them if the new configuration decides alike; else reset them.
    Recheck,
    /// Reset them.
    Reset,
}

longsplice_core::named!(pub(crate) OnReload);

/// The table `[metrics]` as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMetrics {
    listen: Spanned<ListenAddr>,
}

/// The table `[access_log]` as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAccessLog {
    pub(super) path: Spanned<String>,
    format: Option<AccessLogFormat>,
    flow_interval: Option<Spanned<Period>>,
}

impl Settler<'_> {
    /// Checks and converts the tables; `taken` are the addresses of listeners.
    pub(super) fn operations(
        &mut self,
        metrics: Option<Spanned<RawMetrics>>,
        access_log: Option<Spanned<RawAccessLog>>,
        taken: &[SocketAddr],
    ) -> OperationsConfig {
        OperationsConfig {
            metrics: metrics.map(|raw| self.metrics(raw.into_inner().listen, taken)),
            access_log: access_log.map(|raw| self.access_log(raw.into_inner())),
        }
    }

    fn metrics(&mut self, listen: Spanned<ListenAddr>, taken: &[SocketAddr]) -> SocketAddr {
        let address = listen.get_ref().0;
        if address.port() == 0 {
            let message = format!("port 0 in `{address}`: clients could not know where to ask");
            self.complain(listen.span(), message, "use 1 to 65535");
        }
        if let Some(clash) = taken.iter().find_map(|l| rules::overlap(address, *l)) {
            self.complain(
                listen.span(),
                clash,
                "give each address to one listener, or to metrics",
            );
        }
        address
    }

    fn access_log(&mut self, raw: RawAccessLog) -> AccessLogConfig {
        let path = raw.path.get_ref();
        let is_folder = path.ends_with('/') || Path::new(path).file_name().is_none();
        if path.is_empty() || path.contains('\0') || is_folder {
            let help = "name a file, such as \"/var/log/longsplice/access.log\", or \"stdout\"";
            self.complain(raw.path.span(), "this is no path of a file", help);
        }
        let format = raw.format.unwrap_or_default();
        if let (Some(given), true) = (&raw.flow_interval, format != AccessLogFormat::Json) {
            let message = format!("format = \"{}\" has no line for a flow", format.as_str());
            self.complain(
                given.span(),
                message,
                "use format = \"json\", or leave flow_interval out",
            );
        }
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let flow_interval = raw.flow_interval;
        AccessLogConfig {
            flow_interval: flow_interval
                .map(|given| self.period("flow_interval", Some(given), second, second, day)),
            path: match path.as_str() {
                "stdout" => None,
                path => Some(self.beside(path.as_ref())),
            },
            format,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    fn parse(head: &str) -> Result<config::Config, String> {
        let listener = "[[listener]]\nlisten = \"127.0.0.1:8080\"\nto = \"127.0.0.1:80\"\n";
        config::parse(Path::new("/etc/x/y.toml"), &format!("{head}\n{listener}"))
            .map_err(|wrong| wrong.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_is_watched_and_where() {
        let none = parse("").unwrap();
        assert_eq!(none.operations, OperationsConfig::default());
        assert_eq!(none.listeners[0].on_reload, OnReload::Keep);
        let text = "on_reload = \"recheck\"\n[metrics]\nlisten = \":9090\"\n[access_log]\npath = \"a.log\"\nformat = \"common\"";
        let all = parse(text).unwrap();
        assert_eq!(all.listeners[0].on_reload, OnReload::Recheck);
        assert_eq!(all.operations.metrics, Some(([0, 0, 0, 0], 9090).into()));
        let log = all.operations.access_log.unwrap();
        assert_eq!(
            (log.path, log.format),
            (Some("/etc/x/a.log".into()), AccessLogFormat::Common)
        );
        let stdout = parse("[access_log]\npath = \"stdout\"").unwrap();
        let log = stdout.operations.access_log.unwrap();
        assert_eq!((log.path, log.format), (None, AccessLogFormat::Json));
    }

    #[test]
    fn memory_is_a_size_or_a_word() {
        assert_eq!(parse("").unwrap().memory, MemoryLimit::Auto);
        assert_eq!(parse("memory = \"none\"").unwrap().memory, MemoryLimit::None);
        let limited = parse("memory = \"64MiB\"").unwrap().memory;
        assert_eq!(limited, MemoryLimit::Bytes(64 << 20));
        for (text, says) in [("much", "such as 512MiB"), ("1MiB", "16MiB or more")] {
            let error = parse(&format!("memory = \"{text}\"")).unwrap_err();
            assert!(
                error.contains(says) && error.contains("/etc/x/y.toml:1"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_cannot_be_meant_is_told_with_its_place() {
        for (head, says) in [
            ("[metrics]\nlisten = \"127.0.0.1:8080\"", "listened on twice"),
            ("[metrics]\nlisten = \":8080\"", "includes or is included"),
            ("[metrics]\nlisten = \"127.0.0.1:0\"", "port 0"),
            ("[metrics]", "listen"),
            ("[access_log]\npath = \"\"", "no path"),
            ("[access_log]\npath = \"/\"", "no path of a file"),
            ("[access_log]\npath = \"logs/\"", "no path of a file"),
            ("[access_log]\npath = \"..\"", "no path of a file"),
            ("[access_log]\npath = \"x\"\nformat = \"xml\"", "xml"),
            ("[access_log]\npath = \"x\"\nsize = 1", "size"),
            ("on_reload = \"drop\"", "drop"),
        ] {
            let error = parse(head).unwrap_err();
            assert!(
                error.contains(says) && error.contains("/etc/x/y.toml:"),
                "{head}: {error}"
            );
        }
    }
}
