//! Surroundings of a run: the links, the hosts, the nodes, and the flows over them.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use longsplice_lab::{Family, Graph, GraphSpec, LinkReport, Namespace, Verdict, cores};
use serde::Serialize;

use super::accelerator::{Accelerator, Program};
use super::cost::{Clock, Cost};
use super::load::{FlowOutcome, FlowSpec, Load};
use super::queue::{QueueSample, Sampler};
use super::remains::NAME;

/// Longest time for which a request to a node is repeated while it is refused.
const PATIENCE: Duration = Duration::from_secs(1);

/// Most directions of late links that are named.
const MOST_REASONS: usize = 4;

/// Everything that a run depends on, except its seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Scene {
    /// Hosts, nodes and links.
    pub(crate) graph: GraphSpec,
    /// Congestion control of the hosts, and of the nodes' sockets where the options of a node name no other.
    pub(crate) congestion: &'static str,
    /// Largest window of the hosts' sockets, in bytes; `None`: large enough for any path here.
    pub(crate) host_window: Option<u32>,
    /// Largest window of the nodes' sockets, in bytes.
    pub(crate) node_window: Option<u32>,
    /// Most bytes that a node's socket holds for its far end, sent or not; `None`: several windows. (A node's window is not
    /// the place to limit it: it is never smaller than what the far end had offered before it was taken over.)
    pub(crate) node_store: Option<u32>,
    /// Congestion window with which the nodes' sockets begin, in segments (`initcwnd` of their routes); `None`: the kernel's
    /// 10.
    pub(crate) initial_window: Option<u32>,
    /// Options of `longsplice accelerate` for each node; empty: all nodes are routers.
    pub(crate) accelerators: Vec<Vec<String>>,
    /// Number of nodes that each flow passes.
    pub(crate) nodes_passed: usize,
    /// Time that a node with an accelerator takes for each packet: it leaves so much later.
    pub(crate) processing: Duration,
    /// Flows between hosts.
    pub(crate) flows: Vec<FlowSpec>,
    /// End of the run.
    pub(crate) load: Load,
    /// True if the bytes that wait in the first node are sampled.
    pub(crate) samples_queue: bool,
    /// Requests to the first node, in the order of their times.
    pub(crate) steps: Vec<Step>,
    /// True if the cost of the run for the first node is measured.
    pub(crate) measures_cost: bool,
    /// Interval in which the bytes of each flow are counted.
    pub(crate) samples_every: Option<Duration>,
}

/// Request to the accelerator of the first node, at a time from the start of the run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) action: Action,
}

/// Request to an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// List the flows.
    List,
    /// Release all connections.
    Splice,
    /// Take all released connections over again.
    Unsplice,
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
    /// Flows of the first node, as its daemon has listed them last.
    #[serde(skip)]
    pub(crate) listed: Vec<serde_json::Value>,
    /// Requests to the first node that it refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) refused: Vec<String>,
    /// Cost of the run for the first node, where it is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<Cost>,
    /// Reports on the links; in a graph with routers only on those between two of them.
    pub(crate) links: Vec<LinkReport>,
    /// Largest 99th percentile of the lateness of a link's direction, in milliseconds.
    pub(crate) lateness_p99_ms: f64,
    pub(crate) verdict: Verdict,
}

impl Outcome {
    /// Returns the goodput of all flows together, in Mbit/s.
    pub(crate) fn goodput(&self) -> f64 {
        self.flows.iter().map(FlowOutcome::goodput).sum()
    }

    /// Returns the reasons against this run: a late emulator, a failed flow, an accelerator that took too few flows.
    pub(crate) fn against(&self, scene: &Scene) -> Vec<String> {
        let late = self.verdict.against();
        let mut against: Vec<String> = late.iter().take(MOST_REASONS).cloned().collect();
        if late.len() > MOST_REASONS {
            against.push(format!("and so in {} more directions", late.len() - MOST_REASONS));
        }
        against.extend_from_slice(&self.refused);
        for flow in &self.flows {
            let reason = |failure: &String| format!("port {}: {failure}", flow.port);
            against.extend(flow.failure.iter().map(reason));
        }
        let accelerated = scene.flows.iter().filter(|flow| flow.is_accelerated).count() as u64;
        let wanted = accelerated * scene.nodes_passed as u64;
        let count = |value: &serde_json::Value| value.as_u64().unwrap_or_default();
        // A node that is itself too small for a flow is right to leave it alone.
        let taken = |node: &serde_json::Value| {
            count(&node["taken_over_total"]) + count(&node["passed_through_total"]["buffers"])
        };
        let total: u64 = self.accelerators.iter().map(taken).sum();
        if !self.accelerators.is_empty() && total < wanted {
            against.push(format!(
                "the nodes took connections over {total} times of {wanted}: {:?}",
                self.accelerators
            ));
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
            initial_window: None,
            processing: Duration::ZERO,
            ..self.clone()
        }
    }

    /// Returns the graph of a run: with seeds, and with the processing of the nodes as a delay of what leaves them.
    fn graph(&self, seed: u64) -> GraphSpec {
        let mut graph = self.graph.clone();
        for link in &mut graph.links {
            link.link = link.link.clone().with_seed(seed);
            let is_node = |name: &String| graph.nodes.contains(name);
            if is_node(&link.between[0]) {
                link.link.to_server.delay += self.processing;
            }
            if is_node(&link.between[1]) {
                link.link.to_client.delay += self.processing;
            }
        }
        graph
    }

