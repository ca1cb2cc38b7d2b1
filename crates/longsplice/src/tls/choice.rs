//! Chooses the certificate for a client.

use std::{collections::HashMap, sync::Arc};

use rustls::{SignatureScheme, sign::CertifiedKey};

use super::certificate::Loaded;

/// Certificates by their names.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Certificates by name, or by `*.` and a name. A name has several for several kinds of keys.
    by_name: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// Default for clients that name no server, or an unknown one.
    first: Option<Arc<CertifiedKey>>,
}

impl Choice {
    /// Indexes the certificates; the first is the default.
    pub(super) fn new(all: &[Loaded]) -> Choice {
        let mut by_name: HashMap<String, Vec<_>> = HashMap::new();
        for one in all {
            for name in &one.names {
                by_name
                    .entry(name.clone())
                    .or_default()
                    .push(Arc::clone(&one.key));
            }
        }
        Choice {
            by_name,
            first: all.first().map(|one| Arc::clone(&one.key)),
        }
    }

    /// Returns the certificate for this name: an exact match, else a wildcard for its first label, else the default.
    /// Among equal matches, returns the first whose key the client can use.
    pub(super) fn find(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let usable = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(schemes).is_some();
        let named = |name: &str| self.by_name.get(name).and_then(|keys| keys.iter().find(usable));
        let name = name.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let found = name.and_then(|name| {
            let wildcard = || {
                let (_, parent) = name.split_once('.')?;
                named(&format!("*.{parent}"))
            };
            named(&name).or_else(wildcard)
        });
        found.or(self.first.as_ref()).map(Arc::clone)
    }
}

#[cfg(test)]
mod tests;
