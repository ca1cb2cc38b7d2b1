//! Runs `rules`: shows or replaces the rules of a running daemon.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{
    Failure,
    args::{Ask, Common, Rules},
    ask::{answer, request},
    print,
};
use crate::{config, show};

pub(super) fn rules(what: Rules, common: &Common) -> Result<ExitCode, Failure> {
    match what {
        Rules::List(ask) => list(&ask, common),
        Rules::Load { file, admin } => load(&file, admin, common),
        Rules::Clear { admin } => {
            request("DELETE", "/rules", "", admin.as_deref(), common)?;
            print("no rules but those of listeners that intercept\n")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list(ask: &Ask, common: &Common) -> Result<ExitCode, Failure> {
    let body = request("GET", "/rules", "", ask.admin.as_deref(), common)?;
    answer(ask, body, |info| show::rules(&info))
}

fn load(file: &Path, admin: Option<PathBuf>, common: &Common) -> Result<ExitCode, Failure> {
    let rules = config::load_rules(file).map_err(Failure::usage)?;
    let body = serde_json::to_string(&rules).map_err(Failure::runtime)?;
    request("PUT", "/rules", &body, admin.as_deref(), common)?;
    print(&format!(
        "{} in force; `longsplice rules list` shows what they do\n",
        match rules.len() {
            1 => "1 rule is".to_owned(),
            n => format!("{n} rules are"),
        }
    ))?;
    Ok(ExitCode::SUCCESS)
}
