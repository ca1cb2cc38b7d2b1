//! Measures the cases of an experiment: runs scenes, and repeats runs that do not count.

use std::time::Instant;

use anyhow::Result;

use super::accelerator::Program;
use super::figure::Source;
use super::plan::{Average, Case, Measure};
use super::points::{
    Part, cost_points, parts_over_time, queue_points, round_trip_parts, share_point, speed_up_point,
    utilisation_point,
};
use super::scene::{Outcome, Scene};

/// Difference between the seeds of two runs of a case.
const NEXT_SEED: u64 = 1000;

/// Measures cases, and remembers the runs that several of them need.
#[derive(Debug)]
pub(crate) struct Laboratory<'a> {
    program: &'a Program,
    seed: u64,
    attempts: u32,
    start: Instant,
    /// Runs without acceleration, with which several cases are compared.
    plain: Vec<(Scene, Vec<Outcome>)>,
}

impl Laboratory<'_> {
    /// Makes a laboratory whose progress counts from `start` on.
    pub(crate) fn new(program: &Program, seed: u64, attempts: u32, start: Instant) -> Laboratory<'_> {
        Laboratory {
            program,
            seed,
            attempts,
            start,
            plain: Vec::new(),
        }
    }

    /// Measures a case; `what` names it in the progress.
    pub(crate) fn measure(&mut self, case: &Case, what: &str) -> Result<Vec<Part>> {
        let points = match case.measure {
            Measure::SpeedUp => {
                let plain = self.plain(&case.scene, case.runs, what)?;
                let accelerated = self.runs(&case.scene, case.runs, &format!("{what}, accelerated"))?;
                vec![speed_up_point(case, &case.scene.plain(), plain, accelerated)]
            }
            Measure::QueuedSeconds { rate } => {
                let outcome = self.run(&case.scene, self.seed, what)?;
                queue_points(case, outcome, rate)
            }
            Measure::Share => {
                let runs = self.runs(&case.scene, case.runs, what)?;
                vec![share_point(case, runs)]
            }
            Measure::OverTime(average) => {
                let plain = match average {
                    Average::FromStart => Some(self.plain(&case.scene, 1, what)?),
                    Average::Last(_) => None,
                };
                let outcome = match plain.as_deref() {
                    Some([first, ..]) if case.scene == case.scene.plain() => first.clone(),
                    _ => self.run(&case.scene, self.seed, what)?,
                };
                return Ok(parts_over_time(case, average, plain.as_deref(), outcome));
            }
            Measure::Utilisation { link, rate } => {
                let outcome = self.run(&case.scene, self.seed, what)?;
                vec![utilisation_point(case, outcome, link, rate)]
            }
            Measure::Costs(operations) => {
                let outcome = self.run(&case.scene, self.seed, what)?;
                cost_points(case, outcome, operations)
            }
            Measure::RoundTrips => {
                let outcome = self.run(&case.scene, self.seed, what)?;
                return Ok(round_trip_parts(case, outcome));
            }
        };
        Ok(vec![Part {
            name: case.series.clone(),
            source: Source::Measured,
            points,
        }])
    }

    /// Returns runs of the same scene without acceleration, which several cases need.
    fn plain(&mut self, scene: &Scene, count: usize, what: &str) -> Result<Vec<Outcome>> {
        let scene = scene.plain();
        let known = self
            .plain
            .iter()
            .find(|(of, runs)| *of == scene && runs.len() >= count);
        if let Some((_, runs)) = known {
            return Ok(runs.clone());
        }
        let runs = self.runs(&scene, count, &format!("{what}, plain"))?;
        self.plain.push((scene, runs.clone()));
        Ok(runs)
    }

    fn runs(&self, scene: &Scene, count: usize, what: &str) -> Result<Vec<Outcome>> {
        (0..count as u64)
            .map(|n| self.run(scene, self.seed + n * NEXT_SEED, what))
            .collect()
    }

    /// Runs a scene until the emulator was in time; the last attempt stands, whatever it is.
    fn run(&self, scene: &Scene, seed: u64, what: &str) -> Result<Outcome> {
        let mut attempt = 1;
        loop {
            let outcome = scene.run(self.program, seed)?;
            let minutes = self.start.elapsed().as_secs_f64() / 60.0;
            let goodput = outcome.goodput();
            eprintln!("[{minutes:.1} min] {what}, seed {seed}: {goodput:.2} Mbit/s");
            if outcome.verdict.counts() || attempt >= self.attempts {
                return Ok(outcome);
            }
            eprintln!("  attempt {attempt} of {}: {}", self.attempts, outcome.verdict);
            attempt += 1;
        }
    }
}
