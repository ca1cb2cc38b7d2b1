//! One run: a file with the samples of all its experiments.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::finding::{Outcome, Results};
use super::line::{self, line};
use crate::machine::{self, Machine};
use crate::row::Table;

/// Version of the form of a run's file.
const FORMAT: u32 = 1;

/// Results of a run, as they are committed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// Version of this form.
    format: u32,
    /// Start, in UTC: a day, or a day and a time.
    pub(crate) date: String,
    /// Commit of the sources, with a `+` if they were changed since; none if it is not known.
    pub(crate) commit: Option<String>,
    /// Machine on which it was measured.
    pub(crate) machine: Machine,
    /// True in a shortened run, whose figures only show that the harness works.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) quick: bool,
    /// Results of its experiments.
    pub(crate) experiments: Vec<Results>,
}

impl Run {
    /// Reads a run. Fails if the file has another form.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let run: Run =
            serde_json::from_str(&text).with_context(|| format!("understand {}", file.display()))?;
        ensure!(
            run.format == FORMAT,
            "{} has the form {}, not {FORMAT}",
            file.display(),
            run.format
        );
        Ok(run)
    }

    /// Creates a run on no particular machine.
    #[cfg(test)]
    pub(crate) fn of(date: &str, experiments: impl IntoIterator<Item = Results>) -> Self {
        Run {
            format: FORMAT,
            date: date.to_owned(),
            commit: None,
            machine: Machine::here().unwrap(),
            quick: false,
            experiments: experiments.into_iter().collect(),
        }
    }

    /// Returns the day of its start.
    pub(crate) fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or_default()
    }

    /// Formats it as JSON, each series and each finding on a line of its own.
    fn json(&self) -> Result<String> {
        let head = Run {
            experiments: Vec::new(),
            ..self.clone()
        };
        let head = serde_json::to_string(&head).context("write a run")?;
        let head = head.strip_suffix("]}").context("the experiments come last")?;
        let experiments: Vec<String> = self.experiments.iter().map(lines).collect::<Result<_>>()?;
        Ok(format!("{head}\n{}\n]}}\n", experiments.join(",\n")))
    }
}

/// Formats the results of one experiment.
fn lines(results: &Results) -> Result<String> {
    fn each<T: Serialize>(all: &[T]) -> Result<String> {
        let lines: Result<Vec<String>, _> = all.iter().map(serde_json::to_string).collect();
        Ok(lines.context("write samples")?.join(",\n"))
    }
    Ok(format!(
        "{{\"series\":[\n{}\n],\"findings\":[\n{}\n]}}",
        each(&results.series)?,
        each(&results.findings)?
    ))
}

/// Run that goes on, and its file.
#[derive(Debug)]
pub(crate) struct Book {
    run: Run,
    file: PathBuf,
    figures: PathBuf,
}

impl Book {
    /// Creates an empty book. `results` is the directory of its file, `figures` that of pictures for the eye.
    pub(crate) fn new(results: &Path, figures: &Path, quick: bool) -> Result<Self> {
        let run = Run {
            format: FORMAT,
            date: machine::now(),
            commit: commit(),
            machine: Machine::here()?,
            quick,
            experiments: Vec::new(),
        };
        let quick_mark = if quick { "-quick" } else { "" };
        let name = format!(
            "{}-{}{quick_mark}.json",
            run.date.replace([':', 'Z'], ""),
            run.machine.host
        );
        Ok(Book {
            run,
            file: results.join(name),
            figures: figures.to_owned(),
        })
    }

    /// Returns the path of a picture of this run. Makes its directory.
    pub(crate) fn picture(&self, name: &str) -> Result<PathBuf> {
        fs::create_dir_all(&self.figures).with_context(|| format!("make {}", self.figures.display()))?;
        let stem = self.file.file_stem().context("a run has a name")?;
        Ok(self
            .figures
            .join(format!("{}-{name}.svg", stem.to_string_lossy())))
    }

    /// Adds the results of an experiment, and saves everything so far.
    pub(crate) fn enter(&mut self, results: Results) -> Result<()> {
        self.run.experiments.push(results);
        let dir = self.file.parent().context("results need a directory")?;
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let mut new = NamedTempFile::new_in(dir).with_context(|| format!("write into {}", dir.display()))?;
        new.write_all(self.run.json()?.as_bytes())
            .and_then(|()| new.as_file().set_permissions(readable()))
            .with_context(|| format!("write {}", self.file.display()))?;
        new.persist(&self.file)
            .with_context(|| format!("write {}", self.file.display()))?;
        Ok(())
    }

    /// Returns whether everything that was attempted could be measured.
    pub(crate) fn is_complete(&self) -> bool {
        let mut findings = self.run.experiments.iter().flat_map(|results| &results.findings);
        findings.all(|finding| matches!(finding.outcome, Outcome::Measured(_)))
    }

    /// Returns the tables, in Markdown, with the circumstances of each finding.
    pub(crate) fn show(&self) -> Result<String> {
        let mut out = format!("{}, {}", self.run.machine.show(), self.run.date);
        if self.run.quick {
            out += " (shortened: the figures only show that the harness works)";
        }
        out += "\n";
        for table in Table::ALL {
            let all = self.run.experiments.iter();
            let mut of_it: Vec<_> = all
                .flat_map(|results| results.findings.iter().map(move |finding| (results, finding)))
                .filter(|(_, finding)| finding.row.table == table)
                .collect();
            if of_it.is_empty() {
                continue;
            }
            of_it.sort_by_key(|(_, finding)| finding.row);
            out += &format!("\n{}\n\n{}", table.title(), line::HEAD);
            for (results, finding) in &of_it {
                out += &line(finding, results)?;
            }
            out += "\n";
            for (_, finding) in of_it.iter().filter(|(_, finding)| !finding.detail.is_empty()) {
                out += &format!("{}: {}: {}\n", finding.row, finding.measure, finding.detail);
            }
        }
        // Name no file where all rows were skipped.
        if !self.run.experiments.is_empty() {
            out += &format!("\nAll samples: {}\n", self.file.display());
        }
        Ok(out)
    }
}

/// Returns the permissions of an ordinary file: those of a temporary one are narrower.
fn readable() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o644)
}

/// Returns the commit of the sources in the working directory.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let head = git(&["rev-parse", "--short=10", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { head } else { head + "+" })
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Comparison, Finding};
    use super::super::series::Series;
    use super::super::target::Target;
    use super::*;
    use crate::row::Row;

    #[test]
    fn a_run_is_read_as_it_was_written() {
        let series = [
            Series::new("a", "s", [1.0, 2.5]).splices(2.0),
            Series::new("b", "s", [1.0, 2.0]).case("x"),
        ];
        let target = Target::AtLeast { must: 1.0, aim: 2.0 };
        let results = Results::of(series)
            .find(Finding::new(
                Row::splice(1),
                "a measure",
                Comparison::of(target, "a", "s").to(["b"]),
                "so",
            ))
            .find(Finding::failed(
                Row::switch(2),
                "another",
                &anyhow::anyhow!("no \"time\""),
            ));
        let dir = tempfile::tempdir().unwrap();
        let mut book = Book::new(dir.path(), dir.path(), true).unwrap();
        book.enter(results.clone()).unwrap();
        book.enter(results.clone()).unwrap();
        let read = Run::read(&book.file).unwrap();
        assert_eq!(read.experiments, [results.clone(), results]);
        assert!(read.quick && !book.is_complete());
        // A line for each series and each finding, and a few around them.
        assert_eq!(read.json().unwrap().lines().count(), 1 + 2 * 7 + 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
