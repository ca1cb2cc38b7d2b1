//! Surroundings of a run: the links, the hosts, the nodes, and the flows over them.

use longsplice_lab::{Chain, Family, LinkReport, LinkSpec, Verdict};
use serde::Serialize;

use super::accelerator::{Accelerator, Program};
use super::load::{FlowOutcome, FlowSpec, Load};
use super::queue::{QueueSample, Sampler};

/// Everything that a run depends on, except its seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Scene {
    /// Links from the client to the server; there is a node between any two.
    pub(crate) links: Vec<LinkSpec>,
    /// Congestion control of the hosts, and of the nodes' sockets where the options of a node name no other.
    pub(crate) congestion: &'static str,
    /// Largest window of the hosts' sockets, in bytes; `None`: large enough for any path here.
    pub(crate) host_window: Option<u32>,
    /// Largest window of the nodes' sockets, in bytes.
    pub(crate) node_window: Option<u32>,
    /// Most bytes that a node's socket holds for its far end, sent or not; `None`: several windows. (A node's window is not
    /// the place to limit it: it is never smaller than what the far end had offered before it was taken over.)
    pub(crate) node_store: Option<u32>,
    /// Options of `longsplice accelerate` for each node; empty: all nodes are routers.
    pub(crate) accelerators: Vec<Vec<String>>,
    /// Flows from the client to the server, all from the start.
    pub(crate) flows: Vec<FlowSpec>,
    /// End of the run.
    pub(crate) load: Load,
    /// True if the bytes that wait in the first node are sampled.
    pub(crate) samples_queue: bool,
}

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) flows: Vec<FlowOutcome>,
    /// Samples of the bytes that waited in the first node.
    pub(crate) queue: Vec<QueueSample>,
    /// State of the accelerator of each node at the end, as its daemon reports it.
    pub(crate) accelerators: Vec<serde_json::Value>,
    pub(crate) links: Vec<LinkReport>,
    pub(crate) verdict: Verdict,
}

impl Outcome {
    /// Returns the goodput of all flows together, in Mbit/s.
    pub(crate) fn goodput(&self) -> f64 {
        self.flows.iter().map(FlowOutcome::goodput).sum()
    }

    /// Returns the reasons against this run: a late emulator, a failed flow, an accelerator that took too few flows.
    pub(crate) fn against(&self, scene: &Scene) -> Vec<String> {
        let mut against: Vec<String> = self.verdict.against().to_vec();
        for flow in &self.flows {
            let reason = |failure: &String| format!("port {}: {failure}", flow.port);
            against.extend(flow.failure.iter().map(reason));
        }
        let wanted = scene.flows.iter().filter(|flow| flow.is_accelerated).count() as u64;
        for (n, node) in self.accelerators.iter().enumerate() {
            let count = |value: &serde_json::Value| value.as_u64().unwrap_or_default();
            let taken = count(&node["taken_over_total"]);
            // A node that is itself too small for a flow is right to leave it alone.
            let declined = count(&node["passed_through_total"]["buffers"]);
            if taken + declined < wanted {
                let name = n + 1;
                against.push(format!(
                    "node{name} took {taken} of {wanted} connections over: {node}"
                ));
            }
        }
        against
    }
}

impl Scene {
    /// Returns the same scene with nodes that only route.
    pub(crate) fn plain(&self) -> Scene {
        let plain = |flow: &FlowSpec| FlowSpec {
            is_accelerated: false,
            ..*flow
        };
        Scene {
            accelerators: Vec::new(),
            flows: self.flows.iter().map(plain).collect(),
            node_window: None,
            node_store: None,
            ..self.clone()
        }
    }

    /// Runs it once.
    pub(crate) fn run(&self, program: &Program, seed: u64) -> anyhow::Result<Outcome> {
        let links: Vec<LinkSpec> = self
            .links
            .iter()
            .map(|link| link.clone().with_seed(seed))
            .collect();
        let chain = Chain::new("lab-exp", Family::V4, &links)?;
        self.settle(&chain)?;
        let start = |(node, options): (_, &Vec<String>)| Accelerator::start(program, node, options);
        let accelerators = chain
            .nodes
            .iter()
            .zip(&self.accelerators)
            .map(start)
            .collect::<anyhow::Result<Vec<_>>>()?;
        chain.emulator().reset();
        let sampler = self
            .samples_queue
            .then(|| chain.nodes.first().map(|node| Sampler::start(node.name())))
            .flatten();
        let flows = self.load.run(&chain, &self.flows, seed)?;
        let verdict = chain.verdict();
        Ok(Outcome {
            seed,
            flows,
            queue: sampler.map(Sampler::finish).unwrap_or_default(),
            accelerators: accelerators.iter().map(Accelerator::status).collect(),
            links: chain.link_reports(),
            verdict,
        })
    }

    /// Sets the congestion control and the windows of hosts and nodes.
    fn settle(&self, chain: &Chain) -> Result<(), longsplice_lab::Error> {
        let hosts = [&chain.client, &chain.server];
        let all = hosts
            .iter()
            .map(|host| (*host, self.host_window))
            .chain(chain.nodes.iter().map(|node| (node, self.node_window)));
        for (namespace, window) in all {
            namespace.sysctl("net.ipv4.tcp_congestion_control", self.congestion)?;
            if let Some(window) = window {
                // Count on five eighths: Linux 6.18 offers so much of a receive buffer once full segments have come. A
                // send buffer must hold what is not yet acknowledged, and its overhead.
                let (read, write) = (window / 5 * 8, window * 4);
                namespace.sysctl("net.ipv4.tcp_rmem", &format!("4096 {read} {read}"))?;
                namespace.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {write}"))?;
            }
        }
        if let Some(store) = self.node_store {
            // Add a quarter for the kernel's own share of a buffer of full segments.
            let write = store / 4 * 5;
            for node in &chain.nodes {
                node.sysctl(
                    "net.ipv4.tcp_wmem",
                    &format!("4096 {} {write}", write.min(16_384)),
                )?;
            }
        }
        Ok(())
    }
}
