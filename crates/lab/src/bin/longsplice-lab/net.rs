//! A topology around a command.

use std::process::ExitCode;
use std::thread;

use anyhow::Result;
use longsplice_lab::{LinkReport, MultiServer, Process, Verdict};
use serde::Serialize;

use crate::args::UpArgs;
use crate::{code, command, print_json};

/// Report on the emulated links.
#[derive(Debug, Serialize)]
struct LinksReport {
    links: Vec<LinkReport>,
    verdict: Verdict,
}

/// Brings a topology up; runs a command beside it, or waits to be interrupted.
pub(crate) fn up(args: &UpArgs) -> Result<ExitCode> {
    let net = MultiServer::new(&args.net.name, args.net.options())?;
    let variables = variables(&net);
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
    let report = LinksReport {
        links: net.link_reports(),
        verdict: net.verdict(),
    };
    if args.json {
        print_json(&report)?;
    } else if !report.links.is_empty() {
        report.links.iter().for_each(|link| println!("{link}"));
        println!("{}", report.verdict);
    }
    Ok(code(status))
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
