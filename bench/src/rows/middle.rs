//! Longsplice between the ends of verified traffic.

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Result, bail};
use longsplice_lab::topology::Nodes;
use longsplice_lab::{Outcome, TrafficServer};

use super::Scope;
use crate::daemon::{Daemon, Instance, Policy};

/// A daemon with a listener for each of some policies, and a server of verified traffic behind it.
#[derive(Debug)]
pub(super) struct Middle {
    /// The daemon.
    pub(super) daemon: Daemon,
    /// Where its listeners are, in the order of the policies.
    pub(super) at: Vec<SocketAddr>,
    _server: TrafficServer,
    _instance: Rc<Instance>,
}

impl Middle {
    /// Starts both.
    pub(super) fn start(scope: &Scope<'_>, nodes: &Nodes, policies: &[Policy<'_>]) -> Result<Self> {
        let server = TrafficServer::start(&nodes.server, (nodes.server_addr, 7000).into())?;
        let instance = Instance::new(scope.room)?;
        let front = (nodes.forwarder_client_addr, 8001).into();
        let (daemon, at) = Daemon::listeners(&instance, &nodes.forwarder, front, server.addr(), policies)?;
        Ok(Middle {
            daemon,
            at,
            _server: server,
            _instance: instance,
        })
    }
}

/// Fails when a connection did: figures of such a run mean nothing.
pub(super) fn all_ok(outcome: &Outcome) -> Result<()> {
    match outcome.failures().next() {
        Some((number, failure)) => bail!("connection {number} failed: {failure}"),
        None => Ok(()),
    }
}
