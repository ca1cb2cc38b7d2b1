//! Measures the rows of the tables that Longsplice must reach (`make bench`), one module for each experiment.

mod accelerator;
mod auto;
mod beside;
mod bulk;
mod cycles;
mod depth;
mod exchanges;
mod first_byte;
mod integrity;
mod legs;
mod load;
mod memory;
mod middle;
mod middle_cost;
mod packet;
mod rate;
mod segments;
mod slow_readers;
mod switch;
mod switch_files;
mod switch_latency;
mod switch_sockets;
mod system_calls;
mod trace;
mod unsplice;
mod vanished;
mod wakes;
mod wan;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand};
use longsplice_lab::Verdict;

use crate::cores::Work;
use crate::report::{self, Book, Finding, Part, Report, Results};
use crate::row::Row;
use crate::supervise::{Room, supervised};

/// Measures Longsplice beside the kernel's router, HAProxy and nginx, in the same namespaces, in turn.
#[derive(Debug, Parser)]
#[command(name = "bench")]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Verb>,
    /// Shortened versions of everything: shows that the harness works
    #[arg(long)]
    quick: bool,
    /// Only these rows of the tables: 1 to 10 of the splice, 3.1 to 3.6 of the way back, 4.1 to 4.7 of the
    /// complete translation, 5.1 to 5.6 of the switch, 13.4 and 13.5 of the review, 14.1 to 14.4 of the
    /// middle's cost, 15.1 to 15.6 of the accelerator, 16.3, 16.4 and
    /// 16.9 of the reach [default: all]
    #[arg(long, value_delimiter = ',', value_name = "ROW", value_parser = known_row)]
    rows: Vec<Row>,
    /// Directory of the run's file [default: bench/results, or target/bench if shortened]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Directory of pictures for the eye
    #[arg(long, default_value = FIGURES, value_name = "DIR")]
    figures: PathBuf,
}

/// Other things to do.
#[derive(Debug, Clone, Copy, Subcommand)]
enum Verb {
    /// Makes docs/benchmarks.md, its pictures and the README's table of the committed runs
    Report {
        /// Only compare them with what is there, and name the lines that differ
        #[arg(long)]
        check: bool,
    },
}

/// Directory of runs that are committed.
const RESULTS: &str = "bench/results";
/// Directory of pictures, and of shortened runs.
const FIGURES: &str = "target/bench";

/// Largest number of repetitions of inconclusive measurements in an experiment.
const MOST_DISCARDED: usize = 12;

/// Parses a row that an experiment measures.
fn known_row(text: &str) -> Result<Row, String> {
    let row = text.parse()?;
    match EXPERIMENTS
        .iter()
        .any(|experiment| experiment.rows.contains(&row))
    {
        true => Ok(row),
        false => Err(format!("there is no row {row}")),
    }
}

/// Says why a measurement does not count, and adds it to those `discarded`. Fails if there are too many of them.
fn discard(verdict: &Verdict, discarded: &mut usize) -> Result<()> {
    eprintln!("   {verdict}");
    *discarded += 1;
    ensure!(
        *discarded <= MOST_DISCARDED,
        "the emulator is late too often: the machine is busy"
    );
    Ok(())
}

/// Common input of every experiment.
#[derive(Debug, Clone, Copy)]
struct Scope<'a> {
    room: &'a Room,
    quick: bool,
    book: &'a Book,
}

impl Scope<'_> {
    /// Returns `full`, or `quick` in a shortened run.
    fn count<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Measures the background load of the cores.
    fn background(&self) -> Result<Work> {
        match self.quick {
            true => Ok(Work::NONE),
            false => Work::background(),
        }
    }

    /// Returns whether a measurement over emulated links counts; a shortened one does. Else it is to be repeated. Fails
    /// if too many did not count.
    fn counts(&self, verdict: &Verdict, discarded: &mut usize) -> Result<bool> {
        if verdict.counts() {
            return Ok(true);
        }
        if self.quick {
            eprintln!("   {verdict}\n   only a shortened run may count that");
            return Ok(true);
        }
        discard(verdict, discarded)?;
        Ok(false)
    }

    /// Returns the results; or, for a failed part of an experiment, a failed finding beside the others.
    fn found(&self, row: Row, part: &str, found: Result<Results>) -> Results {
        found.unwrap_or_else(|error| {
            eprintln!("   {part}: failed: {error:#}");
            Results::default().find(Finding::failed(row, part, &error))
        })
    }
}

