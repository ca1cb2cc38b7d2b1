//! Computes the value of a finding, its rounds and its verdict from the samples.

use anyhow::{Context, Result, ensure};

use super::finding::{Comparison, Results};
use super::series::{Series, Statistic};
use super::target::Verdict;

/// Judged comparison.
#[derive(Debug)]
pub(crate) struct Judged {
    /// Cases, in their order; one without a name if there is only one.
    pub(crate) cases: Vec<Case>,
    /// Verdict on all of them: that on the worst one.
    pub(crate) verdict: Verdict,
}

/// Judged case.
#[derive(Debug)]
pub(crate) struct Case {
    /// Name.
    pub(crate) name: String,
    /// Value; `None` if it would be that of a splice, and nothing was spliced.
    pub(crate) value: Option<f64>,
    /// Values of the rounds; none if the samples are not rounds, or there was only one.
    pub(crate) rounds: Vec<f64>,
    /// True if nothing was spliced by the contender's choice.
    pub(crate) unspliced: bool,
    /// Verdict on this case.
    pub(crate) verdict: Verdict,
}

impl Judged {
    /// Judges a comparison by the series of its experiment. Fails if a series is missing, or has no sample.
    pub(crate) fn new(comparison: &Comparison, results: &Results) -> Result<Self> {
        let only = [String::new()];
        let names = match &comparison.cases[..] {
            [] => &only[..],
            cases => cases,
        };
        let cases: Vec<Case> = names
            .iter()
            .map(|name| case(comparison, results, name))
            .collect::<Result<_>>()?;
        let of = |verdict: fn(Verdict) -> bool| cases.iter().any(|case| verdict(case.verdict));
        let verdict = if of(|verdict| verdict == Verdict::Missed) {
            Verdict::Missed
        } else if of(|verdict| verdict == Verdict::WithinNoise) {
            Verdict::WithinNoise
        } else if of(|verdict| verdict == Verdict::NotSpliced) {
            Verdict::NotSpliced
        } else {
            Verdict::Met {
                aim: !of(|verdict| verdict == Verdict::Met { aim: false }),
            }
        };
        Ok(Judged { cases, verdict })
    }

    /// Returns the case with the worst value, if one has a value.
    pub(crate) fn worst(&self, comparison: &Comparison) -> Option<&Case> {
        let valued = self.cases.iter().filter_map(|case| Some((case.value?, case)));
        let worst = match comparison.target.is_upper() {
            true => valued.max_by(|a, b| a.0.total_cmp(&b.0)),
            false => valued.min_by(|a, b| a.0.total_cmp(&b.0)),
        };
        worst.map(|(_, case)| case)
    }
}

fn case(comparison: &Comparison, results: &Results, name: &str) -> Result<Case> {
    let figure = &comparison.figure;
    let find = |contender: &String| -> Result<(&Series, f64)> {
        let series = results.series(contender, figure, name);
        let found = series.and_then(|series| Some((series, series.value()?)));
        found.with_context(|| format!("there is no sample of {contender}, {figure} {name}"))
    };
    let (ours, value) = find(&comparison.of)?;
    let combine = |ours: f64, theirs: f64| match comparison.difference {
        true => ours - theirs,
        false => ours / theirs,
    };
    let others: Vec<(&Series, f64)> = comparison.to.iter().map(find).collect::<Result<_>>()?;
    let best = match comparison.target.is_upper() {
        true => others.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)),
        false => others.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)),
    };
    let (value, rounds) = match best {
        None => (value, of_rounds(ours, None, combine)?),
        Some((series, theirs)) => (combine(value, theirs), of_rounds(ours, Some(series), combine)?),
    };
    let void = ours.is_void();
    Ok(Case {
        name: name.to_owned(),
        value: (!void).then_some(value),
        verdict: match void {
            true => Verdict::NotSpliced,
            false => comparison.target.verdict(value, &rounds),
        },
        rounds,
        unspliced: ours.is_unspliced(),
    })
}

fn of_rounds(ours: &Series, theirs: Option<&Series>, combine: impl Fn(f64, f64) -> f64) -> Result<Vec<f64>> {
    let in_rounds = |series: &Series| series.statistic == Statistic::Rounds;
    if ours.samples.len() < 2 || !in_rounds(ours) {
        return Ok(Vec::new());
    }
    let Some(theirs) = theirs else {
        return Ok(ours.samples.clone());
    };
    ensure!(
        in_rounds(theirs) && theirs.samples.len() == ours.samples.len(),
        "{} and {} were not measured in the same rounds",
        ours.contender,
        theirs.contender
    );
    let pairs = ours.samples.iter().zip(&theirs.samples);
    Ok(pairs.map(|(ours, theirs)| combine(*ours, *theirs)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::target::Target;
    use super::*;

    const MORE: Target = Target::AtLeast { must: 1.0, aim: 1.5 };

    fn judged(comparison: &Comparison, series: impl IntoIterator<Item = Series>) -> Judged {
        Judged::new(comparison, &Results::of(series)).unwrap()
    }

    #[test]
    fn the_value_is_the_ratio_of_medians_to_the_best_other() {
        let comparison = Comparison::of(MORE, "a", "s").to(["b", "c"]);
        let series = [
            Series::new("a", "s", [2.0, 3.0, 2.5]),
            Series::new("b", "s", [1.0, 1.0, 1.0]),
            Series::new("c", "s", [2.0, 2.0, 2.0]),
        ];
        let judged = judged(&comparison, series);
        let case = judged.worst(&comparison).unwrap();
        assert_eq!(
            (case.value, &case.rounds[..]),
            (Some(1.25), &[1.0, 1.5, 1.25][..])
        );
        assert_eq!(judged.verdict, Verdict::Met { aim: false });
    }

    #[test]
    fn the_worst_case_counts() {
        let comparison = Comparison::of(MORE, "a", "s").worst(["x", "y"]);
        let [x, y] = [[3.0, 4.0], [0.5, 0.9]];
        let series = [
            Series::new("a", "s", x).case("x"),
            Series::new("a", "s", y).case("y"),
        ];
        let judged = judged(&comparison, series);
        assert_eq!(judged.worst(&comparison).unwrap().name, "y");
        assert_eq!(judged.verdict, Verdict::Missed);
    }

    #[test]
    fn events_are_no_rounds() {
        let series = Series::new("a", "s", [0.5, 2.0, 2.0]).by(Statistic::Median);
        let judged = judged(&Comparison::of(MORE, "a", "s"), [series]);
        assert_eq!(judged.verdict, Verdict::Met { aim: true });
    }

    #[test]
    fn what_was_not_spliced_has_no_value() {
        let series = Series::new("a", "s", [2.0]).splices(0.0);
        let judged = judged(&Comparison::of(MORE, "a", "s"), [series]);
        assert_eq!(judged.verdict, Verdict::NotSpliced);
        assert_eq!(judged.cases[0].value, None);
    }

    #[test]
    fn rounds_of_different_numbers_are_not_compared() {
        let series = [
            Series::new("a", "s", [1.0, 2.0]),
            Series::new("b", "s", [1.0, 2.0, 3.0]),
        ];
        let comparison = Comparison::of(MORE, "a", "s").to(["b"]);
        assert!(Judged::new(&comparison, &Results::of(series)).is_err());
        assert!(Judged::new(&comparison, &Results::default()).is_err());
    }
}
