//! The experiments of paper 004 with ten flows on one bottleneck (section 4.2).

use std::time::Duration;

use longsplice_lab::{LinkSpec, Queue, Red};

use super::figure::Axis;
use super::load::{FlowSpec, Load};
use super::paper::KEPT;
use super::paths::{FIRST_PORT, accelerated, case, flow, link, rated};
use super::plan::{Average, Case, Experiment, Measure, Points, Reference};
use super::scene::Scene;

/// Flows on the bottleneck.
const FLOWS: u16 = 10;

/// Rate of the bottleneck, in bit/s.
const RATE: u64 = 20_000_000;

/// Place of the bottleneck among the links.
const BOTTLENECK: usize = 1;

const TIME: Axis = Axis::linear("time, s");

/// Returns the bottleneck of the paper: RED with the usual limits of ns-2, a queue of 50 packets.
fn red() -> LinkSpec {
    let mut link = rated(80, RATE, 0.0);
    for direction in [&mut link.to_server, &mut link.to_client] {
        direction.queue = Queue::Packets(50);
        direction.red = Some(Red::default());
    }
    link
}

/// Returns ten flows over this bottleneck, the first ones accelerated.
fn ten(bottleneck: LinkSpec, accelerated_flows: u16, load: Load) -> Scene {
    let options = match accelerated_flows {
        0 => Vec::new(),
        count => vec![format!("{KEPT} --port {FIRST_PORT}-{}", FIRST_PORT + count - 1); 2],
    };
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Scene {
        load,
        flows: (0..FLOWS).map(|n| flow(n, n < accelerated_flows)).collect(),
        ..accelerated(vec![link(60), bottleneck, link(60)], &options)
    }
}

/// Returns the numbers of accelerated flows in the paper's experiments.
fn mixes(points: Points) -> Vec<u16> {
    points.of(&[0, 1, 9])
}

pub(super) const FIG11: Experiment = Experiment {
    name: "fig11",
    title: "Throughput under congestion, 0, 1 and 9 of 10 flows accelerated (figure 11)",
    notes: &[
        "60 + 80 + 60 ms of round trip, nodes at both ends of 20 Mbit/s with RED in the middle (50 packets, 5:15), reno; 30 s (quick: 15 s)",
        "goodput from the start on, mean of the flows of a kind, divided by that of ten plain flows over the whole time",
        "paper: an accelerated flow among nine gains 1.6 over them; nine gain 1.1, and the plain one beside them 0.7 of the \
         original bandwidth, by its text; its runs last 600 s",
    ],
    policy: KEPT,
    x: TIME,
    y: Axis::linear("goodput of a flow / of one of ten plain flows"),
    references: &[
        Reference::paper("paper 004: one of ten", &[(0.0, 1.6), (30.0, 1.6)]),
        Reference::paper("paper 004: nine of ten", &[(0.0, 1.1), (30.0, 1.1)]),
        Reference::paper("paper 004: plain beside nine", &[(0.0, 0.7), (30.0, 0.7)]),
    ],
    cases: |points| {
        let case = |count: u16| Case {
            scene: Scene {
                samples_every: Some(Duration::from_secs(1)),
                ..ten(red(), count, points.load(30, 15))
            },
            measure: Measure::OverTime(Average::FromStart),
            ..case(&format!("{count} of 10 accelerated"), 0.0)
        };
        mixes(points).into_iter().map(case).collect()
    },
};

pub(super) const FIG12: Experiment = Experiment {
    name: "fig12",
    title: "A late flow beside nine (figure 12)",
    notes: &[
        "as fig11, 40 s (quick: 20 s); the last flow begins after 15 s (quick: 8 s); goodput of the last two seconds",
        "paper: a late accelerated flow reaches its share much more quickly than a plain one, a late plain one beside nine \
         accelerated ones needs more time, by its text",
    ],
    policy: KEPT,
    x: TIME,
    y: Axis::linear("Mbit/s of a flow"),
    references: &[Reference::paper("fair share", &[(0.0, 2.0), (40.0, 2.0)])],
    cases: |points| {
        let late = FLOWS - 1;
        let begin = match points {
            Points::All => 15,
            Points::Quick => 8,
        };
        let kinds = [
            ("all plain", 0..0),
            ("accelerated beside plain", late..FLOWS),
            ("plain beside accelerated", 0..late),
        ];
        let case = |(series, accelerated): (&str, std::ops::Range<u16>)| {
            let of = |n: u16| FlowSpec {
                after: Duration::from_secs(if n == late { begin } else { 0 }),
                ..flow(n, accelerated.contains(&n))
            };
            let ports = format!(
                "{KEPT} --port {}-{}",
                FIRST_PORT + accelerated.start,
                (FIRST_PORT + accelerated.end).saturating_sub(1)
            );
            let words: Vec<String> = ports.split_whitespace().map(str::to_owned).collect();
            Case {
                scene: Scene {
                    flows: (0..FLOWS).map(of).collect(),
                    samples_every: Some(Duration::from_secs(1)),
                    accelerators: if accelerated.is_empty() {
                        Vec::new()
                    } else {
                        vec![words; 2]
                    },
                    ..ten(red(), 0, points.load(40, 20))
                },
                measure: Measure::OverTime(Average::Last(2)),
                ..case(series, 0.0)
            }
        };
        points.of(&kinds).into_iter().map(case).collect()
    },
};

