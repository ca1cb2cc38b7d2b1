//! The laboratory from the shell: topologies around a command, verified traffic, and experiments.

#![forbid(unsafe_code)]

mod args;
mod experiment;
mod links;
mod net;
mod traffic;

use std::io::Write;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};
use clap::Parser;
use longsplice_lab::{Process, Traffic, TrafficServer, cleanup, netns};

use args::{Args, ExecArgs, Subcommand};

fn main() -> ExitCode {
    let args = Args::parse();
    run(args.command).unwrap_or_else(|error| {
        eprintln!("longsplice-lab: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(command: Subcommand) -> Result<ExitCode> {
    cleanup::install_then(experiment::remove_own)?;
    match command {
        Subcommand::Up(up) => net::up(&up),
        Subcommand::Exec(exec) => run_inside(&exec),
        Subcommand::List => Ok(experiment::list()),
        Subcommand::Run(run) => experiment::run(&run),
        Subcommand::Traffic(traffic) => traffic::run(&traffic),
        Subcommand::Links { links } => links::show(&links),
        Subcommand::Serve(serve) => {
            let server = TrafficServer::start_here((serve.addr, serve.port).into())?;
            eprintln!("serving at {}", server.addr());
            server.wait();
            Ok(ExitCode::FAILURE)
        }
        Subcommand::Drive { to, drive, json } => {
            let outcome = Traffic::drive(to, &drive.spec());
            if json {
                print_json(&outcome)?;
            } else {
                println!("{outcome}");
            }
            Ok(match outcome.all_ok() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            })
        }
        Subcommand::Clean { prefix } => {
            eprintln!("{} namespaces removed", cleanup::sweep(&prefix)?);
            if experiment::NAME.starts_with(&prefix) {
                experiment::sweep()?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs a command in a namespace that another process made, and returns its status.
fn run_inside(run: &ExecArgs) -> Result<ExitCode> {
    let node = format!("{}-{}", run.name, run.node);
    let name = netns::find(&node).or_else(|error| netns::find(&run.node).map_err(|_| error))?;
    let mut command = command(&run.command)?;
    let process = netns::enter(&name, || Process::spawn(&mut command))??;
    Ok(code(process.wait(None)?))
}

/// Builds a command from its words.
fn command(words: &[String]) -> Result<Command> {
    let (prog, args) = words.split_first().context("no command was given")?;
    let mut command = Command::new(prog);
    command.args(args);
    Ok(command)
}

/// Converts the status of a command to one of this program.
fn code(status: Option<ExitStatus>) -> ExitCode {
    // A command without a code was killed by a signal.
    let code = status.and_then(|status| status.code());
    let code = code.and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}
