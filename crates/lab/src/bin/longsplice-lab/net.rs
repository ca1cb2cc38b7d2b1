//! A topology around a command.

use std::fs;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result};
use longsplice_lab::{Graph, GraphSpec, LinkReport, MultiServer, Process, Verdict};
use serde::Serialize;

use crate::args::UpArgs;
use crate::{code, command, print_json};

/// Report on the emulated links.
#[derive(Debug, Serialize)]
struct LinksReport {
    links: Vec<LinkReport>,
    verdict: Verdict,
}

/// Topology on the command line.
enum Net {
    MultiServer(MultiServer),
    Graph(Graph),
}

impl Net {
    /// Sets the topology up.
    fn new(args: &UpArgs) -> Result<Net> {
        let Some(file) = &args.graph else {
            return Ok(Net::MultiServer(MultiServer::new(
                &args.net.name,
                args.net.options(),
            )?));
        };
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let graph = text
            .parse::<GraphSpec>()
            .and_then(|spec| Graph::new(&args.net.name, args.net.family, &spec));
        graph.map(Net::Graph).with_context(|| file.display().to_string())
    }

    fn variables(&self) -> Vec<(String, String)> {
        match self {
            Net::MultiServer(net) => variables(net),
            Net::Graph(graph) => graph_variables(graph),
        }
    }

    fn report(&self) -> LinksReport {
        let (links, verdict) = match self {
            Net::MultiServer(net) => (net.link_reports(), net.verdict()),
            Net::Graph(graph) => (graph.link_reports(), graph.verdict()),
        };
        LinksReport { links, verdict }
    }
}

/// Brings a topology up; runs a command beside it, or waits to be interrupted.
pub(crate) fn up(args: &UpArgs) -> Result<ExitCode> {
    let net = Net::new(args)?;
    let variables = net.variables();
    for (name, value) in &variables {
        eprintln!("{name}={value}");
    }
    if args.command.is_empty() {
        eprintln!("up, until interrupted");
        loop {
            // A signal removes everything and ends the process.
            thread::park();
        }
    }
    let process = Process::spawn(command(&args.command)?.envs(variables))?;
    let status = process.wait(None)?;
    let report = net.report();
    if args.json {
        print_json(&report)?;
    } else if !report.links.is_empty() {
        report.links.iter().for_each(|link| println!("{link}"));
        println!("{}", report.verdict);
    }
    Ok(code(status))
}

/// Returns the variables that tell a command of a graph's hosts and nodes: for `edge-1` the namespace `LAB_EDGE_1` and the
/// address `LAB_EDGE_1_ADDR`.
fn graph_variables(graph: &Graph) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (node, namespace) in graph.nodes() {
        let name = format!("LAB_{}", node.to_uppercase().replace('-', "_"));
        if let Some(addr) = graph.address(node) {
            variables.push((format!("{name}_ADDR"), addr.to_string()));
        }
        variables.push((name, namespace.name().to_owned()));
    }
    variables
}

/// Returns the variables that tell a command of the nodes: `LAB_CLIENT` and so on are the namespaces, those ending in
/// `_ADDR` are addresses.
pub(crate) fn variables(net: &MultiServer) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for (node, namespace) in net.nodes() {
        variables.push((node.to_uppercase(), namespace.name().to_owned()));
    }
    variables.push(("CLIENT_ADDR".into(), net.client_addr.to_string()));
    variables.push((
        "FORWARDER_CLIENT_ADDR".into(),
        net.forwarder_client_addr.to_string(),
    ));
    for (n, server) in net.servers.iter().enumerate() {
        let number = if n == 0 {
            String::new()
        } else {
            (n + 1).to_string()
        };
        variables.push((
            format!("FORWARDER_SERVER{number}_ADDR"),
            server.forwarder_addr.to_string(),
        ));
        variables.push((format!("SERVER{number}_ADDR"), server.addr.to_string()));
    }
    variables
        .into_iter()
        .map(|(name, value)| (format!("LAB_{name}"), value))
        .collect()
}
