//! Tables of the page, in Markdown.

use anyhow::{Context, Result};

use super::archive::Archive;
use super::finding::{Finding, Outcome, Results};
use super::judge::{Case, Judged};
use super::series::{Series, Statistic};
use crate::row::{Row, Table};

/// Head of a table of findings.
pub(crate) const HEAD: &str =
    "| # | measure | must | aim | here | rounds | verdict |\n|--:|---|---|---|---|---|---|\n";
/// Head of the same table on the page, where rows are of different runs.
const PAGE_HEAD: &str =
    "| # | measure | must | aim | here | rounds | verdict | run |\n|--:|---|---|---|---|---|---|---|\n";
/// Largest number of rounds that are written out.
const MOST_ROUNDS: usize = 9;

/// Formats the findings of a table of rows, each from the newest run that has it. `rows` are all rows there are, with
/// titles.
///
/// # Errors
/// Fails when a finding has no samples.
pub(crate) fn targets(archive: &Archive, table: Table, rows: &[(Row, &str)]) -> Result<String> {
    let mut out = PAGE_HEAD.to_owned();
    for (row, title) in rows.iter().filter(|(row, _)| row.table == table) {
        let mut found = archive.findings(*row).peekable();
        if found.peek().is_none() {
            out += &format!("| {row} | {title} | | | – | | not run | – |\n");
        }
        for (filed, results, finding) in found {
            let line = line(finding, results).with_context(|| filed.name.clone())?;
            let run = format!(" [{}](../bench/results/{}) |", filed.run.day(), filed.name);
            out += &format!("{}{run}\n", line.trim_end());
        }
    }
    Ok(out.trim_end().to_owned())
}

/// Formats one finding as a line of a table.
///
/// # Errors
/// Fails when it has no samples.
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
fn mark(unspliced: bool) -> &'static str {
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

fn range(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{}–{}", number(least), number(most))
}

/// Formats figures of all contenders in the newest run of a row: a line for each contender; a column for each figure,
/// or each case of one.
///
/// # Errors
/// Fails when the run has no such figure.
pub(crate) fn contenders(archive: &Archive, row: Row, figures: &[&str]) -> Result<String> {
    let Some((filed, results)) = archive.latest(row) else {
        return Ok(format!("Row {row} was not run."));
    };
    let mut columns: Vec<(&str, &str)> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for figure in figures {
        for series in results.series.iter().filter(|series| series.figure == *figure) {
            if !columns.contains(&(figure, &series.case)) {
                columns.push((figure, &series.case));
            }
            if !names.contains(&&*series.contender) {
                names.push(&series.contender);
            }
        }
    }
    let of_it = figures
        .iter()
        .all(|figure| columns.iter().any(|(found, _)| found == figure));
    of_it
        .then_some(())
        .with_context(|| format!("{}, row {row}: there is no sample of {figures:?}", filed.name))?;
    let heading = |(figure, case): &(&str, &str)| match (figures.len(), case.is_empty()) {
        (_, true) => format!(" {figure} |"),
        (1, false) => format!(" {case} |"),
        (_, false) => format!(" {figure}, {case} |"),
    };
    let mut out = format!(
        "| {} |{}\n|---|{}\n",
        if figures.len() == 1 { figures[0] } else { "" },
        columns.iter().map(heading).collect::<String>(),
        "--:|".repeat(columns.len())
    );
    for name in names {
        out += &format!("| {name} |");
        for (figure, case) in &columns {
            out += &format!(
                " {} |",
                results
                    .series(name, figure, case)
                    .map_or_else(|| "–".to_owned(), cell)
            );
        }
        out.push('\n');
    }
    Ok(out.trim_end().to_owned())
}

fn cell(series: &Series) -> String {
    let around = match (series.statistic, series.samples.len()) {
        (Statistic::Rounds, 2..) if !series.is_void() => format!(" ({})", range(&series.samples)),
        _ => String::new(),
    };
    value_of(series) + &around + if chose_none(series) { ", not spliced" } else { "" }
}

/// Formats the value of a series.
pub(crate) fn figure(series: &Series) -> String {
    value_of(series) + mark(chose_none(series))
}

fn chose_none(series: &Series) -> bool {
    series.is_unspliced() && series.chooses
}

fn value_of(series: &Series) -> String {
    match series.value() {
        _ if series.is_void() => "not spliced".to_owned(),
        Some(value) => number(value),
        None => "–".to_owned(),
    }
}

/// Formats the list of the runs that the page is made of. `rows` are all rows there are.
pub(crate) fn runs(archive: &Archive, rows: &[(Row, &str)]) -> String {
    let mut out = "| run | machine | commit | rows |\n|---|---|---|---|\n".to_owned();
    for filed in archive.runs() {
        let is_of_it = |row: &Row| {
            archive
                .latest(*row)
                .is_some_and(|(latest, _)| latest.name == filed.name)
        };
        let of_it: Vec<String> = rows
            .iter()
            .map(|(row, _)| *row)
            .filter(is_of_it)
            .map(|row| row.to_string())
            .collect();
        let of_it = if of_it.is_empty() {
            "none: a later run has them".to_owned()
        } else {
            of_it.join(", ")
        };
        out += &format!(
            "| [{name}](../bench/results/{name}) | {} | {} | {of_it} |\n",
            filed.run.machine.show(),
            filed.run.commit.as_deref().unwrap_or("not recorded"),
            name = filed.name
        );
    }
    out.trim_end().to_owned()
}

/// Formats a number with as many digits as it needs.
pub(crate) fn number(value: f64) -> String {
    let text = match value.abs() {
        large if large >= 1_000.0 => thousands(value),
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 1.0 || middle == 0.0 => format!("{value:.2}"),
        small if small >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.5}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Comparison;
    use super::super::target::Target;
    use super::*;

    const TARGET: Target = Target::AtLeast { must: 1.0, aim: 2.0 };

    #[test]
    fn numbers_have_no_useless_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (1.05, "1.05"),
            (0.05, "0.05"),
            (123.4, "123"),
            (40_000.0, "40,000"),
            (-1_234_567.8, "-1,234,568"),
        ] {
            assert_eq!(number(value), text);
        }
    }

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
        let line = shown(Comparison::of(TARGET, "a", "s"), [series.clone()]);
        assert_eq!(line, "| 1 | m | ≥ 1 | ≥ 2 | not spliced | – | not spliced |\n");
        assert_eq!(cell(&series), "not spliced");
        assert_eq!(
            cell(&Series::new("a", "s", [2.0, 3.0]).chose(0.0)),
            "2.5 (2–3), not spliced"
        );
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
