//! Findings: claims of experiments about their series.

use serde::{Deserialize, Serialize};

use super::series::Series;
use super::target::Target;
use crate::row::Row;

/// Series of an experiment, and the findings that are made of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    /// Samples.
    pub(crate) series: Vec<Series>,
    /// Claims about them.
    pub(crate) findings: Vec<Finding>,
}

/// Row of the table, or one of its measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Row, with its table.
    pub(crate) row: Row,
    /// Measure, with its unit.
    pub(crate) measure: String,
    /// Comparison, or the reason why there is none.
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    /// Circumstances, for a reader of the run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
}

/// Outcome of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// Series were compared.
    Measured(Comparison),
    /// It could not be measured, for this reason.
    Failed(String),
}

/// Comparison of a contender with others, or with a bound alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Comparison {
    /// Bounds, and their direction.
    pub(crate) target: Target,
    /// Figure of the series.
    pub(crate) figure: String,
    /// Contender.
    pub(crate) of: String,
    /// Others: the value is the ratio to the best of them. Without others, it is the contender's own figure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) to: Vec<String>,
    /// True if the value is the difference from the best of the others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) difference: bool,
    /// Cases, the worst of which is the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cases: Vec<String>,
}

impl Comparison {
    /// Compares a contender's figure with a target.
    pub(crate) fn of(target: Target, of: impl Into<String>, figure: impl Into<String>) -> Self {
        Comparison {
            target,
            figure: figure.into(),
            of: of.into(),
            to: Vec::new(),
            difference: false,
            cases: Vec::new(),
        }
    }

    /// Divides it by that of the best of the others.
    pub(crate) fn to<'a>(self, to: impl IntoIterator<Item = &'a str>) -> Self {
        Comparison {
            to: to.into_iter().map(str::to_owned).collect(),
            ..self
        }
    }

    /// Subtracts that of another one from it.
    pub(crate) fn less(self, other: &str) -> Self {
        Comparison {
            difference: true,
            ..self.to([other])
        }
    }

    /// Takes the worst of these cases.
    pub(crate) fn worst<C: Into<String>>(self, cases: impl IntoIterator<Item = C>) -> Self {
        Comparison {
            cases: cases.into_iter().map(Into::into).collect(),
            ..self
        }
    }
}

impl Finding {
    /// Creates a measured row.
    pub(crate) fn new(
        row: Row,
        measure: impl Into<String>,
        comparison: Comparison,
        detail: impl Into<String>,
    ) -> Self {
        Finding {
            row,
            measure: measure.into(),
            outcome: Outcome::Measured(comparison),
            detail: detail.into(),
        }
    }

    /// Creates a row that could not be measured.
    pub(crate) fn failed(row: Row, measure: &str, error: &anyhow::Error) -> Self {
        Finding {
            row,
            measure: measure.to_owned(),
            outcome: Outcome::Failed(format!("{error:#}")),
            detail: String::new(),
        }
    }
}

impl Results {
    /// Creates results of series, without findings.
    pub(crate) fn of(series: impl IntoIterator<Item = Series>) -> Self {
        Results {
            series: series.into_iter().collect(),
            findings: Vec::new(),
        }
    }

    /// Adds a finding.
    pub(crate) fn find(mut self, finding: Finding) -> Self {
        self.findings.push(finding);
        self
    }

    /// Adds the results of another part of the same experiment.
    pub(crate) fn join(mut self, other: Results) -> Self {
        self.series.extend(other.series);
        self.findings.extend(other.findings);
        self
    }

    /// Returns a series.
    pub(crate) fn series(&self, contender: &str, figure: &str, case: &str) -> Option<&Series> {
        self.series
            .iter()
            .find(|one| one.contender == contender && one.figure == figure && one.case == case)
    }
}