/// Experiment: a measurement of one or more rows.
struct Experiment {
    /// Rows that it yields.
    rows: &'static [Row],
    title: &'static str,
    run: fn(&Scope<'_>) -> Result<Results>,
}

impl Experiment {
    /// Returns what is entered of it: all findings, also of rows that were not asked for, since they are of the same
    /// samples; failed ones after an error.
    fn settle(&self, found: Result<Results>) -> Results {
        found.unwrap_or_else(|error| {
            eprintln!("   failed: {error:#}");
            let failed = |&row: &Row| Finding::failed(row, self.title, &error);
            Results {
                findings: self.rows.iter().map(failed).collect(),
                ..Results::default()
            }
        })
    }
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        rows: &[Row::splice(1), Row::splice(2)],
        title: "one bulk stream, offloads on",
        run: bulk::with_offloads,
    },
    Experiment {
        rows: &[Row::splice(3)],
        title: "bytes lost or reordered by splices at full rate",
        run: integrity::run,
    },
    Experiment {
        rows: &[Row::splice(4), Row::translation(4)],
        title: "one bulk stream, offloads off",
        run: bulk::without_offloads,
    },
    Experiment {
        rows: &[Row::splice(5)],
        title: "the switch to final",
        run: switch::run,
    },
    Experiment {
        rows: &[Row::splice(6), Row::splice(7)],
        title: "splices under load",
        run: load::run,
    },
    Experiment {
        rows: &[Row::splice(8), Row::splice(9)],
        title: "splices over real round-trip times",
        run: wan::run,
    },
    Experiment {
        rows: &[Row::splice(10)],
        title: "memory of a detached connection",
        run: memory::run,
    },
    Experiment {
        rows: &[Row::back(1)],
        title: "from a trap to its bytes in the handler",
        run: unsplice::run,
    },
    Experiment {
        rows: &[Row::back(2)],
        title: "splices and returns of streams at full rate",
        run: cycles::run,
    },
    Experiment {
        rows: &[Row::back(3)],
        title: "requests and replies, spliced and back for each",
        run: exchanges::run,
    },
    Experiment {
        rows: &[Row::back(4)],
        title: "timeouts of woken sockets over emulated links",
        run: wakes::run,
    },
    Experiment {
        rows: &[Row::back(5)],
        title: "the first byte of a reply whose request wakes its pair",
        run: first_byte::run,
    },
    Experiment {
        rows: &[Row::back(6)],
        title: "a sequence trace through a splice and the way back",
        run: trace::run,
    },
    Experiment {
        rows: &[
            Row::translation(1),
            Row::translation(2),
            Row::translation(3),
            Row::translation(7),
        ],
        title: "one packet, and one flow",
        run: packet::run,
    },
    Experiment {
        rows: &[Row::translation(5)],
        title: "the papers' tables: processing of a segment",
        run: segments::run,
    },
    Experiment {
        rows: &[Row::translation(6)],
        title: "connections per second on one core",
        run: rate::run,
    },
    Experiment {
        rows: &[Row::switch(1), Row::switch(2), Row::switch(3), Row::switch(4)],
        title: "paper 003's table 3: files through a switch",
        run: switch_files::run,
    },
    Experiment {
        rows: &[Row::switch(5)],
        title: "latency that a switch adds at half load",
        run: switch_latency::run,
    },
    Experiment {
        rows: &[Row::switch(6)],
        title: "memory of idle WebSockets",
        run: switch_sockets::run,
    },
    Experiment {
        rows: &[Row::review(4)],
        title: "slots of vanished clients",
        run: vanished::run,
    },
    Experiment {
        rows: &[Row::review(5)],
        title: "an ordinary client beside slow readers",
        run: slow_readers::run,
    },
    Experiment {
        rows: &[Row::middle(1)],
        title: "CPU of the middle's core for a gigabyte, large segments",
        run: middle_cost::large,
    },
    Experiment {
        rows: &[Row::middle(2)],
        title: "CPU of the middle's core for a gigabyte, wire-size segments",
        run: middle_cost::wire_size,
    },
    Experiment {
        rows: &[Row::middle(3)],
        title: "system calls of the middle's process for a connection",
        run: system_calls::run,
    },
    Experiment {
        rows: &[Row::middle(4)],
        title: "one bulk stream beside an earlier version",
        run: beside::run,
    },
    Experiment {
        rows: &[Row::accelerator(1)],
        title: "CPU of a router for what its accelerator passes through",
        run: accelerator::passed::run,
    },
    Experiment {
        rows: &[Row::accelerator(2)],
        title: "duration of a take-over",
        run: accelerator::take_over::run,
    },
    Experiment {
        rows: &[Row::accelerator(3), Row::accelerator(6)],
        title: "memory of an idle accelerated connection",
        run: accelerator::idle::run,
    },
    Experiment {
        rows: &[Row::accelerator(4)],
        title: "releases and take-overs in mid-transfer",
        run: accelerator::churn::run,
    },
    Experiment {
        rows: &[Row::accelerator(5)],
        title: "beside a transparent relay of every connection",
        run: accelerator::relay::run,
    },
    Experiment {
        rows: &[Row::reach(3)],
        title: "one bulk stream, one leg of each family",
        run: legs::families,
    },
    Experiment {
        rows: &[Row::reach(4)],
        title: "one bulk stream, a tun on one leg",
        run: legs::tunnel,
    },
    Experiment {
        rows: &[Row::reach(9)],
        title: "the policy `auto` for TCP over short and long paths, with and without losses",
        run: auto::run,
    },
];

