//! Reads `[listener.http]`: limits and options of a listener for HTTP.

use std::{ops::Range, time::Duration};

use longsplice_core::{
    http::{Authority, rewrite::ForwardedFields},
    policy::{BYTE_UNITS, parse_bytes},
    route::{Condition, Table, Token},
};
use serde::Deserialize;
use toml::Spanned;

use super::{period::Period, protocol::Protocol, settler::Settler};

/// Limits and options of a listener for HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpConfig {
    /// Longest time for the head of a request, from its first byte on; for the first request, from the accept on.
    /// Answered with 408.
    pub head_timeout: Duration,
    /// Longest head of a request or reply, in bytes. A longer request head is answered with 431.
    pub max_head: usize,
    /// Longest silence of a client between two requests.
    pub idle_timeout: Duration,
    /// Longest time without a byte of a body, in either direction.
    pub body_timeout: Duration,
    /// Longest time until a server begins its reply. Answered with 504.
    pub reply_timeout: Duration,
    /// Fields that tell the server about the client.
    pub forwarded: ForwardedFields,
    /// Treatment of such fields from the client.
    pub forwarded_mode: ForwardedMode,
    /// True if refusing routes are asked about each reading of a path that servers may read in several ways.
    pub strict_paths: bool,
    /// Treatment of fields with underscores in their names.
    pub underscores: Underscores,
    /// Name of the proxy in Via: a token, or a host with an optional port. `None` leaves Via unchanged.
    pub via: Option<String>,
    /// True if replies without Date get one.
    pub date: bool,
    /// Limit of requests over one client connection.
    pub max_requests: u64,
}

/// Treatment of the fields in which a client names the origin of its request: `Forwarded`, `X-Forwarded-*`,
/// `X-Real-IP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ForwardedMode {
    /// Forward them; the client's address is appended.
    #[default]
    Append,
    /// Remove them.
    Replace,
}

/// Treatment of a request's fields with underscores in their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Underscores {
    /// Remove them: no route and no server sees them.
    #[default]
    Drop,
    /// Forward them.
    Pass,
    /// Answer the request with 400.
    Refuse,
}

/// A field that tells the server about the client.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Field {
    XForwardedFor,
    XForwardedProto,
    XForwardedHost,
    Forwarded,
}

impl Default for HttpConfig {
    fn default() -> Self {
        HttpConfig {
            head_timeout: Duration::from_secs(10),
            max_head: 32 << 10,
            idle_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(60),
            reply_timeout: Duration::from_secs(60),
            forwarded: ForwardedFields::default(),
            forwarded_mode: ForwardedMode::default(),
            strict_paths: false,
            underscores: Underscores::default(),
            via: None,
            date: true,
            max_requests: 10_000,
        }
    }
}

/// The table as written in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    head_timeout: Option<Spanned<Period>>,
    max_head: Option<Spanned<String>>,
    idle_timeout: Option<Spanned<Period>>,
    body_timeout: Option<Spanned<Period>>,
    reply_timeout: Option<Spanned<Period>>,
    #[serde(default)]
    forwarded: Vec<Spanned<Field>>,
    forwarded_mode: Option<ForwardedMode>,
    strict_paths: Option<bool>,
    underscores: Option<Underscores>,
    via: Option<Spanned<String>>,
    date: Option<bool>,
    max_requests: Option<Spanned<i64>>,
}

/// Range of `max_head` in bytes: less would not take browsers' requests, more would allow an attack.
const HEADS: Range<u64> = 1 << 10..(1 << 20) + 1;

