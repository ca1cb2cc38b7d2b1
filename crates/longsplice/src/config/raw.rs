//! Holds the file as written: each key with its position, nothing decided yet.

use std::{fmt, path::PathBuf};

use longsplice_core::{
    limit::RateLimit,
    policy::{DetachPolicy, SplicePolicy},
};
use longsplice_engine::{Until, rules::Network};
use serde::{
    Deserialize, Deserializer,
    de::{self, value::StrDeserializer},
};
use toml::Spanned;

use super::{
    KeepaliveSetting, LogFormat, LogLevel, MemoryLimit, OnChange, OnFull, OnShutdown, Period, Protocol, http,
    intercept, operations, packet_rules, route, tls, upstream,
};
use crate::{
    address::{ListenAddr, PortRange, Target},
    instance::InstanceName,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) instance: Option<InstanceName>,
    pub(super) admin: Option<Spanned<PathBuf>>,
    pub(super) interfaces: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) xdp: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) xdp_mode: Option<Spanned<String>>,
    pub(super) source_ports: Option<PortRange>,
    pub(super) max_flows: Option<Spanned<i64>>,
    pub(super) max_dormant: Option<Spanned<i64>>,
    pub(super) idle_timeout: Option<Spanned<Period>>,
    pub(super) linger: Option<Spanned<Period>>,
    pub(super) memory: Option<MemoryLimit>,
    pub(super) require_splice: Option<bool>,
    pub(super) shutdown: Option<OnShutdown>,
    pub(super) grace: Option<Spanned<Period>>,
    pub(super) log: Option<Log>,
    pub(super) on_change: Option<OnChange>,
    pub(super) metrics: Option<Spanned<operations::RawMetrics>>,
    pub(super) access_log: Option<Spanned<operations::RawAccessLog>>,
    #[serde(default)]
    pub(super) upstream: Vec<Spanned<upstream::Raw>>,
    #[serde(default)]
    pub(super) listener: Vec<Spanned<Listener>>,
    #[serde(default)]
    pub(super) rule: Vec<Spanned<packet_rules::Raw>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    pub(super) format: Option<LogFormat>,
    pub(super) level: Option<LogLevel>,
    pub(super) lines_per_second: Option<Spanned<i64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listener {
    pub(super) name: Option<Spanned<String>>,
    pub(super) listen: Spanned<OneOrMany<ListenAddr>>,
    pub(super) to: Option<Spanned<OneOrMany<Target>>>,
    pub(super) intercept: Option<Spanned<intercept::Raw>>,
    pub(super) splice: Option<SplicePolicy>,
    pub(super) detach: Option<DetachPolicy>,
    pub(super) unsplice: Option<Spanned<Until>>,
    pub(super) rate_limit: Option<RateLimit>,
    pub(super) relay_idle_timeout: Option<Spanned<Period>>,
    pub(super) keepalive: Option<KeepaliveSetting>,
    pub(super) connect_timeout: Option<Spanned<Period>>,
    pub(super) max_connections: Option<Spanned<i64>>,
    pub(super) on_full: Option<OnFull>,
    pub(super) abort_on_close: Option<bool>,
    pub(super) protocol: Option<Protocol>,
    pub(super) upstream: Option<Spanned<String>>,
    pub(super) accept_proxy: Option<Spanned<OneOrMany<Network>>>,
    pub(super) splice_from: Option<Spanned<String>>,
    pub(super) on_change: Option<OnChange>,
    pub(super) tls: Option<Spanned<tls::Raw>>,
    pub(super) http: Option<Spanned<http::Raw>>,
    #[serde(default)]
    pub(super) route: Vec<Spanned<route::Raw>>,
}

/// A string, or a list of strings. (An untagged enum would lose the places of the elements.)
#[derive(Debug, Clone)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<Spanned<T>>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Either<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Either<T> {
            type Value = OneOrMany<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text in quotes, or a list of it")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Self::Value, E> {
                T::deserialize(StrDeserializer::new(s)).map(OneOrMany::One)
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = seq.next_element()? {
                    all.push(one);
                }
                Ok(OneOrMany::Many(all))
            }
        }
        d.deserialize_any(Either(std::marker::PhantomData))
    }
}

/// Returns the elements, each with its position.
pub(super) fn flatten<T>(list: Spanned<OneOrMany<T>>) -> Vec<Spanned<T>> {
    let span = list.span();
    match list.into_inner() {
        OneOrMany::One(one) => vec![Spanned::new(span, one)],
        OneOrMany::Many(many) => many,
    }
}
