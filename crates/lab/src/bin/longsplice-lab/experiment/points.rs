//! Computes the points of a figure from the runs of a case.

use super::cost::Operations;
use super::figure::{Point, Source, median};
use super::load::{FlowOutcome, FlowSpec};
use super::plan::{Average, Case};
use super::scene::{Outcome, Scene};

/// Part of a figure that a case adds to: a series, and points of it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) source: Source,
    pub(crate) points: Vec<Point>,
}

/// Returns the quotient of two medians, with what speaks against any of the runs.
pub(super) fn speed_up_point(
    case: &Case,
    plain_scene: &Scene,
    plain: Vec<Outcome>,
    accelerated: Vec<Outcome>,
) -> Point {
    let goodput = |runs: &[Outcome]| median(runs.iter().map(Outcome::goodput).collect());
    let (before, after) = (goodput(&plain), goodput(&accelerated));
    let mut against: Vec<String> = plain
        .iter()
        .flat_map(|run| run.against(plain_scene))
        .map(|reason| format!("plain: {reason}"))
        .collect();
    against.extend(accelerated.iter().flat_map(|run| run.against(&case.scene)));
    Point {
        plain_mbit: Some(before),
        accelerated_mbit: Some(after),
        runs: plain.into_iter().chain(accelerated).collect(),
        ..Point::new(case.x, quotient(after, before), &against)
    }
}

/// Returns a point for each sample of the queue; the first one has the run.
pub(super) fn queue_points(case: &Case, outcome: Outcome, rate: f64) -> Vec<Point> {
    let against = outcome.against(&case.scene);
    let goodput = outcome.goodput();
    let points = outcome
        .queue
        .iter()
        .map(|sample| Point {
            accelerated_mbit: Some(goodput),
            ..Point::new(sample.seconds, sample.bytes as f64 * 8e-6 / rate, &against)
        })
        .collect();
    with_run(points, outcome)
}

/// Returns the quotient of the mean goodputs of accelerated and plain flows, as the median of runs.
pub(super) fn share_point(case: &Case, runs: Vec<Outcome>) -> Point {
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
    let y = median(quotients.collect());
    let against: Vec<String> = runs.iter().flat_map(|run| run.against(&case.scene)).collect();
    Point {
        plain_mbit: Some(middle(false)),
        accelerated_mbit: Some(middle(true)),
        runs,
        ..Point::new(case.x, y, &against)
    }
}

/// Returns a series for the flows of each kind: those that begin late, accelerated ones, and the others. The first point of
/// the first one has the run.
pub(super) fn parts_over_time(
    case: &Case,
    average: Average,
    plain: Option<&[Outcome]>,
    outcome: Outcome,
) -> Vec<Part> {
    let seconds = case.scene.samples_every.map_or(1.0, |every| every.as_secs_f64());
    let fair = plain.map_or(1.0, |runs| {
        let flows: Vec<f64> = runs
            .iter()
            .flat_map(|run| &run.flows)
            .map(FlowOutcome::goodput)
            .collect();
        flows.iter().sum::<f64>() / flows.len() as f64
    });
    let mut against = outcome.against(&case.scene);
    against.extend(
        plain
            .into_iter()
            .flatten()
            .flat_map(|run| run.against(&case.scene.plain())),
    );
    let mut parts = Vec::new();
    for kind in ["the late one", "accelerated", "plain"] {
        let flows: Vec<&FlowOutcome> = (case.scene.flows.iter().zip(&outcome.flows))
            .filter(|(spec, _)| kind_of(spec) == kind)
            .map(|(_, flow)| flow)
            .collect();
        if flows.is_empty() {
            continue;
        }
        let mean = |interval: usize| {
            let bytes: u64 = flows.iter().filter_map(|flow| flow.samples.get(interval)).sum();
            bytes as f64 * 8e-6 / seconds / flows.len() as f64
        };
        let intervals = (case.scene.load.time().as_secs_f64() / seconds).round() as usize;
        let point = |end: usize| {
            let start = match average {
                Average::FromStart => 0,
                Average::Last(count) => end.saturating_sub(count),
            };
            let sum: f64 = (start..end).map(mean).sum();
            let y = quotient(sum / (end - start) as f64, fair);
            Point::new(end as f64 * seconds, y, &against)
        };
        parts.push(Part {
            name: format!("{}: {kind}", case.series),
            source: Source::Measured,
            points: (1..=intervals).map(point).collect(),
        });
    }
    if let Some(first) = parts.first_mut().and_then(|part| part.points.first_mut()) {
        first.accelerated_mbit = Some(outcome.goodput());
        first.runs.push(outcome);
    }
    parts
}

/// Returns the kind of a flow, as series name it.
fn kind_of(flow: &FlowSpec) -> &'static str {
    match (flow.after.is_zero(), flow.is_accelerated) {
        (false, _) => "the late one",
        (true, true) => "accelerated",
        (true, false) => "plain",
    }
}

/// Returns the share of a link's rate that was used towards the server, in percent.
pub(super) fn utilisation_point(case: &Case, outcome: Outcome, link: usize, rate: u64) -> Point {
    let bytes = outcome
        .links
        .get(link)
        .map_or(0, |link| link.to_server.forwarded_bytes);
    let against = outcome.against(&case.scene);
    let most = rate as f64 * case.scene.load.time().as_secs_f64();
    Point {
        accelerated_mbit: Some(outcome.goodput()),
        runs: vec![outcome],
        ..Point::new(case.x, quotient(bytes as f64 * 800.0, most), &against)
    }
}

