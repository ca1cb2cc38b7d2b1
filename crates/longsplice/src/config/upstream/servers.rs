//! Reads `servers` and `[[upstream.server]]`.

use std::ops::Range;

use longsplice_core::balance::MAX_WEIGHT;
use serde::Deserialize;
use toml::Spanned;

use super::place::ServerPlace;
use crate::config::{
    one_or_many::{OneOrMany, flatten},
    settler::Settler,
};

/// An entry: one server, or all servers of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    /// Name, if it is not the address.
    pub name: Option<String>,
    /// Location.
    pub place: ServerPlace,
    /// Weight in the choice, 1 to 1000.
    pub weight: u32,
    /// Limit of the connections to each of its addresses.
    pub max_connections: Option<u32>,
    /// True if it serves only when no other server is up.
    pub backup: bool,
}

impl ServerConfig {
    /// Creates an entry of weight 1.
    pub(crate) fn new(place: ServerPlace) -> ServerConfig {
        ServerConfig {
            name: None,
            place,
            weight: 1,
            max_connections: None,
            backup: false,
        }
    }

    /// Returns the name, or the address as configured.
    pub(crate) fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.place.to_string())
    }
}

/// A table as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawServer {
    pub(super) address: Spanned<ServerPlace>,
    name: Option<Spanned<String>>,
    weight: Option<Spanned<i64>>,
    max_connections: Option<Spanned<i64>>,
    backup: Option<bool>,
}

/// Combines both forms, in the order of the file. `max_connections` is that of the upstream.
pub(super) fn servers(
    s: &mut Settler<'_>,
    list: Option<Spanned<OneOrMany<ServerPlace>>>,
    tables: Vec<Spanned<RawServer>>,
    max_connections: Option<u32>,
    place: Range<usize>,
) -> Vec<ServerConfig> {
    let mut all: Vec<ServerConfig> = Vec::new();
    for entry in list.map(flatten).unwrap_or_default() {
        let span = entry.span();
        let server = ServerConfig {
            max_connections,
            ..ServerConfig::new(entry.into_inner())
        };
        add(s, &mut all, server, span);
    }
    for table in tables {
        let raw = table.into_inner();
        let span = raw.address.span();
        let server = ServerConfig {
            name: raw.name.map(|name| self::name(s, name)),
            place: raw.address.into_inner(),
            weight: s.count("weight", raw.weight.as_ref(), 1, MAX_WEIGHT),
            max_connections: match raw.max_connections {
                Some(n) => Some(s.count("max_connections", Some(&n), 1, 1 << 26)),
                None => max_connections,
            },
            backup: raw.backup.unwrap_or(false),
        };
        add(s, &mut all, server, span);
    }
    if all.is_empty() {
        s.complain(
            place,
            "the upstream has no server",
            "add servers = [\"192.0.2.1:80\"], or [[upstream.server]] tables",
        );
    } else if all.iter().all(|server| server.backup) {
        s.complain(
            place,
            "all servers of the upstream are backups",
            "a backup stands in for others: take backup = true from one of them",
        );
    }
    all
}

fn add(s: &mut Settler<'_>, all: &mut Vec<ServerConfig>, server: ServerConfig, span: Range<usize>) {
    if all.iter().any(|earlier| earlier.place == server.place) {
        let message = format!("`{}` is twice in this upstream", server.place);
        s.complain(span, message, "write it once; weight = 2 gives it twice the work");
    } else if all.iter().any(|earlier| earlier.label() == server.label()) {
        let message = format!("another server of this upstream is called `{}`", server.label());
        s.complain(
            span,
            message,
            "`longsplice servers drain` tells servers apart by their names",
        );
    }
    all.push(server);
}

/// Checks a name: it must be usable as UPSTREAM/SERVER.
pub(super) fn name(s: &mut Settler<'_>, name: Spanned<String>) -> String {
    let wrong = |c: char| c.is_control() || c.is_whitespace() || c == '/';
    if name.get_ref().is_empty() || name.get_ref().contains(wrong) {
        let message = format!("`{}` cannot be a name here", name.get_ref());
        s.complain(
            name.span(),
            message,
            "use text without spaces and slashes: `longsplice servers drain UPSTREAM/SERVER` takes it",
        );
    }
    name.into_inner()
}
