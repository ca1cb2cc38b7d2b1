//! Selects the part of a connection that a listener reads.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::settler::Settler;

/// Part of a connection that a listener reads before it chooses a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// Nothing.
    #[default]
    Tcp,
    /// The ClientHello (SNI and ALPN), which is passed on.
    Tls,
    /// Each HTTP/1 request.
    Http,
}

impl Settler<'_> {
    /// Complains about a key of a listener that has a meaning for HTTP only.
    pub(super) fn needs_http(&mut self, key: &str, at: Range<usize>, protocol: Protocol) {
        if protocol != Protocol::Http {
            let message = format!("{key} is for HTTP, which this listener does not read");
            let help = "add protocol = \"http\" to the listener, or leave it out";
            self.complain(at, message, help);
        }
    }
}