impl Settler<'_> {
    /// Checks and converts the table; `routes` are those of its listener, which is at `place`.
    pub(super) fn http(
        &mut self,
        given: Option<Spanned<Raw>>,
        protocol: Protocol,
        routes: &Table,
        place: Range<usize>,
    ) -> HttpConfig {
        if let Some(given) = &given {
            self.needs_http("[listener.http]", given.span(), protocol);
        }
        let raw = given.map(Spanned::into_inner).unwrap_or_default();
        let default = HttpConfig::default();
        let ms = Duration::from_millis(1);
        let day = Duration::from_secs(24 * 3600);
        let mut period = |key, given, default| self.period(key, given, default, ms, day);
        let (head_timeout, idle_timeout, body_timeout, reply_timeout) = (
            period("head_timeout", raw.head_timeout, default.head_timeout),
            period("idle_timeout", raw.idle_timeout, default.idle_timeout),
            period("body_timeout", raw.body_timeout, default.body_timeout),
            period("reply_timeout", raw.reply_timeout, default.reply_timeout),
        );
        let max_requests = raw.max_requests.map_or(default.max_requests, |n| {
            self.count("max_requests", Some(&n), 1, u32::MAX).into()
        });
        let underscores = raw.underscores.unwrap_or_default();
        if underscores != Underscores::Pass {
            self.check_underscores(routes, place);
        }
        HttpConfig {
            head_timeout,
            max_head: raw.max_head.map_or(default.max_head, |n| self.max_head(&n)),
            idle_timeout,
            body_timeout,
            reply_timeout,
            forwarded: self.forwarded(raw.forwarded),
            forwarded_mode: raw.forwarded_mode.unwrap_or_default(),
            strict_paths: raw.strict_paths.unwrap_or_else(|| routes.refuses_by_path()),
            underscores,
            via: raw.via.and_then(|name| self.via(name)),
            date: raw.date.unwrap_or(default.date),
            max_requests,
        }
    }

    /// Complains about a route on a field that is never let in.
    fn check_underscores(&mut self, routes: &Table, place: Range<usize>) {
        for route in routes.routes() {
            for condition in &route.conditions {
                if let Condition::Header(name, _) = condition
                    && name.as_str().contains('_')
                {
                    let message = format!(
                        "route `{}` asks for the field `{name}`, and none with an underscore is let in",
                        route.name
                    );
                    let help =
                        "add underscores = \"pass\" to [listener.http], or have it written with a hyphen";
                    self.complain(place.clone(), message, help);
                }
            }
        }
    }

    fn via(&mut self, given: Spanned<String>) -> Option<String> {
        let name = given.get_ref();
        let is_host = Authority::parse(name.as_bytes()).is_ok_and(|a| !a.host().is_empty());
        if !is_host && name.parse::<Token>().is_err() {
            let message = format!("`{}` cannot stand in Via", name.escape_debug());
            let help = "write a name without blanks, such as \"switch\", or a host with a port";
            self.complain(given.span(), message, help);
            return None;
        }
        Some(given.into_inner())
    }

    /// Returns the length from which on a splice pays, in bytes; `None` means as measured.
    pub(super) fn splice_min(&mut self, given: Option<Spanned<String>>) -> Option<u64> {
        let given = given?;
        match given.get_ref().as_str() {
            "auto" => None,
            text => {
                let bytes = parse_bytes(text);
                if bytes.is_none() {
                    let message = format!("`{text}` is no length");
                    let help = format!("write auto, or bytes such as 64KiB ({BYTE_UNITS})");
                    self.complain(given.span(), message, &help);
                }
                bytes
            }
        }
    }

    fn max_head(&mut self, given: &Spanned<String>) -> usize {
        match parse_bytes(given.get_ref()) {
            Some(n) if HEADS.contains(&n) => usize::try_from(n).unwrap_or(usize::MAX),
            _ => {
                let message = format!("max_head is out of range: `{}`", given.get_ref());
                let help = format!("use 1KiB to 1MiB, such as 32KiB ({BYTE_UNITS})");
                self.complain(given.span(), message, &help);
                HttpConfig::default().max_head
            }
        }
    }

    fn forwarded(&mut self, given: Vec<Spanned<Field>>) -> ForwardedFields {
        let mut all = ForwardedFields::default();
        for field in given {
            let named = match field.get_ref() {
                Field::XForwardedFor => &mut all.x_for,
                Field::XForwardedProto => &mut all.x_proto,
                Field::XForwardedHost => &mut all.x_host,
                Field::Forwarded => &mut all.standard,
            };
            if std::mem::replace(named, true) {
                self.complain(field.span(), "this field is named twice", "name each once");
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::parse;

    fn listener(http: &str) -> String {
        format!(
            "[[listener]]\nlisten = \"127.0.0.1:1\"\nto = \"127.0.0.1:2\"\nprotocol = \"http\"\n[listener.http]\n{http}"
        )
    }

    #[test]
    fn every_key_is_taken_and_what_is_left_out_has_its_default() {
        let all = "head_timeout = \"1s\"\nmax_head = \"64KiB\"\nidle_timeout = \"2s\"\nbody_timeout = \"3s\"\n\
                   reply_timeout = \"4s\"\nforwarded = [\"x-forwarded-for\", \"forwarded\"]\nmax_requests = 5\n\
                   forwarded_mode = \"replace\"\nstrict_paths = true\nunderscores = \"refuse\"\nvia = \"a:1\"\ndate = false";
        let http = |text: &str| {
            parse(Path::new("t"), &listener(text)).unwrap().listeners[0]
                .http
                .clone()
        };
        let s = Duration::from_secs;
        let expected = HttpConfig {
            head_timeout: s(1),
            max_head: 64 << 10,
            idle_timeout: s(2),
            body_timeout: s(3),
            reply_timeout: s(4),
            forwarded: ForwardedFields {
                x_for: true,
                standard: true,
                ..ForwardedFields::default()
            },
            forwarded_mode: ForwardedMode::Replace,
            strict_paths: true,
            underscores: Underscores::Refuse,
            via: Some("a:1".into()),
            date: false,
            max_requests: 5,
        };
        assert_eq!(http(all), expected);
        assert_eq!(http(""), HttpConfig::default());
    }

    #[test]
    fn paths_are_strict_where_one_is_refused() {
        let strict = |text: &str| {
            let config = parse(Path::new("t"), &listener(text)).unwrap();
            config.listeners[0].http.strict_paths
        };
        let route = |text: &str| format!("[[listener.route]]\n{text}\n");
        let refuses = route("path_prefix = \"/admin\"\nstatus = 403");
        assert!(strict(&refuses));
        assert!(!strict(&format!("strict_paths = false\n{refuses}")));
        assert!(!strict("") && strict("strict_paths = true"));
        assert!(!strict(&route("client = \"10.0.0.0/8\"\nstatus = 403")));
        assert!(!strict(&route("path = \"/a\"\nredirect = \"https://b.example\"")));
    }

    #[test]
    fn what_is_for_http_is_wrong_elsewhere() {
        for (protocol, key, line) in [
            ("tcp", "[listener.http]\nmax_requests = 5", 5),
            ("tls", "[listener.http]", 5),
        ] {
            let text = format!(
                "[[listener]]\nlisten = \"127.0.0.1:1\"\nto = \"127.0.0.1:2\"\nprotocol = \"{protocol}\"\n{key}"
            );
            let wrong = parse(Path::new("t"), &text).unwrap_err();
            let error: String = wrong.iter().map(ToString::to_string).collect();
            assert!(error.contains("add protocol = \"http\""), "{text}: {error}");
            assert_eq!(wrong[0].line(), line, "{error}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_named_with_the_remedy() {
        for (text, remedy) in [
            ("max_head = \"1MB\"\nmax_requests = 0", "use 1 to"),
            ("max_head = \"2MiB\"", "use 1KiB to 1MiB"),
            ("max_head = \"many\"", "use 1KiB to 1MiB"),
            ("head_timeout = \"0s\"", "use 1ms to"),
            ("forwarded = [\"forwarded\", \"forwarded\"]", "name each once"),
            ("forwarded = [\"via\"]", "x-forwarded-for"),
            ("head_timout = \"1s\"", "head_timeout"),
            ("via = \"a b\"", "without blanks"),
            ("via = \"\"", "without blanks"),
            ("underscores = \"off\"", "drop, pass, refuse"),
            ("forwarded_mode = \"add\"", "append, replace"),
            (
                "[[listener.route]]\nheader = { name = \"x_y\" }\nstatus = 403",
                "add underscores = \"pass\"",
            ),
        ] {
            let wrong = parse(Path::new("t"), &listener(text)).unwrap_err();
            let error: String = wrong.iter().map(ToString::to_string).collect();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
