//! Runs Longsplice between the ends of verified traffic.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use longsplice_engine::{Counters, FlowId, FlowInfo, FlowState};
use longsplice_lab::topology::Nodes;
use longsplice_lab::traffic::ConnectionOutcome;
use longsplice_lab::{Namespace, Outcome, Traffic, TrafficServer, TrafficSpec};

use super::Scope;
use crate::daemon::{Daemon, Instance, Policy};
use crate::wait;

/// Longest time for which connections that have ended may still be listed.
const SETTLE: Duration = Duration::from_secs(20);
/// Time after which a listed connection is reported as stuck, without an end of the run.
const LINGER: Duration = Duration::from_secs(5);

/// Daemon with a listener for each of some policies, and a server of verified traffic behind it.
#[derive(Debug)]
pub(super) struct Middle {
    /// Daemon.
    pub(super) daemon: Daemon,
    /// Addresses of its listeners, in the order of the policies.
    pub(super) at: Vec<SocketAddr>,
    /// Flows that were there long after both their ends had gone.
    stuck: RefCell<BTreeMap<FlowId, FlowInfo>>,
    _server: TrafficServer,
    _instance: Arc<Instance>,
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
            stuck: RefCell::default(),
            _server: server,
            _instance: instance,
        })
    }

    /// Returns the daemon's counters, once no connection is relayed or on its way to a splice or back. A flow that
    /// stays so after its ends have gone is stuck: it is reported, and not waited for again.
    pub(super) fn counted(&self) -> Result<Counters> {
        let mut left = Vec::new();
        let ended = wait::until("connections to end", LINGER, || {
            left = moving(&self.daemon)?;
            left.retain(|flow| !self.stuck.borrow().contains_key(&flow.id));
            Ok(left.is_empty().then_some(()))
        });
        if ended.is_err() {
            for flow in left {
                eprintln!("   STUCK in the daemon after {LINGER:?}: {flow:?}");
                self.stuck.borrow_mut().insert(flow.id, flow);
            }
        }
        Ok(self.daemon.status()?.counters)
    }

    /// Returns the stuck flows, as the daemon showed them.
    pub(super) fn stuck(&self) -> Vec<FlowInfo> {
        self.stuck.borrow().values().cloned().collect()
    }

    /// Returns the number of stuck flows as a part of a detail; an empty text if there are none.
    pub(super) fn tell_stuck(&self) -> String {
        match &self.stuck()[..] {
            [] => String::new(),
            all @ [first, ..] => format!(
                "; {} FLOWS STUCK in the daemon after their ends had gone, the first in state {:?}",
                all.len(),
                first.state
            ),
        }
    }
}

/// Returns the flows in transition, whose sockets the daemon has.
fn moving(daemon: &Daemon) -> Result<Vec<FlowInfo>> {
    let moves = |flow: &FlowInfo| {
        matches!(
            flow.state,
            FlowState::Relay | FlowState::Coupling | FlowState::Draining | FlowState::Undraining
        )
    };
    let mut flows = daemon.flows()?;
    flows.retain(moves);
    Ok(flows)
}

/// Fails when a connection did: figures of such a run mean nothing.
pub(super) fn all_ok(outcome: &Outcome) -> Result<()> {
    match outcome.failures().next() {
        Some((number, failure)) => bail!("connection {number} failed: {failure}"),
        None => Ok(()),
    }
}

/// Returns the daemon's counters, once no connection is relayed or on its way to a splice or back.
pub(super) fn settled(daemon: &Daemon) -> Result<Counters> {
    let mut left = Vec::new();
    let ended = wait::until("connections to end", SETTLE, || {
        left = moving(daemon)?;
        Ok(left.is_empty().then_some(()))
    });
    ended.with_context(|| format!("{} are still there, such as {:?}", left.len(), left.first()))?;
    Ok(daemon.status()?.counters)
}

/// Runs the same traffic to each of some listeners, all at the same time.
pub(super) fn side_by_side<const N: usize>(
    client: &Namespace,
    at: [SocketAddr; N],
    spec: &TrafficSpec,
) -> Result<[Outcome; N]> {
    let outcomes = thread::scope(|scope| {
        let threads = at.map(|at| scope.spawn(move || Traffic::run(client, at, spec)));
        threads.map(|thread| thread.join())
    });
    let mut all = Vec::with_capacity(N);
    for outcome in outcomes {
        all.push(outcome.map_err(|_| anyhow!("a thread panicked"))??);
    }
    all.try_into().map_err(|_| anyhow!("not every listener was used"))
}

/// Returns the longest gap at either end of a connection, in milliseconds.
pub(super) fn longest_ms(connection: &ConnectionOutcome) -> f64 {
    let ends = [Some(&connection.client), connection.server.as_ref()];
    let gaps = ends.into_iter().flatten().map(|end| end.longest_gap_us);
    gaps.max().unwrap_or(0) as f64 / 1e3
}
