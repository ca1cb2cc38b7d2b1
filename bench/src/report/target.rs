//! Targets of measures, and verdicts on them.

use serde::{Deserialize, Serialize};

use super::number::number;

/// Required and desired value of a measure, and their direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// A table must exist, with an upper bound for a value in it.
    Shown {
        /// Desired value.
        aim: f64,
    },
}

/// Relation of a measure to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Value and all rounds reach the bound.
    Met {
        /// True if all of them reach the desired value, too.
        aim: bool,
    },
    /// Some rounds reach the bound, and others do not.
    WithinNoise,
    /// Neither the value nor a round reaches the bound.
    Missed,
    /// Nothing was spliced where the measure is that of a splice.
    NotSpliced,
}

impl Target {
    /// Returns whether a smaller value is a better one.
    pub(crate) fn is_upper(self) -> bool {
        !matches!(self, Target::AtLeast { .. })
    }

    /// Returns the bound of the verdict: the required value, or the desired one where only a table is required.
    fn bound(self) -> f64 {
        match self {
            Target::AtLeast { must, .. } | Target::AtMost { must, .. } => must,
            Target::Shown { aim } => aim,
        }
    }

    fn aim(self) -> f64 {
        match self {
            Target::AtLeast { aim, .. } | Target::AtMost { aim, .. } | Target::Shown { aim } => aim,
        }
    }

    /// Judges a value and its rounds.
    pub(crate) fn verdict(self, value: f64, rounds: &[f64]) -> Verdict {
        let reached = |bound: f64| {
            let all = rounds.iter().copied().chain([value]);
            let reaches = |value: f64| match self.is_upper() {
                true => value <= bound,
                false => value >= bound,
            };
            let reached = all.filter(|&value| reaches(value)).count();
            (reached > rounds.len(), reached > 0)
        };
        match reached(self.bound()) {
            (true, _) => Verdict::Met {
                aim: reached(self.aim()).0,
            },
            (false, true) => Verdict::WithinNoise,
            (false, false) => Verdict::Missed,
        }
    }

    /// Formats the required value and the desired one.
    pub(crate) fn show(self) -> [String; 2] {
        let (sign, must, aim) = match self {
            Target::AtLeast { must, aim } => ("≥", must, aim),
            Target::AtMost { must, aim } => ("≤", must, aim),
            Target::Shown { aim } => return ["a table".to_owned(), format!("≤ {}", number(aim))],
        };
        [must, aim].map(|bound| format!("{sign} {}", number(bound)))
    }

    /// Formats a verdict on it.
    pub(crate) fn tell(self, verdict: Verdict) -> &'static str {
        let shown = matches!(self, Target::Shown { .. });
        match (verdict, shown) {
            (Verdict::Met { aim: false }, false) => "met",
            (Verdict::Met { aim: true }, false) => "met, and the aim",
            (Verdict::Met { .. }, true) => "aim met",
            (Verdict::WithinNoise, false) => "within noise",
            (Verdict::WithinNoise, true) => "aim within noise",
            (Verdict::Missed, false) => "missed",
            (Verdict::Missed, true) => "aim missed",
            (Verdict::NotSpliced, _) => "not spliced",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_the_direction_of_the_target() {
        let more = Target::AtLeast { must: 1.0, aim: 1.05 };
        assert_eq!(more.verdict(0.99, &[]), Verdict::Missed);
        assert_eq!(more.verdict(1.0, &[]), Verdict::Met { aim: false });
        assert_eq!(more.verdict(1.1, &[1.06, 1.2]), Verdict::Met { aim: true });
        let less = Target::AtMost { must: 2.0, aim: 1.0 };
        assert_eq!(less.verdict(2.1, &[]), Verdict::Missed);
        assert_eq!(less.verdict(0.5, &[0.4, 1.5]), Verdict::Met { aim: false });
        assert_eq!(less.verdict(f64::NAN, &[]), Verdict::Missed);
    }

    #[test]
    fn rounds_on_both_sides_of_the_bound_are_noise() {
        let more = Target::AtLeast { must: 1.0, aim: 1.05 };
        assert_eq!(more.verdict(1.1, &[0.99, 1.2]), Verdict::WithinNoise);
        assert_eq!(more.verdict(0.9, &[0.8, 1.01]), Verdict::WithinNoise);
        assert_eq!(more.verdict(0.9, &[0.8, 0.99]), Verdict::Missed);
    }

    #[test]
    fn where_a_table_is_required_the_aim_is_judged() {
        let shown = Target::Shown { aim: 1.0 };
        assert_eq!(shown.tell(shown.verdict(1.0, &[])), "aim met");
        assert_eq!(shown.tell(shown.verdict(1.5, &[])), "aim missed");
        assert_eq!(shown.tell(shown.verdict(1.5, &[0.9])), "aim within noise");
    }
}
