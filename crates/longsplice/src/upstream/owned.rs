//! Closes the idle connections that one client alone could use, once that client is gone.

use std::sync::{Arc, Weak};

use super::{Server, Tenure, idle::Owner};

/// Servers with connections whose PROXY header names one client. When it is dropped, those that are idle are closed:
/// left to the sweep, they would push those of other clients out.
#[derive(Debug, Default)]
pub(crate) struct Owned(Vec<(Weak<Server>, Owner)>);

impl Owned {
    /// Notes the server of a permit, if its idle connection is kept for one client alone. Has no more entries than there
    /// are servers.
    pub(crate) fn note(&mut self, tenure: &Tenure) {
        let Some(owner @ Some(_)) = tenure.keep_for else {
            return;
        };
        let server = Arc::downgrade(tenure.server());
        if !self.0.iter().any(|(known, _)| known.ptr_eq(&server)) {
            self.0.retain(|(known, _)| known.strong_count() > 0);
            self.0.push((server, owner));
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        for (server, owner) in &self.0 {
            if let Some(server) = server.upgrade() {
                server.idle.close_of(*owner);
            }
        }
    }
}
