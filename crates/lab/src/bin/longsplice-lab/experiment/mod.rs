//! Experiments: what the accelerator gains over emulated paths, beside the values of paper 004.

mod accelerator;
mod beyond;
mod catalog;
mod congestion;
mod cost;
mod deployment;
mod figure;
mod load;
mod measure;
mod paper;
mod paths;
mod plan;
mod plot;
mod points;
mod queue;
mod raster;
mod remains;
mod returning;
mod scene;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};

use accelerator::Program;
use figure::{Figure, Point, Series, Source, median, number};
use measure::Laboratory;
use plan::{Experiment, Points};
use points::Part;
pub(crate) use remains::{NAME, remove_own, sweep};

/// Exit status of a run with points that do not count.
const DOES_NOT_COUNT: u8 = 3;

/// Most points of a series that are printed one by one.
const MOST_LINES: usize = 12;

/// Most flows of a scene whose results are indented.
const MOST_FLOWS: usize = 50;

/// Options of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Experiment to run, as `list` names it; may be given several times, or `all`
    #[arg(required = true)]
    experiments: Vec<String>,
    /// Seed of the links
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Points to measure
    #[arg(long, value_enum, default_value_t = Points::All)]
    points: Points,
    /// Folder of the results: EXPERIMENT.json, .csv, .svg and .png
    #[arg(long, value_name = "DIR", default_value = "target/figures")]
    out: PathBuf,
    /// Program longsplice for the nodes; without it, the one beside this program or in PATH
    #[arg(long, value_name = "PATH")]
    longsplice: Option<PathBuf>,
    /// Highest number of attempts at a run; they end when the emulator was in time
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
}

/// Lists the experiments.
pub(crate) fn list() -> ExitCode {
    for experiment in catalog::EXPERIMENTS {
        let cases = |points| (experiment.cases)(points).len();
        let (all, quick) = (cases(Points::All), cases(Points::Quick));
        println!(
            "{:8} {} ({all} points, quick: {quick})",
            experiment.name, experiment.title
        );
        for note in experiment.notes {
            println!("           {note}");
        }
    }
    ExitCode::SUCCESS
}

/// Runs experiments, and writes their results.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let experiments = chosen(&args.experiments)?;
    let program = Program::find(args.longsplice.as_deref())?;
    sweep()?;
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let start = Instant::now();
    let mut all_count = true;
    for experiment in experiments {
        let mut laboratory = Laboratory::new(&program, args.seed, args.attempts, start);
        let figure = figure(experiment, args, &mut laboratory)?;
        write(&figure, &args.out)?;
        show(&figure);
        all_count &= figure.counted().1 == 0;
    }
    Ok(match all_count {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(DOES_NOT_COUNT),
    })
}

/// Returns the experiments with these names.
fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>> {
    if names.iter().any(|name| name == "all") {
        return Ok(catalog::EXPERIMENTS.iter().collect());
    }
    let find = |name: &String| {
        catalog::find(name)
            .with_context(|| format!("there is no experiment {name}: `longsplice-lab list` names all"))
    };
    names.iter().map(find).collect()
}

/// Measures all cases of an experiment.
fn figure(
    experiment: &'static Experiment,
    args: &RunArgs,
    laboratory: &mut Laboratory<'_>,
) -> Result<Figure> {
    let cases = (experiment.cases)(args.points);
    let mut series: Vec<Series> = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        let what = format!("{} {}/{}: {}", experiment.name, n + 1, cases.len(), case.series);
        for Part { name, source, points } in laboratory.measure(case, &what)? {
            match series.iter_mut().find(|one| one.name == name) {
                Some(one) => one.points.extend(points),
                None => series.push(Series {
                    name,
                    source,
                    scene: (source == Source::Measured).then(|| case.scene.clone()),
                    points,
                }),
            }
        }
    }
    let reference = |reference: &plan::Reference| Series {
        name: reference.name.to_owned(),
        source: reference.source,
        scene: None,
        points: reference.points.iter().map(|(x, y)| known(*x, *y)).collect(),
    };
    series.extend(experiment.references.iter().map(reference));
    let line = |file| fs::read_to_string(file).unwrap_or_default().trim_end().to_owned();
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(Figure {
        experiment: experiment.name,
        title: experiment.title,
        notes: experiment.notes.to_vec(),
        policy: experiment.policy,
        x: experiment.x,
        y: experiment.y,
        seed: args.seed,
        points: args.points.name(),
        unix_time: since_1970.unwrap_or_default().as_secs(),
        kernel: line("/proc/sys/kernel/osrelease"),
        load_average: line("/proc/loadavg"),
        series,
    })
}

/// Returns a point that others measured.
fn known(x: f64, y: f64) -> Point {
    Point {
        x,
        y,
        counts: true,
        ..Point::default()
    }
}

/// Writes the results of an experiment: data and pictures.
fn write(figure: &Figure, folder: &Path) -> Result<()> {
    let file = |kind: &str| folder.join(format!("{}.{kind}", figure.experiment));
    let save = |kind: &str, content: &[u8]| {
        let path = file(kind);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    // Flows of a graph are many: a reader has a program for them.
    let is_large = figure
        .series
        .iter()
        .flat_map(|one| &one.scene)
        .any(|scene| scene.flows.len() > MOST_FLOWS);
    let mut json = match is_large {
        true => serde_json::to_vec(figure)?,
        false => serde_json::to_vec_pretty(figure)?,
    };
    json.push(b'\n');
    save("json", &json)?;
    save("csv", figure.csv().as_bytes())?;
    save("svg", plot::svg(figure)?.as_bytes())?;
    save("png", &plot::png(figure)?)
}

/// Prints the measured points; of a series over time only the middle and the highest value.
fn show(figure: &Figure) {
    println!("{}: {}", figure.experiment, figure.title);
    let measured = figure.series.iter().filter(|one| one.source == Source::Measured);
    for series in measured {
        let over_time = series.points.len() > MOST_LINES;
        let points = if over_time {
            &series.points[..1]
        } else {
            &series.points[..]
        };
        for point in points {
            let goodput = match (point.plain_mbit, point.accelerated_mbit) {
                (Some(plain), Some(accelerated)) => format!("{plain:.2} to {accelerated:.2} Mbit/s"),
                (None, Some(accelerated)) => format!("{accelerated:.2} Mbit/s"),
                _ => String::new(),
            };
            let value = if over_time {
                let values = || series.points.iter().map(|point| point.y);
                let (middle, most) = (median(values().collect()), values().fold(0.0, f64::max));
                format!("median {}, most {}", number(middle), number(most))
            } else {
                format!("x = {}: {}", number(point.x), number(point.y))
            };
            println!("  {}, {value} ({goodput})", series.name);
            for reason in &point.against {
                println!("    does not count: {reason}");
            }
        }
    }
    if let (all, bad @ 1..) = figure.counted() {
        println!("  {bad} of {all} points do not count");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_chosen_by_name() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(&names).map(|all| all.iter().map(|one| one.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["fig6", "fig4"]).unwrap(), ["fig6", "fig4"]);
        assert_eq!(names(&["all"]).unwrap().len(), catalog::EXPERIMENTS.len());
        let error = names(&["fig1"]).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no experiment fig1: `longsplice-lab list` names all"
        );
    }
}
