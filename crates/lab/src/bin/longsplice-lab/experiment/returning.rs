//! Throughput after a return over a long fat path (papers 000 to 002, section V-B-4): a released connection that is taken
//! over again has new sockets, which begin in slow start.

use std::time::Duration;

use longsplice_lab::Queue;

use super::figure::Axis;
use super::load::Load;
use super::paper::FORCED;
use super::paths::{accelerated, case, link, rated};
use super::plan::{Average, Case, Experiment, Measure, Points, Reference};
use super::scene::{Action, Scene, Step};

/// Rate of the path, in bit/s.
const RATE: u64 = 100_000_000;

/// Seconds of the run, and those at which the connection is released and taken over again.
const SECONDS: u64 = 20;
const RELEASED: u64 = 8;
const RETURNED: u64 = 14;

pub(super) const RETURN: Experiment = Experiment {
    name: "return",
    title: "Throughput after a return over a long fat path",
    notes: &[
        "20 + 100 ms of round trip, 100 Mbit/s, a queue of one round trip before the long link, cubic, no limit of windows; goodput of \
         each fifth of a second",
        "released by `longsplice splice` after 8 s, taken over again by `longsplice unsplice` after 14 s",
        "initcwnd 500: the routes of the node let its sockets begin with 500 segments in flight",
        "papers 000 to 002: the return triggers slow start, whose impact would be quite significant for a high round trip and a \
         high bandwidth (section V-B-4), without a figure",
    ],
    policy: FORCED,
    x: Axis::linear("time, s"),
    y: Axis::linear("Mbit/s"),
    references: &[Reference::links(
        "rate of the link",
        &[(0.0, 100.0), (20.0, 100.0)],
    )],
    // A run is a whole series.
    cases: |points| {
        let mut fat = rated(100, RATE, 0.0);
        for direction in [&mut fat.to_server, &mut fat.to_client] {
            direction.queue = Queue::Time(Duration::from_millis(100));
        }
        let step = |seconds, action| Step {
            at: Duration::from_secs(seconds),
            action,
        };
        let turn = [step(RELEASED, Action::Splice), step(RETURNED, Action::Unsplice)];
        let kinds = [
            ("released and back", turn.to_vec(), None),
            ("released and back, initcwnd 500", turn.to_vec(), Some(500)),
            ("taken over all the time", Vec::new(), None),
        ];
        let case = |(series, steps, initial_window)| Case {
            scene: Scene {
                congestion: "cubic",
                initial_window,
                load: Load::Time(Duration::from_secs(SECONDS)),
                samples_every: Some(Duration::from_millis(200)),
                steps,
                ..accelerated(vec![link(20), fat.clone()], &[FORCED])
            },
            measure: Measure::OverTime(Average::Last(1)),
            ..case(series, 0.0)
        };
        let count = if points == Points::Quick { 1 } else { kinds.len() };
        kinds.into_iter().take(count).map(case).collect()
    },
};
