//! `make bench`: the rows of the table that Longsplice must reach, one module for each experiment.

mod bulk;
mod integrity;
mod load;
mod memory;
mod middle;
mod switch;
mod wan;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;

use crate::report::{Book, Finding};
use crate::supervise::{Room, supervised};

/// Measures Longsplice beside the kernel's router, HAProxy and nginx, in the same namespaces, in turn.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Args {
    /// Shortened versions of everything: shows that the harness works
    #[arg(long)]
    quick: bool,
    /// Only these rows of the table: 1 to 10 [default: all]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u8).range(1..=10))]
    rows: Vec<u8>,
    /// Where the results go, as JSON
    #[arg(long, default_value = "bench/results", value_name = "DIR")]
    results: PathBuf,
}

/// What every experiment is given.
#[derive(Debug, Clone, Copy)]
struct Scope<'a> {
    room: &'a Room,
    quick: bool,
}

impl Scope<'_> {
    /// How many: `full`, or `quick` in a shortened run.
    fn count<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Something that is measured at once.
struct Experiment {
    /// The rows that come of it.
    rows: &'static [u8],
    title: &'static str,
    run: fn(&Scope<'_>) -> Result<Vec<Finding>>,
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        rows: &[1, 2],
        title: "one bulk stream, offloads on",
        run: bulk::with_offloads,
    },
    Experiment {
        rows: &[3],
        title: "bytes lost or reordered by splices at full rate",
        run: integrity::run,
    },
    Experiment {
        rows: &[4],
        title: "one bulk stream, offloads off",
        run: bulk::without_offloads,
    },
    Experiment {
        rows: &[5],
        title: "the switch to final",
        run: switch::run,
    },
    Experiment {
        rows: &[6, 7],
        title: "splices under load",
        run: load::run,
    },
    Experiment {
        rows: &[8, 9],
        title: "splices over real round-trip times",
        run: wan::run,
    },
    Experiment {
        rows: &[10],
        title: "memory of a detached connection",
        run: memory::run,
    },
];

/// Runs it.
pub fn main() -> ExitCode {
    // Before anything is made: a wrong argument leaves nothing to clean up.
    let args = Args::parse();
    supervised("bench", |room| run(room, &args))
}

fn run(room: &Room, args: &Args) -> Result<()> {
    let wanted = |row: &u8| args.rows.is_empty() || args.rows.contains(row);
    let part: String = args.rows.iter().map(|row| format!("-row{row}")).collect();
    let mut book = Book::new(&args.results, args.quick, &part)?;
    let scope = Scope {
        room,
        quick: args.quick,
    };
    for experiment in EXPERIMENTS {
        if !experiment.rows.iter().any(wanted) {
            continue;
        }
        eprintln!("── rows {:?}: {}", experiment.rows, experiment.title);
        let found = (experiment.run)(&scope).unwrap_or_else(|error| {
            eprintln!("   failed: {error:#}");
            let failed = |&row: &u8| Finding::failed(row, experiment.title, &error);
            experiment.rows.iter().map(failed).collect()
        });
        book.enter(found.into_iter().filter(|found| wanted(&found.row)).collect())?;
    }
    print!("{}", book.show());
    if !book.is_complete() {
        bail!("some rows could not be measured");
    }
    Ok(())
}
