//! All committed runs, and the newest one for each row.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::amend::amend;
use super::finding::{Finding, Outcome, Results};
use super::run::Run;
use crate::row::Row;

/// Committed runs, the newest first.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    runs: Vec<Filed>,
}

/// Run with the name of its file.
#[derive(Debug)]
pub(crate) struct Filed {
    /// Name.
    pub(crate) name: String,
    /// Content.
    pub(crate) run: Run,
}

impl Archive {
    /// Reads the runs of a directory. Fails if a file there is no run, or a shortened one.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let mut runs = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
            let path = entry?.path();
            let mut run = Run::read(&path)?;
            ensure!(
                !run.quick,
                "{} is a shortened run: its figures only show that the harness works",
                path.display()
            );
            run.experiments.iter_mut().for_each(amend);
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            runs.push(Filed { name, run });
        }
        runs.sort_by(|a, b| (&b.run.date, &b.name).cmp(&(&a.run.date, &a.name)));
        Ok(Archive { runs })
    }

    /// Creates an archive of one run.
    #[cfg(test)]
    pub(crate) fn of(name: &str, run: Run) -> Self {
        let name = name.to_owned();
        Archive {
            runs: vec![Filed { name, run }],
        }
    }

    /// Returns all runs, the newest first.
    pub(crate) fn runs(&self) -> &[Filed] {
        &self.runs
    }

    /// Returns the newest run that has measured a row, with the results of the row's experiment; the newest one that
    /// failed to if none has.
    pub(crate) fn latest(&self, row: Row) -> Option<(&Filed, &Results)> {
        self.measured(row).or_else(|| self.newest(row, |_| true))
    }

    /// Returns the newest run that has measured a row, with the results of the row's experiment.
    pub(crate) fn measured(&self, row: Row) -> Option<(&Filed, &Results)> {
        self.newest(row, |finding| matches!(finding.outcome, Outcome::Measured(_)))
    }

    /// Returns the newest run with such a finding of a row, and the results of the row's experiment.
    fn newest(&self, row: Row, is_such: fn(&Finding) -> bool) -> Option<(&Filed, &Results)> {
        let has = |results: &&Results| {
            let mut findings = results.findings.iter();
            findings.any(|finding| finding.row == row && is_such(finding))
        };
        self.runs
            .iter()
            .find_map(|filed| Some((filed, filed.run.experiments.iter().find(has)?)))
    }

    /// Returns the findings of a row in the newest run that has it, with the results of its experiment.
    pub(crate) fn findings(&self, row: Row) -> impl Iterator<Item = (&Filed, &Results, &Finding)> {
        self.latest(row).into_iter().flat_map(move |(filed, results)| {
            let of_it = results.findings.iter().filter(move |finding| finding.row == row);
            of_it.map(move |finding| (filed, results, finding))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Comparison;
    use super::super::series::Series;
    use super::super::target::Target;
    use super::*;

    #[test]
    fn a_measured_run_is_preferred_to_a_newer_failure() {
        let row = Row::splice(1);
        let target = Target::AtLeast { must: 1.0, aim: 2.0 };
        let measured = Results::of([Series::new("ours", "s", [1.0])]);
        let measured = measured.find(Finding::new(row, "m", Comparison::of(target, "ours", "s"), ""));
        let failed = Finding::failed(row, "m", &anyhow::anyhow!("no strace"));
        let failed = Results::default().find(failed);
        let filed = |name: &str, results: &Results| Filed {
            name: name.to_owned(),
            run: Run::of("2026-11-20", [results.clone()]),
        };
        let mut archive = Archive {
            runs: vec![filed("newer", &failed), filed("older", &measured)],
        };
        assert_eq!(archive.latest(row).unwrap().0.name, "older");
        archive.runs.pop();
        assert_eq!(archive.latest(row).unwrap().0.name, "newer");
        assert!(archive.measured(row).is_none());
    }
}
