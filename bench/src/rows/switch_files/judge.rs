//! Judges the table by the demands of the issue.

use std::path::Path;

use anyhow::{Context, Result};

use super::table::{length, spread};
use super::{Case, Sample, cases};
use crate::report::{Finding, Target};
use crate::row::Row;
use crate::stats::Spread;
use crate::switches::Switch;

/// Ratio of the speeds of one switch and another one, or the fastest of several.
#[derive(Debug)]
struct Ratio {
    case: Case,
    of_medians: f64,
    rounds: Spread,
}

/// Judges the four rows.
pub(super) fn judge(all: &[Sample], table: &Path) -> Result<Vec<Finding>> {
    let small = |case: &Case| !case.persistent && case.size <= 10 << 10;
    let large = |case: &Case| case.size >= 100 << 10;
    let ten = |case: &Case| case.persistent && case.size == 10 << 10;
    let see = format!("see {}", table.display());
    Ok(vec![
        worst(
            all,
            Row::switch(1),
            "files of 1 KB to 10 MB: splice = auto / splice = never, the worst case",
            Target::AtLeast { must: 0.97, aim: 1.0 },
            (Switch::Splicing, &[Switch::Relaying]),
            |_| true,
            &see,
        )?,
        worst(
            all,
            Row::switch(2),
            "1 KB and 10 KB over new connections: longsplice / HAProxy in HTTP mode, the worse case",
            Target::AtLeast { must: 1.0, aim: 1.3 },
            (Switch::Splicing, &[Switch::HaProxyHttp]),
            small,
            &see,
        )?,
        worst(
            all,
            Row::switch(3),
            "100 KB and more: longsplice / the better of HAProxy (HTTP, TCP) and nginx, the worst case",
            Target::AtLeast { must: 1.5, aim: 2.5 },
            (
                Switch::Splicing,
                &[Switch::HaProxyHttp, Switch::HaProxyTcp, Switch::Nginx],
            ),
            large,
            &see,
        )?,
        worst(
            all,
            Row::switch(4),
            "10 KB over persistent connections, relayed: longsplice / HAProxy in HTTP mode",
            Target::AtLeast { must: 1.0, aim: 1.3 },
            (Switch::Relaying, &[Switch::HaProxyHttp]),
            ten,
            &see,
        )?,
    ])
}

fn worst(
    all: &[Sample],
    row: Row,
    measure: &str,
    target: Target,
    (ours, theirs): (Switch, &[Switch]),
    wanted: impl Fn(&Case) -> bool,
    see: &str,
) -> Result<Finding> {
    let ratios = cases().filter(wanted).map(|case| ratio(all, case, ours, theirs));
    let ratios: Vec<Ratio> = ratios.collect::<Result<_>>()?;
    let worst = ratios
        .iter()
        .map(|ratio| ratio.of_medians)
        .min_by(f64::total_cmp)
        .context("nothing was measured")?;
    let told: Vec<_> = ratios.iter().map(Ratio::show).collect();
    let detail = format!(
        "by busy seconds of the middle's core; medians and rounds: {}; {see}",
        told.join(", ")
    );
    // The samples are in the first of the rows.
    match row.number {
        1 => Finding::new(row, measure, target, worst, detail, &all),
        _ => Finding::new(row, measure, target, worst, detail, &()),
    }
}

fn ratio(all: &[Sample], case: Case, ours: Switch, theirs: &[Switch]) -> Result<Ratio> {
    let median = |switch| Ok::<_, anyhow::Error>(spread(all, switch, case, Sample::rate)?.median);
    let best = theirs
        .iter()
        .map(|&switch| Ok((switch, median(switch)?)))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1));
    let (best, rate) = best.context("beside nobody")?;
    let of = |switch| {
        let mine = all
            .iter()
            .filter(move |one| one.switch == switch && one.case == case);
        mine.map(Sample::rate)
    };
    let rounds = of(ours).zip(of(best)).map(|(ours, theirs)| ours / theirs);
    Ok(Ratio {
        case,
        of_medians: median(ours)? / rate,
        rounds: Spread::of(rounds).context("no rounds")?,
    })
}

impl Ratio {
    fn show(&self) -> String {
        let kind = if self.case.persistent { "persistent" } else { "new" };
        format!(
            "{} {kind} {:.2} ({:.2}–{:.2})",
            length(self.case.size),
            self.of_medians,
            self.rounds.min,
            self.rounds.max
        )
    }
}
