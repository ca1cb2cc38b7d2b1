//! Reports findings beside their targets: a table for readers, JSON for later use.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use crate::machine::{self, Machine};
use crate::row::{Row, Table};

/// Required and desired value of a measure.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) enum Target {
    /// Lower bound.
    AtLeast {
        /// Required value.
        must: f64,
        /// Desired value.
        aim: f64,
    },
    /// Upper bound.
    AtMost {
        /// Required value.
        must: f64,
        /// Desired value.
        aim: f64,
    },
    /// A table and a plot must exist, with an upper bound for a value in them.
    Shown {
        /// Desired value.
        aim: f64,
    },
}

/// Relation of a measure to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It reaches the desired value.
    Aim,
    /// It reaches the required value, but not the desired one.
    Must,
    /// It misses the required value.
    Missed,
    /// It could not be measured.
    Failed,
}

impl Target {
    fn verdict(self, value: f64) -> Verdict {
        let (must, aim) = match self {
            Target::AtLeast { must, aim } => (value >= must, value >= aim),
            Target::AtMost { must, aim } => (value <= must, value <= aim),
            Target::Shown { aim } => (value.is_finite(), value <= aim),
        };
        match (must, aim) {
            (true, true) => Verdict::Aim,
            (true, false) => Verdict::Must,
            _ => Verdict::Missed,
        }
    }

    fn show(self) -> (String, String) {
        let (sign, must, aim) = match self {
            Target::AtLeast { must, aim } => ("≥", must, aim),
            Target::AtMost { must, aim } => ("≤", must, aim),
            Target::Shown { aim } => return ("table and plot".to_owned(), format!("≤ {}", number(aim))),
        };
        (
            format!("{sign} {}", number(must)),
            format!("{sign} {}", number(aim)),
        )
    }
}

impl Verdict {
    fn show(self) -> &'static str {
        match self {
            Verdict::Aim => "aim reached",
            Verdict::Must => "reached",
            Verdict::Missed => "MISSED",
            Verdict::Failed => "NOT MEASURED",
        }
    }
}

/// One row of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    /// Row, with its table.
    pub(crate) row: Row,
    /// Measure, with its unit.
    pub(crate) measure: String,
    /// Target.
    pub(crate) target: Target,
    /// Measured value.
    pub(crate) value: Option<f64>,
    /// Its relation to the target.
    pub(crate) verdict: Verdict,
    /// Further details for a reader: medians, spreads, the parts of a ratio.
    pub(crate) detail: String,
    /// All samples.
    pub(crate) data: Value,
}

impl Finding {
    /// Creates a measured row.
    pub(crate) fn new(
        row: Row,
        measure: impl Into<String>,
        target: Target,
        value: f64,
        detail: impl Into<String>,
        data: &impl Serialize,
    ) -> Result<Self> {
        let data = serde_json::to_value(data).context("write samples as JSON")?;
        Ok(Finding {
            row,
            measure: measure.into(),
            target,
            value: Some(value),
            verdict: target.verdict(value),
            detail: detail.into(),
            data,
        })
    }

    /// Creates a row that could not be measured.
    pub(crate) fn failed(row: Row, measure: &str, error: &anyhow::Error) -> Self {
        Finding {
            row,
            measure: measure.to_owned(),
            target: Target::AtLeast { must: 0.0, aim: 0.0 },
            value: None,
            verdict: Verdict::Failed,
            detail: format!("{error:#}"),
            data: Value::Null,
        }
    }
}

/// Results of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Book {
    /// Day, in UTC.
    date: String,
    machine: Machine,
    /// True in a shortened run, whose figures only show that the harness works.
    quick: bool,
    findings: Vec<Finding>,
    #[serde(skip)]
    file: PathBuf,
}

