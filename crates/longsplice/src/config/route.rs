//! Routes of a listener: which upstream a request gets.

use serde::Deserialize;
use toml::Spanned;

use super::settle::Settler;

/// One route.
#[derive(Debug, Clone)]
pub struct RouteConfig {
    /// Its name.
    pub name: String,
}

/// The table as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Option<Spanned<String>>,
}

impl Settler<'_> {
    /// What the tables of a listener mean; `upstreams` are the names there are.
    pub(super) fn routes(&mut self, given: Vec<Spanned<Raw>>, upstreams: &[String]) -> Vec<RouteConfig> {
        let _ = upstreams;
        let name = |raw: Spanned<Raw>| raw.into_inner().name.map(Spanned::into_inner);
        let routes = given.into_iter().map(name);
        routes
            .map(|name| RouteConfig {
                name: name.unwrap_or_default(),
            })
            .collect()
    }
}
