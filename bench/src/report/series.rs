//! Series: samples of one contender, as they are committed.

use serde::{Deserialize, Serialize};

use crate::stats::Spread;

/// Meaning of the samples of a series, and the value that stands for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Statistic {
    /// Median of rounds, which were measured in turn with those of other contenders.
    #[default]
    Rounds,
    /// Median of events, such as requests.
    Median,
    /// 99th percentile of events.
    P99,
    /// Greatest sample.
    Max,
    /// Mean.
    Mean,
    /// Sum.
    Sum,
}

/// Samples of one figure of one contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Series {
    /// Contender.
    pub(crate) contender: String,
    /// Case, if there are several.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) case: String,
    /// Figure, with its unit.
    pub(crate) figure: String,
    /// Value that stands for all samples.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) statistic: Statistic,
    /// Samples, in the order of their measurement.
    pub(crate) samples: Vec<f64>,
    /// Number of splices, in all or for each connection or request, if the contender splices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) splices: Option<f64>,
    /// True if the contender chooses whether to splice: its figure counts without a splice as well.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) chooses: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Series {
    /// Creates a series of rounds. Samples are rounded to what is committed of them.
    pub(crate) fn new(
        contender: impl Into<String>,
        figure: impl Into<String>,
        samples: impl IntoIterator<Item = f64>,
    ) -> Self {
        Series {
            contender: contender.into(),
            case: String::new(),
            figure: figure.into(),
            statistic: Statistic::Rounds,
            samples: samples.into_iter().map(rounded).collect(),
            splices: None,
            chooses: false,
        }
    }

    /// Sets the case.
    pub(crate) fn case(self, case: impl Into<String>) -> Self {
        Series {
            case: case.into(),
            ..self
        }
    }

    /// Sets the statistic.
    pub(crate) fn by(self, statistic: Statistic) -> Self {
        Series { statistic, ..self }
    }

    /// Sets the number of splices of a contender that must splice.
    pub(crate) fn splices(self, splices: f64) -> Self {
        Series {
            splices: Some(rounded(splices)),
            ..self
        }
    }

    /// Sets the number of splices, if the contender is one that must splice.
    pub(crate) fn splices_if_any(self, splices: Option<f64>) -> Self {
        match splices {
            Some(splices) => self.splices(splices),
            None => self,
        }
    }

    /// Sets the number of splices of a contender that chooses whether to splice.
    pub(crate) fn chose(self, splices: f64) -> Self {
        Series {
            chooses: true,
            ..self.splices(splices)
        }
    }

    /// Returns whether the contender could splice, and spliced nothing.
    pub(crate) fn is_unspliced(&self) -> bool {
        self.splices == Some(0.0)
    }

    /// Returns whether the figure means nothing: the contender had to splice, and spliced nothing.
    pub(crate) fn is_void(&self) -> bool {
        self.is_unspliced() && !self.chooses
    }

    /// Returns the value that stands for the samples; `None` without a sample.
    pub(crate) fn value(&self) -> Option<f64> {
        let spread = Spread::of(self.samples.iter().copied())?;
        let sum: f64 = self.samples.iter().sum();
        Some(match self.statistic {
            Statistic::Rounds | Statistic::Median => spread.median,
            Statistic::P99 => spread.p99,
            Statistic::Max => spread.max,
            Statistic::Mean => sum / spread.n as f64,
            Statistic::Sum => sum,
        })
    }
}

/// Returns a value with six significant digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statistic_stands_for_all_samples() {
        let value = |statistic| Series::new("a", "s", [4.0, 1.0, 2.0]).by(statistic).value();
        assert_eq!(value(Statistic::Rounds), Some(2.0));
        assert_eq!(value(Statistic::Max), Some(4.0));
        assert_eq!(value(Statistic::Sum), Some(7.0));
        assert_eq!(Series::new("a", "s", []).value(), None);
    }

    #[test]
    fn samples_are_as_precise_as_they_are_committed() {
        let series = Series::new("a", "s", [0.123_456_789, 1_234_567.0, 0.0]);
        assert_eq!(series.samples, [0.123_457, 1_234_570.0, 0.0]);
    }

    #[test]
    fn a_figure_without_a_splice_counts_only_where_that_was_a_choice() {
        let series = Series::new("a", "s", [1.0]);
        assert!(!series.is_unspliced());
        assert!(!series.clone().splices(2.0).is_void());
        assert!(series.clone().splices(0.0).is_void());
        let chose = series.chose(0.0);
        assert!(chose.is_unspliced() && !chose.is_void());
    }
}