    /// Runs it once.
    pub(crate) fn run(&self, program: &Program, seed: u64) -> anyhow::Result<Outcome> {
        let spec = self.graph(seed);
        let graph = cores::apart(
            || Graph::new(NAME, Family::V4, &spec),
            |graph| graph.nodes().into_iter().map(|(_, node)| node).collect(),
        )?;
        self.settle(&graph)?;
        let mut accelerators = Vec::new();
        for (name, options) in spec.nodes.iter().zip(&self.accelerators) {
            let node = graph.namespace(name).context("a node has a namespace")?;
            accelerators.push(Accelerator::start(program, node, options)?);
        }
        let clock = self.measures_cost.then(Clock::start).transpose()?;
        let cost = || match (&clock, accelerators.first()) {
            (Some(_), Some(first)) => first.cost().map(Some),
            _ => Ok(None),
        };
        let cost_before = cost()?;
        graph.emulator().reset();
        let first = spec.nodes.first().and_then(|name| graph.namespace(name));
        let sampler = first
            .filter(|_| self.samples_queue)
            .map(|node| Sampler::start(node.name()));
        let (flows, taken) = thread::scope(|scope| {
            let start = Instant::now();
            let steps = accelerators
                .first()
                .map(|first| scope.spawn(move || take(&self.steps, first, start)));
            let flows = self
                .load
                .run(&graph, &spec, &self.flows, self.samples_every, seed);
            // A panic was printed when it happened.
            let taken = steps.and_then(|steps| steps.join().ok()).unwrap_or_default();
            (flows, taken)
        });
        let (flows, (listed, refused)) = (flows?, taken);
        let cost = cost()?
            .zip(cost_before)
            .map(|(after, before)| after.since(&before));
        let (verdict, mut links) = (graph.verdict(), graph.link_reports());
        let lateness = |link: &LinkReport| {
            let [there, back] = [&link.to_server, &link.to_client].map(|way| way.lateness.p99_ns());
            there.max(back)
        };
        let lateness_p99_ms = links.iter().map(lateness).max().unwrap_or_default() as f64 / 1e6;
        if !spec.routers.is_empty() {
            let is_inside = |name: &str| {
                name.split(" to ")
                    .all(|end| spec.routers.iter().any(|router| router == end))
            };
            links.retain(|link| is_inside(&link.name));
        }
        Ok(Outcome {
            seed,
            flows,
            queue: sampler.map(Sampler::finish).unwrap_or_default(),
            accelerators: accelerators.iter().map(Accelerator::status).collect(),
            listed,
            refused,
            cost,
            links,
            lateness_p99_ms,
            verdict,
        })
    }

    /// Sets the congestion control and the windows of hosts and nodes.
    fn settle(&self, graph: &Graph) -> anyhow::Result<()> {
        for (name, namespace) in graph.nodes() {
            let is_node = self.graph.nodes.iter().any(|node| node == name);
            let window = if is_node {
                self.node_window
            } else {
                self.host_window
            };
            namespace.sysctl("net.ipv4.tcp_congestion_control", self.congestion)?;
            if let Some(window) = window {
                // Count on five eighths: Linux 6.18 offers so much of a receive buffer once full segments have come. A
                // send buffer must hold what is not yet acknowledged, and its overhead.
                let (read, write) = (window / 5 * 8, window * 4);
                namespace.sysctl("net.ipv4.tcp_rmem", &format!("4096 {read} {read}"))?;
                namespace.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {write}"))?;
            }
            if let Some(segments) = self.initial_window.filter(|_| is_node) {
                set_initial_window(namespace, segments)?;
            }
            if let Some(store) = self.node_store.filter(|_| is_node) {
                // Add a quarter for the kernel's own share of a buffer of full segments.
                let write = store / 4 * 5;
                namespace.sysctl(
                    "net.ipv4.tcp_wmem",
                    &format!("4096 {} {write}", write.min(16_384)),
                )?;
            }
        }
        Ok(())
    }
}

/// Makes the requests of a run when they are due. Returns the flows that were listed last, and the requests that were
/// refused for too long.
fn take(steps: &[Step], accelerator: &Accelerator, start: Instant) -> (Vec<serde_json::Value>, Vec<String>) {
    let (mut listed, mut refused) = (Vec::new(), Vec::new());
    for step in steps {
        let due = start + step.at;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let flows = accelerator.flows();
        let request = match step.action {
            Action::List => {
                listed = flows;
                continue;
            }
            Action::Splice => "splice",
            Action::Unsplice => "unsplice",
        };
        for flow in flows.iter().filter_map(|flow| flow["id"].as_u64()) {
            // A flow in loss recovery is not spliced: ask again.
            while let Err(error) = accelerator.post(&format!("/flows/{flow}/{request}")) {
                if due.elapsed() > PATIENCE {
                    refused.push(error.to_string());
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
    (listed, refused)
}

/// Sets the initial congestion window of all routes of a namespace.
fn set_initial_window(namespace: &Namespace, segments: u32) -> anyhow::Result<()> {
    let ip = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        let output = namespace
            .command("ip")
            .args(&words)
            .stderr(Stdio::piped())
            .output()?;
        ensure!(output.status.success(), "ip {words:?}: {output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for route in ip("route show")?.lines() {
        ip(&format!("route replace {route} initcwnd {segments}"))?;
    }
    Ok(())
}
