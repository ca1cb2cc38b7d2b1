//! Measures the cases of an experiment: runs scenes, repeats runs that do not count, and computes points.

use anyhow::Result;

use super::accelerator::Program;
use super::figure::{Point, median};
use super::load::FlowOutcome;
use super::plan::{Case, Measure};
use super::scene::{Outcome, Scene};

/// Difference between the seeds of two runs of a case.
const NEXT_SEED: u64 = 1000;

/// Measures cases, and remembers the runs that several of them need.
#[derive(Debug)]
pub(crate) struct Laboratory<'a> {
    program: &'a Program,
    seed: u64,
    attempts: u32,
    /// Runs without acceleration, with which several cases are compared.
    plain: Vec<(Scene, Vec<Outcome>)>,
}

impl Laboratory<'_> {
    pub(crate) fn new(program: &Program, seed: u64, attempts: u32) -> Laboratory<'_> {
        Laboratory {
            program,
            seed,
            attempts,
            plain: Vec::new(),
        }
    }

    /// Measures a case; `what` names it in the progress.
    pub(crate) fn measure(&mut self, case: &Case, what: &str) -> Result<Vec<Point>> {
        match case.measure {
            Measure::SpeedUp => self.speed_up(case, what).map(|point| vec![point]),
            Measure::QueuedSeconds { rate } => {
                let outcome = self.run(&case.scene, self.seed, what)?;
                Ok(queue_points(case, outcome, rate))
            }
            Measure::Share => {
                let runs = self.runs(&case.scene, case.runs, what)?;
                Ok(vec![share_point(case, runs)])
            }
        }
    }

    fn speed_up(&mut self, case: &Case, what: &str) -> Result<Point> {
        let scene = case.scene.plain();
        let known = self
            .plain
            .iter()
            .find(|(of, runs)| *of == scene && runs.len() >= case.runs);
        let plain = match known {
            Some((_, runs)) => runs.clone(),
            None => {
                let runs = self.runs(&scene, case.runs, &format!("{what}, plain"))?;
                self.plain.push((scene.clone(), runs.clone()));
                runs
            }
        };
        let accelerated = self.runs(&case.scene, case.runs, &format!("{what}, accelerated"))?;
        Ok(speed_up_point(case, &scene, plain, accelerated))
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
            eprintln!("{what}, seed {seed}: {:.2} Mbit/s", outcome.goodput());
            if outcome.verdict.counts() || attempt >= self.attempts {
                return Ok(outcome);
            }
            eprintln!("  attempt {attempt} of {}: {}", self.attempts, outcome.verdict);
            attempt += 1;
        }
    }
}

/// Returns the quotient of two medians, with what speaks against any of the runs.
fn speed_up_point(case: &Case, plain_scene: &Scene, plain: Vec<Outcome>, accelerated: Vec<Outcome>) -> Point {
    let goodput = |runs: &[Outcome]| median(runs.iter().map(Outcome::goodput).collect());
    let (before, after) = (goodput(&plain), goodput(&accelerated));
    let mut against: Vec<String> = plain
        .iter()
        .flat_map(|run| run.against(plain_scene))
        .map(|reason| format!("plain: {reason}"))
        .collect();
    against.extend(accelerated.iter().flat_map(|run| run.against(&case.scene)));
    Point {
        x: case.x,
        y: quotient(after, before),
        counts: against.is_empty(),
        against,
        plain_mbit: Some(before),
        accelerated_mbit: Some(after),
        runs: plain.into_iter().chain(accelerated).collect(),
    }
}

/// Returns a point for each sample of the queue; the first one has the run.
fn queue_points(case: &Case, outcome: Outcome, rate: f64) -> Vec<Point> {
    let against = outcome.against(&case.scene);
    let goodput = outcome.goodput();
    let mut points: Vec<Point> = outcome
        .queue
        .iter()
        .map(|sample| Point {
            x: sample.seconds,
            y: sample.bytes as f64 * 8e-6 / rate,
            counts: against.is_empty(),
            against: against.clone(),
            plain_mbit: None,
            accelerated_mbit: Some(goodput),
            runs: Vec::new(),
        })
        .collect();
    if let Some(first) = points.first_mut() {
        first.runs.push(outcome);
    }
    points
}

