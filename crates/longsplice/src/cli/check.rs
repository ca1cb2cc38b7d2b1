//! Runs `check` and `doctor`, which change nothing.

use std::process::ExitCode;

use super::{Failure, args, complain, explain::explain, print};
use crate::{access_log::LogTarget, config, doctor, show};

pub(super) fn check(args: &args::Check) -> Result<ExitCode, Failure> {
    if let Some(request) = &args.explain {
        return explain(request, args);
    }
    let mut wrong = Vec::new();
    for file in &args.files {
        let config = match config::load(file) {
            Ok(config) => config,
            Err(e) => {
                wrong.push(e.to_string());
                continue;
            }
        };
        if let Some(Err(e)) = config.operations.access_log.as_ref().map(LogTarget::check) {
            wrong.push(match config.access_log_path {
                Some(place) => place.with_message(e.to_string()).to_string(),
                None => e.to_string(),
            });
            continue;
        }
        for warning in &config.warnings {
            complain(&format!("warning: {warning}"));
        }
        print(&format!("{}: good\n{}", file.display(), show::config(&config)))?;
    }
    if wrong.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    // Begin the line with the position, as compilers do, so that editors find it.
    for message in &wrong {
        complain(message);
    }
    Ok(ExitCode::from(2))
}

pub(super) fn doctor(args: &args::Doctor) -> Result<ExitCode, Failure> {
    let machine = doctor::Machine::here(args.source_ports);
    let report = match args.accelerate {
        true => doctor::examine_accelerator(&machine),
        false => doctor::examine(&machine),
    };
    let text = if args.json {
        serde_json::to_string_pretty(&report).map_err(Failure::runtime)? + "\n"
    } else {
        report.to_string()
    };
    print(&text)?;
    Ok(
        if report.accelerate_available.unwrap_or(report.splice_available) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        },
    )
}