pub(super) const UTILISATION: Experiment = Experiment {
    name: "utilisation",
    title: "Utilisation of the bottleneck (section 4.2.4)",
    notes: &[
        "as fig11, 12 s; share of the rate at which frames left the bottleneck towards the servers",
        "drop-tail: a queue of 256 KiB in place of RED",
        "paper: 76.4 % with ten plain flows, 85.6 % with one accelerated one, no more with further ones, by its text; \
         design: 76 to 86 % plain, 92 to 98 % with one accelerated one (reno, drop-tail)",
    ],
    policy: KEPT,
    x: Axis::linear("accelerated flows of ten"),
    y: Axis::linear("utilisation, %"),
    references: &[
        Reference::paper("paper 004", &[(0.0, 76.4), (1.0, 85.6), (9.0, 85.6)]),
        Reference::design("prototype (reno, drop-tail)", &[(0.0, 81.0), (1.0, 95.0)]),
    ],
    cases: |points| {
        let kinds = [
            ("reno, drop-tail", "reno", rated(80, RATE, 0.0)),
            ("reno, RED", "reno", red()),
            ("cubic, drop-tail", "cubic", rated(80, RATE, 0.0)),
        ];
        let case = |(series, congestion, bottleneck): &(&str, &'static str, LinkSpec), count: u16| Case {
            scene: Scene {
                congestion,
                ..ten(bottleneck.clone(), count, points.load(12, 12))
            },
            measure: Measure::Utilisation {
                link: BOTTLENECK,
                rate: RATE,
            },
            ..case(series, f64::from(count))
        };
        let of = |kind| [0, 1, 9].into_iter().map(move |count| case(kind, count));
        points.of(&kinds).iter().flat_map(of).collect()
    },
};

/// Returns accelerated flows beside plain ones on a bottleneck with drop-tail, with the default policy.
fn beside(congestion: &'static str, accelerated_flows: u16, plain_flows: u16, load: Load) -> Scene {
    let options = format!("--port {FIRST_PORT}-{}", FIRST_PORT + accelerated_flows - 1);
    let all = accelerated_flows + plain_flows;
    Scene {
        congestion,
        load,
        flows: (0..all).map(|n| flow(n, n < accelerated_flows)).collect(),
        ..accelerated(
            vec![link(60), rated(80, RATE, 0.0), link(60)],
            &[options.as_str(); 2],
        )
    }
}

pub(super) const SHARE: Experiment = Experiment {
    name: "share",
    title: "Accelerated flows beside plain ones",
    notes: &[
        "60 + 80 + 60 ms of round trip, 20 Mbit/s with a queue of 256 KiB in the middle, nodes at both its ends; 12 s; medians of three \
         runs, since equal flows differ by a factor of two in such a time",
        "mean goodput of the accelerated flows divided by that of the plain ones, by how many of them there are",
        "paper: 1.6 for one of ten, 1.1 / 0.7 for nine of ten by its text; design: 1.58 (reno)",
    ],
    policy: "",
    x: Axis::logarithmic("accelerated flows beside one plain one; 0.11: one beside nine"),
    y: Axis::linear("goodput of accelerated flows / of plain ones"),
    references: &[
        Reference::paper("paper 004", &[(0.11, 1.6), (9.0, 1.57)]),
        Reference::design("prototype (reno)", &[(0.11, 1.58)]),
    ],
    cases: |points| {
        let mixes = points.of(&[(1, 9, 0.11), (1, 1, 1.0), (9, 1, 9.0)]);
        let case = |congestion: &'static str, (accelerated_flows, plain_flows, x): (u16, u16, f64)| Case {
            scene: beside(congestion, accelerated_flows, plain_flows, points.load(12, 12)),
            measure: Measure::Share,
            runs: points.runs(3),
            ..case(congestion, x)
        };
        let of = |congestion| mixes.iter().map(move |mix| case(congestion, *mix));
        ["reno", "cubic"].into_iter().flat_map(of).collect()
    },
};

pub(super) const CONVERGENCE: Experiment = Experiment {
    name: "convergence",
    title: "A plain flow beside an accelerated one, over time",
    notes: &[
        "as share: 60 + 80 + 60 ms of round trip, 20 Mbit/s with a queue of 256 KiB in the middle, nodes at both its ends; cubic, 60 s \
         (quick: 30 s)",
        "goodput from the start on, divided by that of one of two plain flows over the whole time",
    ],
    policy: "",
    x: TIME,
    y: Axis::linear("goodput of a flow / of one of two plain flows"),
    references: &[Reference::links("fair share", &[(0.0, 1.0), (60.0, 1.0)])],
    cases: |points| {
        let scene = Scene {
            samples_every: Some(Duration::from_secs(1)),
            ..beside("cubic", 1, 1, points.load(60, 30))
        };
        vec![Case {
            scene,
            measure: Measure::OverTime(Average::FromStart),
            ..case("one of two", 0.0)
        }]
    },
};
