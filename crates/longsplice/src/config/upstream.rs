//! Upstreams: sets of servers.

use serde::Deserialize;
use toml::Spanned;

use super::{
    raw::{OneOrMany, flatten},
    settle::Settler,
};
use crate::address::Target;

/// A set of servers.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    /// Routes and listeners name it.
    pub name: String,
    /// Its servers.
    pub servers: Vec<Target>,
}

/// The table as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Spanned<String>,
    servers: Spanned<OneOrMany<Target>>,
}

impl Settler<'_> {
    /// What the tables mean.
    pub(super) fn upstreams(&mut self, given: Vec<Spanned<Raw>>) -> Vec<UpstreamConfig> {
        let mut all: Vec<UpstreamConfig> = Vec::new();
        for raw in given {
            let raw = raw.into_inner();
            if all.iter().any(|u| u.name == *raw.name.get_ref()) {
                let message = format!("another upstream is named `{}`", raw.name.get_ref());
                self.complain(
                    raw.name.span(),
                    message,
                    "routes tell upstreams apart by their names",
                );
            }
            all.push(UpstreamConfig {
                name: raw.name.into_inner(),
                servers: flatten(raw.servers)
                    .into_iter()
                    .map(Spanned::into_inner)
                    .collect(),
            });
        }
        all
    }
}
