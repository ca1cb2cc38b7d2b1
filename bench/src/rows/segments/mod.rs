//! Row 4.5: tables I to III of the papers rebuilt: cost of a segment for the machine in the middle, in control mode and
//! in forwarding mode, beside a router, a router with a filter, and a proxy in the place of their TIS firewall.
//!
//! The papers measured a packet's way there and back, and subtracted the share of the ends. Here the middle has a core
//! of its own, and its busy time is divided by the segments.

mod echo;
mod plot;
mod tables;

use anyhow::{Context, Result};
use longsplice_lab::{Line, LineOptions};

use self::echo::Echo;
use self::tables::Costs;
use super::Scope;
use crate::contender::{Contender, Rig, Standing};
use crate::cores;
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;

/// Contenders, in the order of the papers' table II.
const CONTENDERS: [Contender; 5] = [
    Contender::Relay,
    Contender::Spliced,
    Contender::Router,
    Contender::FilteringRouter,
    Contender::HaProxy,
];

/// Payload of the papers' segments, in bytes: the least, and the most that fits into 1,500 bytes without options.
const SIZES: [usize; 2] = [1, 1460];

/// Largest number of attempts at a measurement.
const ATTEMPTS: usize = 3;

/// One contender with segments of one size.
#[derive(Debug)]
struct Sample {
    contender: Contender,
    size: usize,
    echo: Echo,
}

/// Measures row 4.5.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let options = LineOptions {
        router: true,
        offloads: false,
        ..LineOptions::default()
    };
    let net = Line::new("bench", options)?;
    for node in [&net.client, &net.forwarder, &net.server] {
        // The papers' hosts had none, either; with timestamps 1,460 bytes would be two segments.
        node.sysctl("net.ipv4.tcp_timestamps", "0")?;
    }
    cores::part(&net)?;
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    let rounds = scope.count(5, 1);
    let mut all = Vec::new();
    for _ in 0..rounds {
        for contender in CONTENDERS {
            measure(scope, &rig, contender, &mut all)?;
        }
    }
    Ok(judge(&all))
}

fn measure(scope: &Scope<'_>, rig: &Rig<'_>, contender: Contender, all: &mut Vec<Sample>) -> Result<()> {
    let (standing, _ends) = rig.start_apart(contender)?;
    for size in SIZES {
        let echo = echo_again(scope, rig, &standing, size)
            .with_context(|| format!("{}, {size} bytes", contender.title()))?;
        eprintln!(
            "   {:<24} {size:>4} bytes: {:6.2} µs for a segment; {:.3} packets for each, core busy {:.0} %",
            contender.title(),
            echo.microseconds(),
            echo.packets as f64 / echo.segments as f64,
            100.0 * echo.work.busy[cores::MIDDLE] / echo.work.seconds
        );
        all.push(Sample {
            contender,
            size,
            echo,
        });
    }
    Ok(())
}

/// Measures again where the load of other guests of the machine outweighs the measured work, and a core looks less busy
/// than at rest.
fn echo_again(scope: &Scope<'_>, rig: &Rig<'_>, standing: &Standing<'_>, size: usize) -> Result<Echo> {
    for _ in 1..ATTEMPTS {
        match echo::run(scope, rig, standing, size) {
            Err(error) => eprintln!("   once more: {error:#}"),
            measured => return measured,
        }
    }
    echo::run(scope, rig, standing, size)
}

/// Figures of a segment; a case of each is a size.
const MIDDLES: &str = "µs of the middle's core for a segment";
const OF_ENDS: &str = "µs of the ends' core for a segment";

/// Returns the name of a case.
fn case(size: usize) -> &'static str {
    if size == SIZES[0] { "1 byte" } else { "1,460 bytes" }
}

fn judge(all: &[Sample]) -> Results {
    let each = CONTENDERS
        .into_iter()
        .flat_map(|contender| SIZES.map(|size| (contender, size)));
    let series = each.flat_map(|(contender, size)| {
        let of = |figure, value: fn(&Echo) -> f64| {
            let of_it = |one: &&Sample| one.contender == contender && one.size == size;
            let mine = all.iter().filter(of_it).map(|one| value(&one.echo));
            let series = Series::new(tables::name(contender), figure, mine).case(case(size));
            // All were waited for until they were detached.
            match contender {
                Contender::Spliced => series.splices(1.0),
                _ => series,
            }
        };
        [
            of(MIDDLES, Echo::microseconds),
            of(OF_ENDS, |echo| {
                echo.work.busy[cores::ENDS] * 1e6 / echo.segments as f64
            }),
        ]
    });
    let [spliced, router] = [Contender::Spliced, Contender::Router].map(tables::name);
    let comparison = Comparison::of(Target::Shown { aim: 1.0 }, spliced, MIDDLES);
    Results::of(series).find(Finding::new(
        Row::translation(5),
        "tables I to III of the papers: processing of a segment, spliced / kernel router, the worse size",
        comparison.to([router]).worst(SIZES.map(case)),
        "offloads off, no timestamps",
    ))
}

/// Formats the papers' table III of committed samples, which follows from table II.
pub(super) fn third_table(results: &Results) -> Result<String> {
    Ok(tables::third(&Costs::of(results)?))
}

/// Draws the plot of committed samples.
pub(super) fn picture(results: &Results) -> Result<String> {
    plot::plot(&Costs::of(results)?)
}