/// Parts of the page that experiments make of their results.
const PARTS: &[Part] = &[Part {
    name: "papers",
    row: Row::translation(5),
    make: segments::third_table,
}];

/// Pictures of the page.
const PICTURES: &[Part] = &[Part {
    name: "docs/segments.svg",
    row: Row::translation(5),
    make: segments::picture,
}];

/// Runs the benchmark.
pub fn main() -> ExitCode {
    // Parse first: a wrong argument then leaves nothing to clean up.
    let args = Args::parse();
    let Some(Verb::Report { check }) = args.command else {
        return supervised("bench", |room| run(room, &args));
    };
    match report::report(Path::new("."), check, &all_rows()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Describes all rows to the page.
fn all_rows() -> Report<'static> {
    let titled = |experiment: &'static Experiment| experiment.rows.iter().map(|row| (*row, experiment.title));
    let mut rows: Vec<_> = EXPERIMENTS.iter().flat_map(titled).collect();
    rows.sort();
    Report {
        rows,
        parts: PARTS,
        pictures: PICTURES,
    }
}

fn run(room: &Room, args: &Args) -> Result<()> {
    let wanted = |row: &Row| args.rows.is_empty() || args.rows.contains(row);
    let default = if args.quick { FIGURES } else { RESULTS };
    let results = args.results.as_deref().unwrap_or(Path::new(default));
    let mut book = Book::new(results, &args.figures, args.quick)?;
    for experiment in EXPERIMENTS {
        if !experiment.rows.iter().any(wanted) {
            continue;
        }
        let rows: Vec<_> = experiment.rows.iter().map(Row::to_string).collect();
        eprintln!("── {}: {}", rows.join(", "), experiment.title);
        let scope = Scope {
            room,
            quick: args.quick,
            book: &book,
        };
        let found = experiment.settle((experiment.run)(&scope));
        // Enter no optional experiment that was skipped.
        if !found.findings.is_empty() {
            book.enter(found)?;
        }
    }
    print!("{}", book.show()?);
    if !book.is_complete() {
        bail!("some rows could not be measured");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_of_the_same_samples_are_entered() {
        let of = |row| {
            EXPERIMENTS
                .iter()
                .find(|experiment| experiment.rows.contains(&row))
        };
        let experiment = of(Row::translation(4)).unwrap();
        let error = anyhow::anyhow!("so");
        let found = report::WIRE_SIZE.map(|(row, _)| Finding::failed(row, "m", &error));
        let found = found.into_iter().fold(Results::default(), Results::find);
        assert_eq!(experiment.settle(Ok(found.clone())), found);
        let failed = experiment.settle(Err(error));
        assert_eq!(failed.findings.len(), experiment.rows.len());
    }
}