/// Returns a point for each operation; the first one has the run.
pub(super) fn cost_points(case: &Case, outcome: Outcome, operations: Operations) -> Vec<Point> {
    let against = outcome.against(&case.scene);
    let bytes = outcome.flows.iter().map(|flow| flow.bytes).sum();
    let costs = operations.costs(&outcome.cost.unwrap_or_default(), outcome.flows.len(), bytes);
    let points = costs.into_iter().map(|(x, y)| Point::new(x, y, &against));
    with_run(points.collect(), outcome)
}

/// Returns a point for each flow that the node has listed with both round trips, in milliseconds, and one for each flow with
/// those of its links.
pub(super) fn round_trip_parts(case: &Case, outcome: Outcome) -> Vec<Part> {
    let mut against = outcome.against(&case.scene);
    let known = |flow: &serde_json::Value| {
        let side = |name: &str| Some(flow[name].as_f64()? / 1e3);
        Some((side("client_round_trip_us")?, side("server_round_trip_us")?))
    };
    let places: Vec<(f64, f64)> = outcome.listed.iter().filter_map(known).collect();
    if places.len() < case.scene.flows.len() {
        let (known, all) = (places.len(), case.scene.flows.len());
        against.push(format!(
            "the node knows both round trips of {known} of {all} flows"
        ));
    }
    let point = |(x, y): (f64, f64)| Point::new(x, y, &against);
    let mut points: Vec<Point> = places.into_iter().map(point).collect();
    if points.is_empty() {
        points.push(point((0.0, 0.0)));
    }
    let graph = &case.scene.graph;
    let round_trip = |host: usize| {
        let link = graph
            .links
            .iter()
            .find(|link| link.between.contains(&graph.hosts[host]));
        link.map_or(0.0, |link| 2e3 * link.link.to_server.delay.as_secs_f64())
    };
    let of_link = |flow: &FlowSpec| Point::new(round_trip(flow.hosts[0]), round_trip(flow.hosts[1]), &[]);
    let of_links = case.scene.flows.iter().map(of_link).collect();
    vec![
        Part {
            name: case.series.clone(),
            source: Source::Measured,
            points: with_run(points, outcome),
        },
        Part {
            name: "of the links".to_owned(),
            source: Source::Links,
            points: of_links,
        },
    ]
}

/// Gives the first point the run.
fn with_run(mut points: Vec<Point>, outcome: Outcome) -> Vec<Point> {
    if let Some(first) = points.first_mut() {
        first.runs.push(outcome);
    }
    points
}

/// Divides two numbers. A divisor of 0 makes 0, so that a figure has no infinite values.
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
            ..FlowOutcome::default()
        };
        Outcome {
            seed: 1,
            flows: goodputs.iter().enumerate().map(flow).collect(),
            queue: vec![QueueSample {
                seconds: 0.5,
                bytes: 250_000,
            }],
            accelerators: vec![serde_json::json!({ "taken_over_total": 1 }); nodes],
            listed: Vec::new(),
            refused: Vec::new(),
            cost: None,
            links: Vec::new(),
            lateness_p99_ms: 0.0,
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
            point.against[0].starts_with("the nodes took connections over 0 times of 1"),
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
    fn goodput_over_time_is_of_each_kind_of_flow() {
        let mut case = case_of("fig11");
        case.scene.flows.truncate(2);
        case.scene.flows[0].is_accelerated = true;
        case.scene.load = super::super::load::Load::Time(std::time::Duration::from_secs(2));
        let mut run = outcome(&[2.0, 1.0], 2);
        run.flows[0].samples = vec![250_000, 250_000];
        run.flows[1].samples = vec![0, 250_000];
        let plain = outcome(&[2.0, 2.0], 0);
        let parts = parts_over_time(&case, Average::FromStart, Some(&[plain]), run.clone());
        let values = |part: &Part| part.points.iter().map(|point| point.y).collect::<Vec<_>>();
        assert_eq!(
            (values(&parts[0]), values(&parts[1])),
            (vec![1.0, 1.0], vec![0.0, 0.5])
        );
        assert!(parts[0].name.ends_with(": accelerated") && parts[1].name.ends_with(": plain"));
        let parts = parts_over_time(&case, Average::Last(1), None, run);
        assert_eq!(values(&parts[1]), [0.0, 2.0]);
        assert_eq!(
            (parts[0].points[0].runs.len(), parts[1].points[0].runs.len()),
            (1, 0)
        );
    }

    #[test]
    fn round_trips_that_are_not_known_speak_against_the_figure() {
        let case = case_of("fig14");
        let mut run = outcome(&[1.0], 1);
        run.listed = vec![
            serde_json::json!({ "client_round_trip_us": 2_500, "server_round_trip_us": 40_000 }),
            serde_json::json!({ "client_round_trip_us": null }),
        ];
        let parts = round_trip_parts(&case, run);
        let known = &parts[0].points;
        assert_eq!((known.len(), known[0].x, known[0].y), (1, 2.5, 40.0));
        assert!(
            known[0]
                .against
                .iter()
                .any(|reason| reason.contains("of 1 of 36 flows"))
        );
        assert_eq!(parts[1].points.len(), 36);
        assert_eq!((parts[1].points[7].x, parts[1].points[7].y), (8.0, 30.0));
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
