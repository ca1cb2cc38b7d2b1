//! A topology around a command.

use std::process::ExitCode;
use std::thread;

use anyhow::Result;
use longsplice_lab::{Farm, LinkReport, Process, Verdict};
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
    let farm = Farm::new(&args.net.name, args.net.options())?;
    let variables = variables(&farm);
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
        links: farm.link_reports(),
        verdict: farm.verdict(),
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
pub(crate) fn variables(farm: &Farm) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for (node, namespace) in farm.nodes() {
        variables.push((node.to_uppercase(), namespace.name().to_owned()));
    }
    variables.push(("CLIENT_ADDR".into(), farm.client_addr.to_string()));
    variables.push((
        "FORWARDER_CLIENT_ADDR".into(),
        farm.forwarder_client_addr.to_string(),
    ));
    for (n, server) in farm.servers.iter().enumerate() {
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
