//! Plan of an experiment: its cases, and the values of others that they stand beside.

use std::time::Duration;

use super::cost::Operations;
use super::figure::{Axis, Source};
use super::load::Load;
use super::scene::Scene;

/// Experiment of the list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Experiment {
    /// Name on the command line and of the files.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) notes: &'static [&'static str],
    /// Policy of the nodes, as options of `longsplice accelerate`.
    pub(crate) policy: &'static str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) references: &'static [Reference],
    /// Returns the cases of all points, or of a third of them.
    pub(crate) cases: fn(Points) -> Vec<Case>,
}

/// Values of others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reference {
    pub(crate) name: &'static str,
    pub(crate) source: Source,
    pub(crate) points: Values,
}

type Values = &'static [(f64, f64)];

impl Reference {
    const fn of(source: Source, name: &'static str, points: Values) -> Self {
        Self { name, source, points }
    }

    /// Names values of the paper.
    pub(crate) const fn paper(name: &'static str, points: Values) -> Self {
        Self::of(Source::Paper, name, points)
    }

    /// Names values of the design's prototype.
    pub(crate) const fn design(name: &'static str, points: Values) -> Self {
        Self::of(Source::Design, name, points)
    }

    /// Names values that follow from the links.
    pub(crate) const fn links(name: &'static str, points: Values) -> Self {
        Self::of(Source::Links, name, points)
    }
}

/// Points to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Points {
    /// A third of the points, once each
    Quick,
    /// All points
    All,
}

impl Points {
    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Points::Quick => "quick",
            Points::All => "all",
        }
    }

    /// Chooses among the points of an experiment: all of them, or the middle one of each three.
    pub(crate) fn of<T: Clone>(self, all: &[T]) -> Vec<T> {
        match self {
            Points::All => all.to_vec(),
            Points::Quick => all
                .chunks(3)
                .map(|three| three[three.len() / 2].clone())
                .collect(),
        }
    }

    /// Returns the time of a run, given those of all points and of quick ones in seconds.
    pub(crate) fn load(self, all: u64, quick: u64) -> Load {
        Load::Time(Duration::from_secs(match self {
            Points::All => all,
            Points::Quick => quick,
        }))
    }

    /// Returns the number of runs of a case.
    pub(crate) fn runs(self, all: usize) -> usize {
        match self {
            Points::All => all,
            Points::Quick => 1,
        }
    }
}

/// Point of a series, or a whole series over time.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Series that it belongs to.
    pub(crate) series: String,
    pub(crate) x: f64,
    /// Number of runs with seeds of their own; their median counts.
    pub(crate) runs: usize,
    pub(crate) scene: Scene,
    pub(crate) measure: Measure,
}

/// Quantity that a case measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Measure {
    /// Goodput of the scene, divided by that of the same flows over the same links without acceleration.
    SpeedUp,
    /// Time that the bytes in the first node take at a rate in Mbit/s, over the time of the run.
    QueuedSeconds { rate: f64 },
    /// Mean goodput of the accelerated flows, divided by that of the others.
    Share,
    /// Mean goodput of the flows of each kind over the time of the run.
    OverTime(Average),
    /// Share of a link's rate in bit/s at which frames left it towards the server, in percent.
    Utilisation { link: usize, rate: u64 },
    /// Round trips on both sides of the first node, of each flow.
    RoundTrips,
    /// Costs of operations of the first node, in microseconds.
    Costs(Operations),
}

/// Time over which a goodput is averaged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Average {
    /// From the start of the run; divided by the goodput of a flow if none is accelerated.
    FromStart,
    /// The last intervals, this many.
    Last(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_the_points_is_spread_over_all() {
        let all = [1, 2, 3, 4, 5, 6, 7];
        assert_eq!(Points::All.of(&all), all);
        assert_eq!(Points::Quick.of(&all), [2, 5, 7]);
        assert_eq!(Points::Quick.of(&[1]), [1]);
        assert_eq!((Points::All.runs(3), Points::Quick.runs(3)), (3, 1));
    }
}
