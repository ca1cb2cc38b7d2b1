//! TLS: hellos are read and passed on unchanged, connections are terminated, and nothing fails open.

mod passed;
mod refused;
mod routed;
mod terminated;

use std::net::SocketAddr;

use longsplice_lab::Line;
use longsplice_tests::{Config, Policy, veth_line};

/// Nodes, and a listener on the forwarder for a server that is to be started.
pub(crate) struct Place {
    pub(crate) net: Line,
    /// Address that clients connect to.
    pub(crate) front: SocketAddr,
    /// Address of the server.
    pub(crate) target: SocketAddr,
}

impl Place {
    pub(crate) fn new(name: &str) -> Place {
        let net = veth_line(name, Default::default());
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

    /// Returns the words that make curl connect to the listener for this host, and trust this certificate.
    pub(crate) fn curl_words(&self, host: &str, certificate: &longsplice_tests::Certificate) -> Vec<String> {
        vec![
            "--connect-to".into(),
            format!("{host}:443:{}", self.front),
            "--cacert".into(),
            certificate.certificate.display().to_string(),
        ]
    }
}
