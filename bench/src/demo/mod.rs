//! `make demo`: the main job on real traffic, each claim checked.

mod console;
mod table;
mod transfer;

use std::process::ExitCode;

use anyhow::Result;
use longsplice_lab::{Line, LineOptions};

use crate::machine::Machine;
use crate::supervise::{Room, supervised};

/// Runs the demonstration.
pub fn main() -> ExitCode {
    supervised("demo", run)
}

fn run(room: &Room) -> Result<()> {
    let machine = Machine::here()?;
    console::say(&format!(
        "Longsplice: a TCP forwarder that takes itself out of a live connection.\n\
         On {}, in three network namespaces:\n\n\
         \x20   client 198.18.1.1 ---- 198.18.1.2 forwarder 198.18.2.2 ---- 198.18.2.1 server",
        machine.show()
    ));
    let net = Line::new("demo", LineOptions::router())?;
    transfer::run(room, &net)?;
    table::run(room, &net)?;
    console::say("Every claim above was checked.");
    Ok(())
}
