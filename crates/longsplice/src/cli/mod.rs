//! Runs the command line: `args` defines it, and the other modules run the commands.

mod args;
mod ask;
mod check;
mod explain;
mod rules;
mod serve;
mod servers;

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;

use args::{Cli, Command};

use crate::{
    config::{LogConfig, LogFormat},
    logging,
};

/// Failure of a command: the message, and its exit code.
#[derive(Debug)]
enum Failure {
    /// The arguments or the configuration are wrong (exit code 2).
    Usage(String),
    /// The command failed (exit code 1).
    Runtime(String),
}

impl Failure {
    fn usage(what: impl Display) -> Self {
        Failure::Usage(what.to_string())
    }

    fn runtime(what: impl Display) -> Self {
        Failure::Runtime(what.to_string())
    }
}

/// Reads the arguments, runs the command, and returns the exit code: 0, 1 (failed) or 2 (wrong usage or configuration).
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let common = cli.common;
    let done = match cli.command {
        Command::Run(run) => serve::run(run, &common),
        Command::Forward(forward) => serve::forward(*forward, &common),
        Command::Accelerate(accelerate) => serve::accelerate(*accelerate, &common),
        Command::Check(check) => check::check(&check),
        Command::Flows(ask) => ask::flows(&ask, &common),
        Command::Status(ask) => ask::status(&ask, &common),
        Command::Splice(connection) => ask::splice(&connection, &common),
        Command::Unsplice(connection) => ask::unsplice(&connection, &common),
        Command::Kill(connection) => ask::kill(&connection, &common),
        Command::Reload { admin } => ask::reload(admin.as_deref(), &common),
        Command::Rules { what } => rules::rules(what, &common),
        Command::Servers { what, ask } => servers::servers(what, &ask, &common),
        Command::Doctor(doctor) => check::doctor(&doctor),
    };
    let (message, code) = match done {
        Ok(code) => return code,
        Err(Failure::Usage(message)) => (message, 2),
        Err(Failure::Runtime(message)) => (message, 1),
    };
    match logging::form().or(common.log_format) {
        Some(LogFormat::Json) => log_in_json(&message),
        _ => complain(&format!("longsplice: {message}")),
    }
    ExitCode::from(code)
}

/// Logs the reason of a failure as JSON, although no log may have been started. One that the levels in force leave out is
/// printed as text.
fn log_in_json(message: &str) {
    logging::start(LogConfig {
        format: LogFormat::Json,
        ..LogConfig::default()
    });
    match tracing::enabled!(tracing::Level::ERROR) {
        true => tracing::error!("{message}"),
        false => complain(&format!("longsplice: {message}")),
    }
}

/// Prints a line to standard error. Ignores an error, because the exit code still tells the result.
fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints to standard output. A reader that has closed the pipe (`| head`) is no error.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::runtime(format!("cannot write the output: {e}")))
        }
        _ => Ok(()),
    }
}
