//! `[listener.http]`: limits and habits of a listener that speaks HTTP.

use std::{ops::Range, time::Duration};

use longsplice_core::{http::rewrite::ForwardedFields, policy::parse_bytes};
use serde::Deserialize;
use toml::Spanned;

use super::{Period, Protocol, settle::Settler};

/// Limits and habits of a listener that speaks HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// How long the head of a request may take from its first byte on, the first one from the accept on: 408 after that.
    pub head_timeout: Duration,
    /// How long the head of a request or reply may be, in bytes: 431 beyond.
    pub max_head: usize,
    /// How long a client may be silent between two requests.
    pub idle_timeout: Duration,
    /// How long no byte of a body may come or go.
    pub body_timeout: Duration,
    /// How long a server may take to begin its reply: 504 after that.
    pub reply_timeout: Duration,
    /// Which fields tell the server of the client.
    pub forwarded: ForwardedFields,
    /// How many requests of one client connection are served.
    pub max_requests: u64,
}

/// A field that tells the server of the client.
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
            max_requests: 10_000,
        }
    }
}

/// The table as it is written.
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
    max_requests: Option<Spanned<i64>>,
}

/// Less would not take what browsers send; more is an attack.
const HEADS: Range<u64> = 1 << 10..(1 << 20) + 1;

impl Settler<'_> {
    /// What the table means.
    pub(super) fn http(&mut self, given: Option<Spanned<Raw>>, protocol: Protocol) -> HttpConfig {
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
        HttpConfig {
            head_timeout,
            max_head: raw.max_head.map_or(default.max_head, |n| self.max_head(&n)),
            idle_timeout,
            body_timeout,
            reply_timeout,
            forwarded: self.forwarded(raw.forwarded),
            max_requests,
        }
    }

    /// A key of a listener that means something to HTTP only.
    fn needs_http(&mut self, key: &str, at: Range<usize>, protocol: Protocol) {
        if protocol != Protocol::Http {
            let message = format!("{key} is for HTTP, which this listener does not read");
            let help = "add protocol = \"http\" to the listener, or leave it out";
            self.complain(at, message, help);
        }
    }

    /// From which length on replies are spliced, in bytes; `None`: as measured.
    pub(super) fn splice_from(&mut self, given: Option<Spanned<String>>, protocol: Protocol) -> Option<u64> {
        let given = given?;
        self.needs_http("splice_from", given.span(), protocol);
        match given.get_ref().as_str() {
            "auto" => None,
            text => {
                let bytes = parse_bytes(text);
                if bytes.is_none() {
                    let message = format!("`{text}` is no length");
                    self.complain(given.span(), message, "write auto, or bytes such as 64KiB");
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
                self.complain(given.span(), message, "use 1KiB to 1MiB, such as 32KiB");
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
                   reply_timeout = \"4s\"\nforwarded = [\"x-forwarded-for\", \"forwarded\"]\nmax_requests = 5";
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
            max_requests: 5,
        };
        assert_eq!(http(all), expected);
        assert_eq!(http(""), HttpConfig::default());
    }

    #[test]
    fn what_is_for_http_is_wrong_elsewhere() {
        for (protocol, key, line) in [
            ("tcp", "splice_from = \"1MiB\"", 5),
            ("tls", "splice_from = \"auto\"", 5),
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
        ] {
            let wrong = parse(Path::new("t"), &listener(text)).unwrap_err();
            let error: String = wrong.iter().map(ToString::to_string).collect();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
