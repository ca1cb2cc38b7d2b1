//! Table for readers.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::{CONNECTIONS, Case, SIZES, SWITCHES, Sample};
use crate::cores;
use crate::stats::Spread;
use crate::switches::Switch;

/// Returns the spread of a value over the rounds.
pub(super) fn spread(all: &[Sample], switch: Switch, case: Case, of: fn(&Sample) -> f64) -> Result<Spread> {
    let mine = all.iter().filter(|one| one.switch == switch && one.case == case);
    Spread::of(mine.map(of)).with_context(|| format!("{} was not measured", switch.title()))
}

/// Formats paper 003's table 3, and further figures: two tables in Markdown.
pub(super) fn show(all: &[Sample]) -> Result<String> {
    let mut out = format!(
        "# Paper 003's table 3\n\nMedians of all rounds, {CONNECTIONS} connections at a time. The middle has one core, both ends another \
         one.\n"
    );
    for persistent in [false, true] {
        let kind = match persistent {
            false => "New connections: one for each request",
            true => "Persistent connections",
        };
        let _ = write!(out, "\n## {kind}\n");
        for (what, of) in FIGURES {
            let _ = write!(out, "\n{what}\n\n|  |");
            for size in SIZES {
                let _ = write!(out, " {} |", length(size));
            }
            let _ = writeln!(out, "\n|---|{}", "--:|".repeat(SIZES.len()));
            for switch in SWITCHES {
                let _ = write!(out, "| {} |", switch.title());
                for size in SIZES {
                    let figure = spread(all, switch, Case { size, persistent }, of)?.median;
                    let _ = write!(out, " {} |", number(figure));
                }
                out.push('\n');
            }
        }
    }
    Ok(out)
}

/// Figure of each switch, and its heading.
type Figure = (&'static str, fn(&Sample) -> f64);

const FIGURES: [Figure; 6] = [
    (
        "Requests for each second that the middle's core was busy:",
        Sample::rate,
    ),
    ("Requests per second by the clock:", Sample::by_the_clock),
    (
        "CPU of the whole path for a request, both ends included, in µs:",
        Sample::whole_us,
    ),
    ("How busy the middle's core was, in percent:", |one| {
        one.busy(cores::MIDDLE)
    }),
    (
        "How busy the ends' core was, in percent (at 100, the ends were what was slower):",
        |one| one.busy(cores::ENDS),
    ),
    ("Splices for each request:", |one| one.splices),
];

/// Formats a length of a power of two times 1 or 10.
pub(super) fn length(bytes: u64) -> String {
    match bytes {
        n if n >= 1 << 20 => format!("{} MB", n >> 20),
        n => format!("{} KB", n >> 10),
    }
}

fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
