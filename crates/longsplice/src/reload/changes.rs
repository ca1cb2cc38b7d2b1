//! Applies `on_reload`: decides which open connections end because the configuration changed.

use std::{collections::HashMap, sync::Arc};

use crate::listener::{Decided, KeptFacts, Settings, ends};

/// Settings of the new generation, by listener.
#[derive(Debug, Default)]
pub(super) struct Next {
    listeners: HashMap<String, Arc<Settings>>,
}

impl Next {
    pub(super) fn new<'a>(settings: impl Iterator<Item = &'a Arc<Settings>>) -> Next {
        Next {
            listeners: settings
                .map(|s| (s.listener.name.clone(), Arc::clone(s)))
                .collect(),
        }
    }

    /// Returns whether a connection with this decision, on these facts, must end under the new settings of its
    /// listener, as [`ends`] says.
    pub(super) fn ends(&self, decided: &Decided, facts: Option<&KeptFacts>) -> bool {
        let next = self.listeners.get(&decided.listener.name);
        ends(decided, facts, next.map(Arc::as_ref))
    }
}
