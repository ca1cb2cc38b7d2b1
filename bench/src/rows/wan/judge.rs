//! Judges rows 8 and 9 by the transfers over emulated links.

use anyhow::{Context, Result};

use super::{KINDS, Kind, PATHS, Run, Runs, Way};
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;
use crate::stats::Spread;

/// Figures of a transfer.
const PAUSE: &str = "longest pause of a transfer, ms";
const SEGMENTS: &str = "segments of a transfer";
const GOODPUT: &str = "goodput of a transfer, Mbit/s";

impl Kind {
    /// Returns its name in a table.
    fn title(self) -> &'static str {
        match self {
            Kind::Spliced => "longsplice, after=16MiB",
            Kind::Auto => "longsplice, auto",
            Kind::Never => "longsplice, never",
        }
    }
}

/// Returns rows 8 and 9, one finding for each path and measure.
pub(super) fn findings(all: &Runs) -> Result<Results> {
    let mut found = Results::default();
    for path in &PATHS {
        found = found.join(Results::of(series(all, path.name)));
        found = found.find(pause(all, path.name)?).find(lost(all, path.name));
    }
    for path in &PATHS {
        found = found.find(goodput(all, path.name));
    }
    Ok(found)
}

/// Returns all samples of a path: of both ways together, and the goodput of each way.
fn series(all: &Runs, path: &str) -> impl Iterator<Item = Series> {
    KINDS.into_iter().flat_map(move |kind| {
        let series = |case: String, figure, of: fn(&Run) -> f64, way: Option<Way>| {
            let of_it =
                |run: &&Run| run.path == path && run.kind == kind && way.is_none_or(|way| run.way == way);
            let runs: Vec<&Run> = all.runs.iter().filter(of_it).collect();
            let series = Series::new(kind.title(), figure, runs.iter().map(|run| of(run))).case(case);
            let splices = runs.iter().filter(|run| run.spliced).count() as f64 / runs.len().max(1) as f64;
            match kind {
                Kind::Spliced => series.splices(splices),
                Kind::Auto => series.chose(splices),
                Kind::Never => series,
            }
        };
        let both = |figure, of| series(path.to_owned(), figure, of, None);
        let of_way = |way| series(case(path, way), GOODPUT, |run| run.mbps, Some(way));
        [
            both(PAUSE, |run| run.longest_ms).by(Statistic::Max),
            both(SEGMENTS, |run| run.dropped as f64)
                .case(dropped(path))
                .by(Statistic::Mean),
            both(SEGMENTS, |run| run.retransmitted as f64)
                .case(again(path))
                .by(Statistic::Mean),
            of_way(Way::Download),
            of_way(Way::Upload),
        ]
    })
}

/// Returns the name of a case of the goodput.
fn case(path: &str, way: Way) -> String {
    match way {
        Way::Download => format!("{path} download"),
        Way::Upload => format!("{path} upload"),
    }
}

fn spread(all: &Runs, path: &str, kind: Kind, of: impl Fn(&Run) -> f64) -> Result<Spread> {
    let runs = all.runs.iter().filter(|run| run.path == path && run.kind == kind);
    Spread::of(runs.map(of)).with_context(|| format!("no {kind:?} transfer over {path}"))
}

/// Compares the longest pause of the spliced transfers with that of the unspliced ones.
fn pause(all: &Runs, path: &str) -> Result<Finding> {
    let whole = |kind| spread(all, path, kind, |run| run.longest_ms);
    let mid = |kind| spread(all, path, kind, |run| run.longest_mid_ms);
    let (spliced, never) = (whole(Kind::Spliced)?, whole(Kind::Never)?);
    let (spliced_mid, never_mid) = (mid(Kind::Spliced)?, mid(Kind::Never)?);
    let detail = format!(
        "spliced max {:.1} ms, median {}; unspliced max {:.1} ms, median {}; past the slow start: spliced max {:.1}, \
         unspliced {:.1}; {} transfers each, {} discarded because the emulator was late",
        spliced.max,
        spliced.show(),
        never.max,
        never.show(),
        spliced_mid.max,
        never_mid.max,
        spliced.n,
        all.discarded
    );
    let target = Target::AtMost { must: 1.2, aim: 1.0 };
    Ok(Finding::new(
        Row::splice(8),
        format!("{path}, 100 Mbit/s: longest pause of a transfer spliced midway / unspliced"),
        Comparison::of(target, Kind::Spliced.title(), PAUSE)
            .to([Kind::Never.title()])
            .worst([path]),
        detail,
    ))
}

/// Compares the mean losses of spliced transfers with those of unspliced ones.
fn lost(all: &Runs, path: &str) -> Finding {
    let target = Target::AtMost { must: 0.0, aim: 0.0 };
    Finding::new(
        Row::splice(8),
        format!("{path}: segments lost or sent again by a splice"),
        Comparison::of(target, Kind::Spliced.title(), SEGMENTS)
            .less(Kind::Never.title())
            .worst([dropped(path), again(path)]),
        format!(
            "{} transfers discarded because the emulator was late",
            all.discarded
        ),
    )
}

/// Compares the goodput of `auto` with that of `never`: the worse of the two directions.
fn goodput(all: &Runs, path: &str) -> Finding {
    let of_auto = |run: &&Run| run.path == path && run.kind == Kind::Auto;
    let chosen: Vec<_> = all.runs.iter().filter(of_auto).collect();
    let spliced = chosen.iter().filter(|run| run.spliced).count();
    let target = Target::AtLeast { must: 0.97, aim: 1.0 };
    Finding::new(
        Row::splice(9),
        format!("{path}: goodput of the whole transfer with `auto` / never splicing, the worse way"),
        Comparison::of(target, Kind::Auto.title(), GOODPUT)
            .to([Kind::Never.title()])
            .worst([Way::Download, Way::Upload].map(|way| case(path, way))),
        format!("auto spliced {spliced} of {}", chosen.len()),
    )
}

/// Returns the name of a case of the lost segments.
fn dropped(path: &str) -> String {
    format!("{path} dropped")
}

/// Returns the name of a case of the repeated segments.
fn again(path: &str) -> String {
    format!("{path} sent again")
}
