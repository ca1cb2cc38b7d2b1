//! Lines of a table of findings, in Markdown.

use anyhow::{Context, Result};

use super::finding::{Finding, Outcome, Results};
use super::judge::{Case, Judged};
use super::number::number;

/// Head of a table of findings.
pub(crate) const HEAD: &str =
    "| # | measure | must | aim | here | rounds | verdict |\n|--:|---|---|---|---|---|---|\n";
/// Largest number of rounds that are written out.
const MOST_ROUNDS: usize = 9;

/// Formats one finding as a line of a table. Fails if it has no samples.
pub(crate) fn line(finding: &Finding, results: &Results) -> Result<String> {
    let (row, measure) = (finding.row, &finding.measure);
    let comparison = match &finding.outcome {
        Outcome::Failed(why) => {
            let why = why.replace(['\n', '|'], " ");
            return Ok(format!("| {row} | {measure} | | | – | | not run: {why} |\n"));
        }
        Outcome::Measured(comparison) => comparison,
    };
    let judged = Judged::new(comparison, results).with_context(|| format!("row {row}"))?;
    let [must, aim] = comparison.target.show();
    let (here, rounds) = match (&judged.cases[..], judged.worst(comparison)) {
        (_, None) => ("not spliced".to_owned(), "–".to_owned()),
        ([only], _) => (value(only), rounds(&only.rounds)),
        (cases, Some(worst)) => {
            let cases: Vec<String> = cases.iter().map(show_case).collect();
            (format!("{}: {}", worst.name, value(worst)), cases.join("; "))
        }
    };
    let verdict = comparison.target.tell(judged.verdict);
    Ok(format!(
        "| {row} | {measure} | {must} | {aim} | {here} | {rounds} | {verdict} |\n"
    ))
}

fn value(case: &Case) -> String {
    let value = case.value.map_or_else(
        || "not spliced".to_owned(),
        |value| format!("**{}**", number(value)),
    );
    value + mark(case.unspliced && case.value.is_some())
}

/// Returns the remark on a figure of a contender that chose to splice nothing.
pub(super) fn mark(unspliced: bool) -> &'static str {
    if unspliced { " (not spliced)" } else { "" }
}

fn rounds(rounds: &[f64]) -> String {
    match rounds {
        [] => "–".to_owned(),
        few if few.len() <= MOST_ROUNDS => few.iter().copied().map(number).collect::<Vec<_>>().join(", "),
        many => format!("{} of {}", range(many), many.len()),
    }
}

fn show_case(case: &Case) -> String {
    let Some(value) = case.value else {
        return format!("{}: not spliced", case.name);
    };
    let rounds = match &case.rounds[..] {
        [] => String::new(),
        rounds => format!(" ({})", range(rounds)),
    };
    format!("{} {}{rounds}{}", case.name, number(value), mark(case.unspliced))
}

/// Formats the least and the greatest value.
pub(super) fn range(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{}–{}", number(least), number(most))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Comparison;
    use super::super::series::Series;
    use super::super::target::Target;
    use super::*;
    use crate::row::Row;

    const TARGET: Target = Target::AtLeast { must: 1.0, aim: 2.0 };

    fn shown(comparison: Comparison, series: impl IntoIterator<Item = Series>) -> String {
        line(
            &Finding::new(Row::splice(1), "m", comparison, ""),
            &Results::of(series),
        )
        .unwrap()
    }

    #[test]
    fn rounds_beside_the_bound_are_written_out() {
        let series = Series::new("a", "s", [0.9, 1.2, 1.1]);
        let line = shown(Comparison::of(TARGET, "a", "s"), [series]);
        assert_eq!(
            line,
            "| 1 | m | ≥ 1 | ≥ 2 | **1.1** | 0.9, 1.2, 1.1 | within noise |\n"
        );
    }

    #[test]
    fn where_nothing_was_spliced_it_is_said() {
        let series = Series::new("a", "s", [2.0]).splices(0.0);
        let line = shown(Comparison::of(TARGET, "a", "s"), [series]);
        assert_eq!(line, "| 1 | m | ≥ 1 | ≥ 2 | not spliced | – | not spliced |\n");
    }

    #[test]
    fn the_worst_case_is_named() {
        let [x, y] = [3.0, 1.5].map(|sample| Series::new("a", "s", [sample]));
        let line = shown(
            Comparison::of(TARGET, "a", "s").worst(["x", "y"]),
            [x.case("x"), y.case("y")],
        );
        assert_eq!(line, "| 1 | m | ≥ 1 | ≥ 2 | y: **1.5** | x 3; y 1.5 | met |\n");
    }

    #[test]
    fn what_failed_was_not_run() {
        let finding = Finding::failed(Row::splice(1), "m", &anyhow::anyhow!("no kTLS"));
        let line = line(&finding, &Results::default()).unwrap();
        assert_eq!(line, "| 1 | m | | | – | | not run: no kTLS |\n");
    }
}