/// Returns the quotient of the mean goodputs of accelerated and plain flows, as the median of runs.
fn share_point(case: &Case, runs: Vec<Outcome>) -> Point {
    let mean = |run: &Outcome, is_accelerated| {
        let flows = run
            .flows
            .iter()
            .filter(|flow| flow.is_accelerated == is_accelerated);
        let goodputs: Vec<f64> = flows.map(FlowOutcome::goodput).collect();
        goodputs.iter().sum::<f64>() / goodputs.len() as f64
    };
    let middle = |is_accelerated| median(runs.iter().map(|run| mean(run, is_accelerated)).collect());
    let quotients = runs.iter().map(|run| quotient(mean(run, true), mean(run, false)));
    let against: Vec<String> = runs.iter().flat_map(|run| run.against(&case.scene)).collect();
    Point {
        x: case.x,
        y: median(quotients.collect()),
        counts: against.is_empty(),
        against,
        plain_mbit: Some(middle(false)),
        accelerated_mbit: Some(middle(true)),
        runs,
    }
}

/// Divides; 0 where there is nothing to divide by, so that a figure has no infinite values.
fn quotient(of: f64, by: f64) -> f64 {
    if by > 0.0 { of / by } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use longsplice_lab::Verdict;

    use super::super::plan::Points;
    use super::super::queue::QueueSample;
    use super::super::{catalog, plan};
    use super::*;

    fn case_of(name: &str) -> plan::Case {
        let cases = (catalog::find(name).unwrap().cases)(Points::All);
        cases.into_iter().next().unwrap()
    }

    /// Returns an outcome with these goodputs in Mbit/s, the first flow accelerated.
    fn outcome(goodputs: &[f64], nodes: usize) -> Outcome {
        let flow = |(n, goodput): (usize, &f64)| FlowOutcome {
            port: 7000,
            is_accelerated: n == 0,
            bytes: (goodput * 1e6) as u64,
            seconds: 8.0,
            failure: None,
        };
        Outcome {
            seed: 1,
            flows: goodputs.iter().enumerate().map(flow).collect(),
            queue: vec![QueueSample {
                seconds: 0.5,
                bytes: 250_000,
            }],
            accelerators: vec![serde_json::json!({ "taken_over_total": 1 }); nodes],
            links: Vec::new(),
            verdict: Verdict::default(),
        }
    }

    #[test]
    fn a_speed_up_is_of_medians() {
        let case = case_of("fig4");
        let (plain, fast) = ([5.0, 4.0, 9.0], [10.0, 12.0, 1.0]);
        let runs = |all: [f64; 3], nodes| all.iter().map(|one| outcome(&[*one], nodes)).collect();
        let point = speed_up_point(&case, &case.scene.plain(), runs(plain, 0), runs(fast, 1));
        assert!((point.y - 2.0).abs() < 1e-9 && point.counts, "{point:?}");
        assert_eq!(point.runs.len(), 6);
    }

    #[test]
    fn a_run_without_acceleration_does_not_count_as_one_with_it() {
        let case = case_of("fig4");
        let mut passed = outcome(&[10.0], 1);
        passed.accelerators[0]["taken_over_total"] = 0.into();
        let point = speed_up_point(&case, &case.scene.plain(), vec![outcome(&[5.0], 0)], vec![passed]);
        assert!(!point.counts);
        assert!(
            point.against[0].starts_with("node1 took 0 of 1 connections over"),
            "{point:?}"
        );
    }

    #[test]
    fn a_queue_is_a_time_at_the_slow_rate() {
        let points = queue_points(&case_of("queue"), outcome(&[20.0], 1), 20.0);
        assert_eq!(points.len(), 1);
        assert!((points[0].y - 0.1).abs() < 1e-9, "{points:?}");
    }

    #[test]
    fn a_share_is_of_means() {
        let point = share_point(
            &case_of("share"),
            vec![
                outcome(&[6.0, 2.0, 4.0], 2),
                outcome(&[9.0, 1.0], 2),
                outcome(&[1.0, 1.0], 2),
            ],
        );
        assert!((point.y - 2.0).abs() < 1e-9, "{point:?}");
        assert!(quotient(1.0, 0.0).abs() < 1e-9);
    }
}
