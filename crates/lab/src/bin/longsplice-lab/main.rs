//! The laboratory from the shell: topologies around a command, and verified traffic.

#![forbid(unsafe_code)]

mod args;

use std::io::Write;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use longsplice_lab::topology::Nodes;
use longsplice_lab::{Emulated, Process, Three, Traffic, TrafficServer, cleanup};

use args::{Args, Subcommand};

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    cleanup::install()?;
    match args.command {
        Subcommand::Three(three) => {
            let net = Three::new(&three.name, three.options())?;
            run_beside(&net, &three.command)
        }
        Subcommand::Link(link) => {
            let net = Emulated::new(&link.name, link.client_link(), link.server_link())?;
            let code = run_beside(&net, &link.command)?;
            print_json(&net.link_reports())?;
            if !net.report().is_valid() {
                eprintln!("longsplice-lab: the emulator was late: this run does not count");
            }
            Ok(code)
        }
        Subcommand::Serve(serve) => {
            let server = TrafficServer::start_here((serve.addr, serve.port).into())?;
            eprintln!("serving at {}", server.addr());
            server.wait();
            Ok(ExitCode::FAILURE)
        }
        Subcommand::Drive(drive) => {
            let outcome = Traffic::drive(drive.to, &drive.spec());
            print_json(&outcome)?;
            for (number, failure) in outcome.failures() {
                eprintln!("connection {number}: {failure}");
            }
            Ok(if outcome.all_ok() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Subcommand::Sweep { prefix } => {
            eprintln!("{} namespaces removed", cleanup::sweep(&prefix)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Tells where the nodes are, on standard error and to `command`, runs it, and answers with its status.
fn run_beside(nodes: &Nodes, command: &[String]) -> Result<ExitCode> {
    let variables = [
        ("CLIENT", nodes.client.name().to_owned()),
        ("FORWARDER", nodes.forwarder.name().to_owned()),
        ("SERVER", nodes.server.name().to_owned()),
        ("CLIENT_ADDR", nodes.client_addr.to_string()),
        ("FORWARDER_CLIENT_ADDR", nodes.forwarder_client_addr.to_string()),
        ("FORWARDER_SERVER_ADDR", nodes.forwarder_server_addr.to_string()),
        ("SERVER_ADDR", nodes.server_addr.to_string()),
    ];
    let (prog, args) = command.split_first().context("no command was given")?;
    let mut command = Command::new(prog);
    command.args(args);
    for (name, value) in variables {
        eprintln!("LAB_{name}={value}");
        command.env(format!("LAB_{name}"), value);
    }
    let status = Process::spawn(&mut command)?.wait(None)?;
    // Without a code it was killed by a signal.
    let code = status
        .and_then(|status| status.code())
        .and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}
