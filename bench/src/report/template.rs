//! Fills the places of a template.
//!
//! | place | filled with |
//! |---|---|
//! | `{{runs}}` | the list of runs |
//! | `{{targets TITLE}}` | the findings of a table of rows |
//! | `{{contenders ROW \| FIGURE \| …}}` | figures of all contenders |
//! | `{{figure ROW \| CONTENDER \| FIGURE \| CASE}}` | one figure; the case may be absent |
//! | `{{awaited …}}` | as `figure`, of a contender that older runs of the row lack: "not run" then |
//! | `{{date ROW}}` | processor and day of the row's run |
//! | `{{part NAME}}` | a part that an experiment makes of its results |

use anyhow::{Context, Result, bail, ensure};

use super::archive::Archive;
use super::finding::Results;
use super::tables;
use crate::row::{Row, Table};

/// Rows and special parts of the page, as the experiments define them.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    /// All rows there are, with titles.
    pub(crate) rows: Vec<(Row, &'a str)>,
    /// Texts for `{{part NAME}}`.
    pub(crate) parts: &'a [Part],
    /// Pictures; their names are paths.
    pub(crate) pictures: &'a [Part],
}

/// Text or picture that is made of the results of a row's experiment.
#[derive(Debug)]
pub(crate) struct Part {
    /// Name.
    pub(crate) name: &'static str,
    /// Row.
    pub(crate) row: Row,
    /// Makes it.
    pub(crate) make: fn(&Results) -> Result<String>,
}

/// Fills all places of `template`. Fails if a place is unknown, or names a figure of which the row's run has no sample.
pub(crate) fn fill(template: &str, archive: &Archive, report: &Report<'_>) -> Result<String> {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, more)) = rest.split_once("{{") {
        let (place, more) = more
            .split_once("}}")
            .context("a place of the template does not end")?;
        out += before;
        out += &one(place, archive, report).with_context(|| format!("fill {{{{{place}}}}}"))?;
        rest = more;
    }
    Ok(out + rest)
}

fn one(place: &str, archive: &Archive, report: &Report<'_>) -> Result<String> {
    let (kind, given) = place.split_once(' ').unwrap_or((place, ""));
    let given: Vec<&str> = given.split('|').map(str::trim).collect();
    let row = || given[0].parse::<Row>().map_err(anyhow::Error::msg);
    match (kind, &given[..]) {
        ("runs", _) => Ok(tables::runs(archive, &report.rows)),
        ("targets", [title]) => {
            let table = Table::ALL.into_iter().find(|table| table.title() == *title);
            tables::targets(archive, table.context("there is no such table")?, &report.rows)
        }
        ("contenders", [_, figures @ ..]) => {
            ensure!(!figures.is_empty(), "a figure is missing");
            tables::contenders(archive, row()?, figures)
        }
        ("figure" | "awaited", [_, contender, figure, case @ ..]) => {
            let Some((_, results)) = archive.measured(row()?) else {
                return Ok("not run".to_owned());
            };
            let case = case.first().copied().unwrap_or_default();
            let mut others = results.series.iter();
            match results.series(contender, figure, case) {
                Some(series) => Ok(tables::figure(series)),
                // Require the figure of another contender, so that a misspelt one is found.
                None if kind == "awaited" && others.any(|one| one.figure == *figure && one.case == case) => {
                    Ok("not run".to_owned())
                }
                None => bail!("there is no such sample"),
            }
        }
        ("date", _) => Ok(archive.measured(row()?).map_or_else(
            || "not run".to_owned(),
            |(filed, _)| format!("{}, {}", filed.run.machine.cpu, filed.run.day()),
        )),
        ("part", [name]) => {
            let part = report.parts.iter().find(|part| part.name == *name);
            let part = part.context("there is no such part")?;
            match archive.measured(part.row) {
                Some((_, results)) => Ok((part.make)(results)?.trim_end().to_owned()),
                None => Ok(format!("Row {} was not run.", part.row)),
            }
        }
        _ => bail!("there is no such place"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Comparison, Finding};
    use super::super::run::Run;
    use super::super::series::Series;
    use super::super::target::Target;
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn a_row_names_the_processor_of_its_run() {
        let cpu = Machine::here().unwrap().cpu;
        let targets = filled("{{targets The splice}}").unwrap();
        assert!(targets.contains(&format!("a.json), {cpu} |")), "{targets}");
    }

    #[test]
    fn places_of_a_row_that_failed_say_that_it_was_not_run() {
        let failed = Finding::failed(Row::splice(1), "m", &anyhow::anyhow!("no strace"));
        let run = Run::of("2026-11-20", [Results::default().find(failed)]);
        let report = Report {
            rows: vec![(Row::splice(1), "one")],
            parts: &[],
            pictures: &[],
        };
        let archive = Archive::of("a.json", run);
        let filled = |template| fill(template, &archive, &report).unwrap();
        assert_eq!(filled("{{contenders 1 | s}}"), "Row 1 was not run.");
        assert_eq!(filled("{{figure 1 | ours | s}}"), "not run");
        assert!(filled("{{targets The splice}}").contains("not run: no strace"));
    }

    fn filled(template: &str) -> Result<String> {
        let series = [
            Series::new("ours", "s", [1.0, 3.0]),
            Series::new("theirs", "s", [4.0]),
        ];
        let target = Target::AtLeast { must: 1.0, aim: 2.0 };
        let finding = Finding::new(Row::splice(1), "m", Comparison::of(target, "ours", "s"), "");
        let run = Run::of("2026-11-20", [Results::of(series).find(finding)]);
        let report = Report {
            rows: vec![(Row::splice(1), "one"), (Row::splice(2), "two")],
            parts: &[],
            pictures: &[],
        };
        fill(template, &Archive::of("a.json", run), &report)
    }

    #[test]
    fn places_are_filled_from_the_samples() {
        assert_eq!(filled("a {{figure 1 | ours | s}} b").unwrap(), "a 2 b");
        assert_eq!(filled("{{figure 2 | ours | s}}").unwrap(), "not run");
        assert_eq!(filled("{{awaited 1 | ours | s}}").unwrap(), "2");
        assert_eq!(filled("{{awaited 1 | newer | s}}").unwrap(), "not run");
        let table = filled("{{contenders 1 | s}}").unwrap();
        assert!(table.ends_with("| ours | 2 (1–3) |\n| theirs | 4 |"), "{table}");
        let targets = filled("{{targets The splice}}").unwrap();
        assert!(
            targets.contains("| **2** | 1, 3 | met | [2026-11-20](../bench/results/a.json), "),
            "{targets}"
        );
        assert!(
            targets.ends_with("| 2 | two | | | – | | not run | – |"),
            "{targets}"
        );
    }

    #[test]
    fn a_figure_without_a_sample_is_an_error() {
        for wrong in [
            "{{figure 1 | ours | t}}",
            "{{awaited 1 | ours | t}}",
            "{{contenders 1 | t}}",
            "{{word}}",
            "{{targets x}}",
            "{{runs",
        ] {
            assert!(filled(wrong).is_err(), "{wrong}");
        }
    }
}
