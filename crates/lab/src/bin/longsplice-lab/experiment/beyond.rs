//! Experiments beyond paper 004: what earlier prototypes on this kernel had measured.

use std::time::Duration;

use super::figure::{Axis, SPEED_UP};
use super::load::Load;
use super::paths::{accelerated, case, link, lossy, rated};
use super::plan::{Case, Experiment, Measure, Points, Reference};
use super::scene::Scene;

pub(super) const WAN: Experiment = Experiment {
    name: "wan",
    title: "Lossy WAN between two edges, BBR on the WAN",
    notes: &[
        "4 + 92 + 4 ms of round trip, 100 Mbit/s, cubic hosts, a node at each edge with BBR on the WAN; 8 s; medians of \
         three seeds",
        "the paper has no such experiment; 6.9, 76 and 140 were measured by a prototype (design page)",
    ],
    policy: "",
    x: Axis::logarithmic("loss of the WAN, %"),
    y: Axis::logarithmic(SPEED_UP.label),
    references: &[Reference::design(
        "prototype",
        &[(0.1, 6.9), (1.0, 76.0), (5.0, 140.0)],
    )],
    cases: |points| {
        let kinds = [
            (
                "BBR on the WAN",
                ["--outside-congestion bbr", "--inside-congestion bbr"],
            ),
            ("cubic everywhere", ["", ""]),
        ];
        let losses = points.of(&[0.1, 1.0, 5.0]);
        let case = |(series, options): (&str, [&str; 2]), loss: f64| Case {
            scene: Scene {
                congestion: "cubic",
                load: points.load(8, 8),
                ..accelerated(vec![link(4), lossy(92, loss / 100.0), link(4)], &options)
            },
            runs: points.runs(3),
            ..case(series, loss)
        };
        let of = |kind| losses.iter().map(move |loss| case(kind, *loss));
        kinds.into_iter().flat_map(of).collect()
    },
};

pub(super) const QUEUE: Experiment = Experiment {
    name: "queue",
    title: "Queue inside the node, 100 into 20 Mbit/s",
    notes: &[
        "10 + 10 ms of round trip, 100 and 20 Mbit/s, cubic, no limit of windows; sampled every 100 ms: bytes that the node \
         has received and not yet sent",
        "the paper has no such experiment; 0.77 s with autotuned buffers and 0.075 s with a bounded one were measured by a \
         prototype (design page)",
    ],
    policy: "",
    x: Axis::linear("time, s"),
    y: Axis::linear("queue, s at 20 Mbit/s"),
    references: &[
        Reference::design("prototype, autotuned", &[(0.0, 0.77), (10.0, 0.77)]),
        Reference::design("prototype, bounded", &[(0.0, 0.075), (10.0, 0.075)]),
    ],
    // A run is a whole series.
    cases: |points| {
        let kinds = [
            ("queue of 75 ms, the default", ""),
            ("queue of 10 s", "--queue 10s"),
        ];
        let slow = rated(10, 20_000_000, 0.0);
        let case = |(series, options): (&str, &str)| Case {
            scene: Scene {
                congestion: "cubic",
                samples_queue: true,
                load: Load::Time(Duration::from_secs(10)),
                ..accelerated(vec![link(10), slow.clone()], &[options])
            },
            measure: Measure::QueuedSeconds { rate: 20.0 },
            ..case(series, 0.0)
        };
        let count = if points == Points::Quick { 1 } else { kinds.len() };
        kinds.into_iter().take(count).map(case).collect()
    },
};