impl Book {
    /// Creates an empty book; `part` names a run that does not measure everything.
    pub(crate) fn new(dir: &Path, quick: bool, part: &str) -> Result<Self> {
        let (machine, date) = (Machine::here()?, machine::today());
        let quick_mark = if quick { "-quick" } else { "" };
        let file = dir.join(format!("{date}-{}{quick_mark}{part}.json", machine.host));
        Ok(Book {
            date,
            machine,
            quick,
            findings: Vec::new(),
            file,
        })
    }

    /// Returns the path of a figure (`svg`) or a table (`md`) of this run, beside the samples.
    ///
    /// # Errors
    /// Fails when the directory cannot be made.
    pub(crate) fn beside(&self, name: &str, extension: &str) -> Result<PathBuf> {
        let (dir, stem) = self
            .file
            .parent()
            .zip(self.file.file_stem())
            .context("results need a directory")?;
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(dir.join(format!("{}-{name}.{extension}", stem.to_string_lossy())))
    }

    /// Adds the findings of an experiment, and saves everything so far.
    pub(crate) fn enter(&mut self, findings: Vec<Finding>) -> Result<()> {
        self.findings.extend(findings);
        self.findings.sort_by_key(|finding| finding.row);
        let dir = self.file.parent().context("results need a directory")?;
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let json = serde_json::to_string_pretty(self).context("write results as JSON")?;
        let tmp = self.file.with_extension("json.tmp");
        fs::write(&tmp, json + "\n").with_context(|| format!("write {}", tmp.display()))?;
        fs::rename(&tmp, &self.file).with_context(|| format!("write {}", self.file.display()))
    }

    /// Returns whether everything that was attempted could be measured.
    pub(crate) fn is_complete(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.verdict != Verdict::Failed)
    }

    /// Returns the table, in Markdown.
    pub(crate) fn show(&self) -> String {
        let mut out = format!("{}, {}", self.machine.show(), self.date);
        if self.quick {
            out += " (shortened: the figures only show that the harness works)";
        }
        out += "\n";
        for table in Table::ALL {
            out += &self.show_table(table);
        }
        out + &format!("\nAll samples: {}\n", self.file.display())
    }

    /// Returns one of the tables, or an empty text if it has no row.
    fn show_table(&self, table: Table) -> String {
        let of_it = |finding: &&Finding| finding.row.table == table;
        let mut findings = self.findings.iter().filter(of_it).peekable();
        if findings.peek().is_none() {
            return String::new();
        }
        let mut out = format!("\n{}\n\n", table.title());
        out += "| # | measure | must | aim | here | verdict | detail |\n|--:|---|---|---|---|---|---|\n";
        for finding in findings {
            let (must, aim) = finding.target.show();
            let value = finding.value.map_or_else(|| "–".to_owned(), number);
            out += &format!(
                "| {} | {} | {must} | {aim} | **{value}** | {} | {} |\n",
                finding.row,
                finding.measure,
                finding.verdict.show(),
                finding.detail.replace('\n', " ")
            );
        }
        out
    }
}

/// Formats a number with as many digits as it needs.
fn number(value: f64) -> String {
    let text = match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 0.1 || middle == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_the_direction_of_the_target() {
        let more = Target::AtLeast { must: 1.0, aim: 1.05 };
        assert_eq!(more.verdict(0.99), Verdict::Missed);
        assert_eq!(more.verdict(1.0), Verdict::Must);
        assert_eq!(more.verdict(1.1), Verdict::Aim);
        let less = Target::AtMost { must: 2.0, aim: 1.0 };
        assert_eq!(less.verdict(2.1), Verdict::Missed);
        assert_eq!(less.verdict(0.5), Verdict::Aim);
        assert_eq!(less.verdict(f64::NAN), Verdict::Missed);
        let shown = Target::Shown { aim: 1.0 };
        assert_eq!(shown.verdict(1.0), Verdict::Aim);
        assert_eq!(shown.verdict(7.0), Verdict::Must);
        assert_eq!(shown.verdict(f64::NAN), Verdict::Missed);
    }

    #[test]
    fn numbers_have_no_useless_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (1.05, "1.05"),
            (0.05, "0.05"),
            (40_000.0, "40000"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
