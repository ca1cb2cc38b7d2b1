//! All committed runs, and the newest one for each row.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::finding::{Finding, Results};
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
    /// Reads the runs of a directory.
    ///
    /// # Errors
    /// Fails when a file there is no run, or a shortened one.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let mut runs = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
            let path = entry?.path();
            let run = Run::read(&path)?;
            ensure!(
                !run.quick,
                "{} is a shortened run: its figures only show that the harness works",
                path.display()
            );
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

    /// Returns the newest run that has a row, with the results of the row's experiment.
    pub(crate) fn latest(&self, row: Row) -> Option<(&Filed, &Results)> {
        let has = |results: &&Results| results.findings.iter().any(|finding| finding.row == row);
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
