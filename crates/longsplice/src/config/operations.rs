//! How the daemon is watched: metrics, the access log, and what a reload does to open flows.

use std::{net::SocketAddr, path::PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::settle::Settler;
use crate::address::ListenAddr;

/// What is to be seen from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationsConfig {
    /// Where metrics, health and readiness are asked for.
    pub metrics: Option<SocketAddr>,
    /// Where requests and connections are told of.
    pub access_log: Option<AccessLogConfig>,
}

/// Where and how requests and connections are told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// The file; `None`: standard output.
    pub path: Option<PathBuf>,
    /// The form of a line.
    pub format: AccessLogFormat,
}

/// The form of a line of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessLogFormat {
    /// One JSON object, with all that is known.
    #[default]
    Json,
    /// The Common Log Format of NCSA httpd.
    Common,
    /// The same with referrer and user agent.
    Combined,
}

impl AccessLogFormat {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            AccessLogFormat::Json => "json",
            AccessLogFormat::Common => "common",
            AccessLogFormat::Combined => "combined",
        }
    }
}

/// What becomes of open flows when what decided about them changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// They go on as they are.
    #[default]
    Keep,
    /// They go on if the new configuration would have decided likewise; else they are reset.
    Recheck,
    /// They are reset.
    Reset,
}

impl OnChange {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            OnChange::Keep => "keep",
            OnChange::Recheck => "recheck",
            OnChange::Reset => "reset",
        }
    }
}

/// `[metrics]` as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMetrics {
    listen: Spanned<ListenAddr>,
}

/// `[access_log]` as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAccessLog {
    path: Spanned<String>,
    format: Option<AccessLogFormat>,
}

impl Settler<'_> {
    /// What the tables mean; `taken` are the addresses of listeners.
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
            let message = format!("port 0 in `{address}`: nobody could know where to ask");
            self.complain(listen.span(), message, "use 1 to 65535");
        }
        if let Some(clash) = taken.iter().find_map(|l| super::rules::overlap(address, *l)) {
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
        if path.is_empty() || path.contains('\0') {
            let help = "name a file, such as \"/var/log/longsplice/access.log\", or \"stdout\"";
            self.complain(raw.path.span(), "this is no path", help);
        }
        AccessLogConfig {
            path: match path.as_str() {
                "stdout" => None,
                path => Some(self.beside(path.as_ref())),
            },
            format: raw.format.unwrap_or_default(),
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
        assert_eq!(none.listeners[0].on_change, OnChange::Keep);
        let text = "on_change = \"recheck\"\n[metrics]\nlisten = \":9090\"\n[access_log]\npath = \"a.log\"\nformat = \"common\"";
        let all = parse(text).unwrap();
        assert_eq!(all.listeners[0].on_change, OnChange::Recheck);
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
    fn what_cannot_be_meant_is_told_with_its_place() {
        for (head, says) in [
            ("[metrics]\nlisten = \"127.0.0.1:8080\"", "listened on twice"),
            ("[metrics]\nlisten = \":8080\"", "includes or is included"),
            ("[metrics]\nlisten = \"127.0.0.1:0\"", "port 0"),
            ("[metrics]", "listen"),
            ("[access_log]\npath = \"\"", "no path"),
            ("[access_log]\npath = \"x\"\nformat = \"xml\"", "xml"),
            ("[access_log]\npath = \"x\"\nsize = 1", "size"),
            ("on_change = \"drop\"", "drop"),
        ] {
            let error = parse(head).unwrap_err();
            assert!(
                error.contains(says) && error.contains("/etc/x/y.toml:"),
                "{head}: {error}"
            );
        }
    }
}
