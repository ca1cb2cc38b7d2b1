//! Tables of the page, in Markdown.

use anyhow::{Context, Result};

use super::archive::Archive;
use super::line::{line, mark, range};
use super::number::number;
use super::series::{Series, Statistic};
use crate::row::{Row, Table};

/// Head of the same table on the page, where rows are of different runs.
const PAGE_HEAD: &str =
    "| # | measure | must | aim | here | rounds | verdict | run |\n|--:|---|---|---|---|---|---|---|\n";
/// Formats the findings of a table of rows, each from the newest run that has it. `rows` are all rows there are, with
/// titles. Fails if a finding has no samples.
pub(crate) fn targets(archive: &Archive, table: Table, rows: &[(Row, &str)]) -> Result<String> {
    let mut out = PAGE_HEAD.to_owned();
    for (row, title) in rows.iter().filter(|(row, _)| row.table == table) {
        let mut found = archive.findings(*row).peekable();
        if found.peek().is_none() {
            out += &format!("| {row} | {title} | | | – | | not run | – |\n");
        }
        for (filed, results, finding) in found {
            let line = line(finding, results).with_context(|| filed.name.clone())?;
            // Name the processor: a bound without a ratio is met or missed by it.
            let (run, cpu) = (&filed.run, &filed.run.machine.cpu);
            let run = format!(" [{}](../bench/results/{}), {cpu} |", run.day(), filed.name);
            out += &format!("{}{run}\n", line.trim_end());
        }
    }
    Ok(out.trim_end().to_owned())
}

/// Formats figures of all contenders in the newest run of a row: a line for each contender; a column for each figure,
/// or each case of one. Fails if the run has no such figure.
pub(crate) fn contenders(archive: &Archive, row: Row, figures: &[&str]) -> Result<String> {
    let Some((filed, results)) = archive.measured(row) else {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contender_that_spliced_nothing_is_marked() {
        assert_eq!(cell(&Series::new("a", "s", [2.0]).splices(0.0)), "not spliced");
        assert_eq!(
            cell(&Series::new("a", "s", [2.0, 3.0]).chose(0.0)),
            "2.5 (2–3), not spliced"
        );
    }
}
