//! Figure: what an experiment has measured, beside what others have, as data.

use std::fmt::Write;

use serde::Serialize;

use super::scene::{Outcome, Scene};

/// Axis of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    /// True if equal factors are equal distances.
    pub(crate) is_logarithmic: bool,
}

impl Axis {
    /// Has equal differences at equal distances.
    pub(crate) const fn linear(label: &'static str) -> Axis {
        Axis {
            label,
            is_logarithmic: false,
        }
    }

    /// Has equal factors at equal distances.
    pub(crate) const fn logarithmic(label: &'static str) -> Axis {
        Axis {
            label,
            is_logarithmic: true,
        }
    }
}

/// Axis of the quotient of goodputs with and without acceleration.
pub(crate) const SPEED_UP: Axis = Axis::linear("speed-up");

/// Source of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// Measurement of this run.
    Measured,
    /// Text of paper 004, or what follows from it.
    Paper,
    /// Table of the design page `accelerator.md`: earlier prototypes on this kernel.
    Design,
    /// Properties of the emulated links.
    Links,
}

impl Source {
    /// Returns the name, as in the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Source::Measured => "measured",
            Source::Paper => "paper",
            Source::Design => "design",
            Source::Links => "links",
        }
    }
}

/// Point of a series.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// True if nothing speaks against it: the emulator was in time, each flow arrived and was taken over.
    pub(crate) counts: bool,
    /// Reasons against it.
    pub(crate) against: Vec<String>,
    /// Median goodput of the runs without acceleration, in Mbit/s.
    pub(crate) plain_mbit: Option<f64>,
    /// Median goodput of the accelerated runs, in Mbit/s.
    pub(crate) accelerated_mbit: Option<f64>,
    pub(crate) runs: Vec<Outcome>,
}

impl Point {
    /// Returns a point without runs. It counts unless there are reasons against it.
    pub(super) fn new(x: f64, y: f64, against: &[String]) -> Point {
        Point {
            x,
            y,
            counts: against.is_empty(),
            against: against.to_vec(),
            plain_mbit: None,
            accelerated_mbit: None,
            runs: Vec::new(),
        }
    }
}

/// Points with a name.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) source: Source,
    /// Scene of its first point; `None` if others measured it.
    pub(crate) scene: Option<Scene>,
    pub(crate) points: Vec<Point>,
}

/// Result of an experiment.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) experiment: &'static str,
    pub(crate) title: &'static str,
    /// Conditions, and where the values of others come from.
    pub(crate) notes: Vec<&'static str>,
    /// Policy of the nodes, as options of `longsplice accelerate`.
    pub(crate) policy: &'static str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) seed: u64,
    /// Share of the points that were measured: `quick` or `all`.
    pub(crate) points: &'static str,
    /// Seconds since 1970 at its end.
    pub(crate) unix_time: u64,
    pub(crate) kernel: String,
    /// Load of the machine at its end, as in /proc/loadavg.
    pub(crate) load_average: String,
    pub(crate) series: Vec<Series>,
}

impl Figure {
    /// Returns the number of measured points, and of those that do not count.
    pub(crate) fn counted(&self) -> (usize, usize) {
        let measured = self.series.iter().filter(|one| one.source == Source::Measured);
        let points: Vec<&Point> = measured.flat_map(|one| &one.points).collect();
        let bad = points.iter().filter(|point| !point.counts).count();
        (points.len(), bad)
    }

    /// Returns one line for each point, below a line with the names of the columns (RFC 4180).
    pub(crate) fn csv(&self) -> String {
        let mut csv = "experiment,series,source,x,y,counts,plain_mbit,accelerated_mbit,against\n".to_owned();
        for series in &self.series {
            for point in &series.points {
                let mbit = |value: Option<f64>| value.map(number).unwrap_or_default();
                let fields = [
                    self.experiment.to_owned(),
                    series.name.clone(),
                    series.source.name().to_owned(),
                    number(point.x),
                    number(point.y),
                    point.counts.to_string(),
                    mbit(point.plain_mbit),
                    mbit(point.accelerated_mbit),
                    point.against.join("; "),
                ];
                let _ = writeln!(csv, "{}", fields.map(|one| field(&one)).join(","));
            }
        }
        csv
    }
}

/// Returns a number with at most four digits behind the point.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns a field, in quotes where it needs them.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Returns the median; 0 of no values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

/// Returns a figure with one measured point that counts, one that does not, and one of the paper, for tests.
#[cfg(test)]
pub(super) fn example() -> Figure {
    let point = |x, y, against: &[&str]| Point {
        x,
        y,
        counts: against.is_empty(),
        against: against.iter().map(|reason| (*reason).to_owned()).collect(),
        plain_mbit: Some(5.0),
        accelerated_mbit: Some(5.0 * y),
        runs: Vec::new(),
    };
    let series = |name: &str, source, points| Series {
        name: name.to_owned(),
        source,
        scene: None,
        points,
    };
    Figure {
        experiment: "example",
        title: "Example",
        notes: Vec::new(),
        policy: "",
        x: Axis::linear("nodes"),
        y: Axis::linear("speed-up"),
        seed: 1,
        points: "all",
        unix_time: 0,
        kernel: "6.1".to_owned(),
        load_average: String::new(),
        series: vec![
            series(
                "reno",
                Source::Measured,
                vec![point(1.0, 2.0, &[]), point(3.0, 3.5, &["late, \"very\" late"])],
            ),
            series(
                "paper",
                Source::Paper,
                vec![Point {
                    plain_mbit: None,
                    accelerated_mbit: None,
                    ..point(1.0, 2.0, &[])
                }],
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_point() {
        assert_eq!(
            example().csv(),
            "experiment,series,source,x,y,counts,plain_mbit,accelerated_mbit,against\n\
             example,reno,measured,1,2,true,5,10,\n\
             example,reno,measured,3,3.5,false,5,17.5,\"late, \"\"very\"\" late\"\n\
             example,paper,paper,1,2,true,,,\n"
        );
        assert_eq!(example().counted(), (2, 1));
    }

    #[test]
    fn the_results_say_where_values_come_from() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json["series"][0]["source"], "measured");
        assert_eq!(json["series"][1]["source"], "paper");
        assert_eq!(json["series"][0]["points"][1]["counts"], false);
        assert_eq!(json["y"]["label"], "speed-up");
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (2.0, "2"),
            (0.125, "0.125"),
            (1.0 / 3.0, "0.3333"),
            (100.0, "100"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        for (values, expected) in [(vec![], 0.0), (vec![3.0, 1.0, 2.0], 2.0), (vec![1.0, 4.0], 2.5)] {
            assert!((median(values) - expected).abs() < 1e-9);
        }
    }
}
