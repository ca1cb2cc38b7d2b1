//! TLS: hellos are read and passed on unchanged, connections are terminated, and nothing fails open.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod passed;
mod refused;
mod routed;
mod terminated;

use std::net::SocketAddr;

use longsplice_lab::Three;
use longsplice_tests::{Config, Policy, three};

/// The nodes, and a listener on the forwarder for a server that is to be started.
pub(crate) struct Place {
    pub(crate) net: Three,
    /// Where clients connect to.
    pub(crate) front: SocketAddr,
    /// Where the server is.
    pub(crate) target: SocketAddr,
}

impl Place {
    pub(crate) fn new(name: &str) -> Place {
        let net = three(name, Default::default());
        Place {
            front: (net.forwarder_client_addr, 8443).into(),
            target: (net.server_addr, 7443).into(),
            net,
        }
    }

    pub(crate) fn config(&self, policy: Policy<'_>, protocol: &str) -> Config {
        Config::new()
            .listener(self.front, self.target, policy.splice, policy.detach)
            .with(&format!("protocol = \"{protocol}\""))
    }

    /// The words that have curl find this server at the listener, and trust this certificate.
    pub(crate) fn curl_words(&self, host: &str, certificate: &longsplice_tests::Certificate) -> Vec<String> {
        vec![
            "--connect-to".into(),
            format!("{host}:443:{}", self.front),
            "--cacert".into(),
            certificate.certificate.display().to_string(),
        ]
    }
}
