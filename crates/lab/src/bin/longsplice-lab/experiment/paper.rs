//! The experiments of paper 004 (Ladiwala, Ramaswamy, Wolf: Transparent TCP acceleration).

use std::time::Duration;

use longsplice_lab::LinkSpec;

use super::figure::{Axis, SPEED_UP};
use super::load::Load;
use super::paths::{accelerated, case, even, lossy, windowed};
use super::plan::{Case, Experiment, Reference};
use super::scene::Scene;

/// Options that keep every connection taken over which has two round trips at all.
pub(super) const FORCED: &str = "--min-rtt 1ms --min-gain 1.01";

/// Option that keeps a connection taken over which fills the queue of its bottleneck: in the paper no other traffic ends an
/// acceleration.
pub(super) const KEPT: &str = "--standing-queue keep";

pub(super) const FIG4: Experiment = Experiment {
    name: "fig4",
    title: "Place of the node (figure 4)",
    notes: &[
        "100 ms of round trip from end to end, 100 Mbit/s, reno; windows of 64 KB at the hosts and in the node; 5 s",
        "paper: 2 in the middle by its text; the bound of two loops is the path divided by the longer leg",
        "design: 1.11 and 1.43 off the middle are taken to be at 10 % and 30 %",
    ],
    policy: FORCED,
    x: Axis::linear("round trip between client and node, ms of 100"),
    y: SPEED_UP,
    references: &[
        Reference::paper("paper 004", &[(50.0, 2.0)]),
        Reference::paper(
            "bound of two loops",
            &[
                (10.0, 1.111),
                (20.0, 1.25),
                (30.0, 1.429),
                (40.0, 1.667),
                (50.0, 2.0),
                (60.0, 1.667),
                (70.0, 1.429),
                (80.0, 1.25),
                (90.0, 1.111),
            ],
        ),
        Reference::design("prototype", &[(10.0, 1.11), (30.0, 1.43), (50.0, 2.0)]),
    ],
    cases: |points| {
        let places = points.of(&[10, 20, 30, 40, 50, 60, 70, 80, 90]);
        let case = |place: u64| Case {
            scene: Scene {
                load: points.load(5, 5),
                ..windowed(&[place, 100 - place], FORCED)
            },
            ..case("measured", place as f64)
        };
        places.into_iter().map(case).collect()
    },
};

pub(super) const FIG5: Experiment = Experiment {
    name: "fig5",
    title: "Size of the transfer (figure 5)",
    notes: &[
        "node in the middle of 100 ms of round trip, 100 Mbit/s, reno; windows of 64 KB at the hosts and in the node",
        "time from the SYN until the last byte has arrived",
        "M2, the default: the connection is taken over at the server's answer, so that the handshake gains nothing",
        "M1: early_accept = \"always\", the client is answered before the server is asked, as in the paper",
        "paper: 1.5 for a few kilobytes, 2 for large transfers by its text; 1.8 at 100 KB by the design page",
    ],
    policy: "",
    x: Axis::logarithmic("bytes"),
    y: SPEED_UP,
    references: &[
        Reference::paper("paper 004", &[(4e3, 1.5), (1e5, 1.8), (1e7, 2.0)]),
        Reference::design("prototype (M2)", &[(4e3, 1.0), (1e5, 1.14)]),
        Reference::design("prototype (M1)", &[(4e3, 1.5), (1e5, 1.38)]),
    ],
    cases: |points| {
        let sizes = points.of(&[
            1_000, 4_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000,
        ]);
        let kinds = [("M2", ""), ("M1", "--early-accept always")];
        let case = |(series, options): (&str, &str), size: u64| Case {
            scene: Scene {
                load: Load::Bytes(size),
                ..windowed(&[50, 50], options)
            },
            runs: points.runs(3),
            ..case(series, size as f64)
        };
        let of = |kind| sizes.iter().map(move |size| case(kind, *size));
        kinds.into_iter().flat_map(of).collect()
    },
};

pub(super) const FIG6: Experiment = Experiment {
    name: "fig6",
    title: "Number of nodes (figure 6)",
    notes: &[
        "evenly spaced nodes on 100 ms of round trip, 100 Mbit/s, reno; windows of 64 KB at the hosts and in the nodes; 8 s (quick: 7 s)",
        "paper: linear in the number of nodes by its text",
    ],
    policy: "",
    x: Axis::linear("nodes"),
    y: SPEED_UP,
    references: &[
        Reference::paper(
            "paper 004",
            &[
                (1.0, 2.0),
                (2.0, 3.0),
                (3.0, 4.0),
                (4.0, 5.0),
                (5.0, 6.0),
                (6.0, 7.0),
                (7.0, 8.0),
            ],
        ),
        Reference::design(
            "prototype",
            &[(1.0, 2.0), (2.0, 3.05), (3.0, 4.05), (4.0, 5.0), (7.0, 7.7)],
        ),
    ],
    cases: |points| {
        let case = |nodes: u64| Case {
            scene: Scene {
                load: points.load(8, 7),
                ..windowed(&even(100, nodes), "")
            },
            ..case("measured", nodes as f64)
        };
        points.of(&[1, 2, 3, 4, 5, 6, 7]).into_iter().map(case).collect()
    },
};

pub(super) const FIG7: Experiment = Experiment {
    name: "fig7",
    title: "Processing delay of the node (figure 7)",
    notes: &[
        "node in the middle of 100 ms of round trip, 100 Mbit/s, reno; windows of 64 KB at the hosts and in the node; 8 s (quick: 5 s)",
        "each packet that leaves the node, acknowledgements too, leaves so much later; the router without acceleration takes \
         no time",
        "paper: 1.5 at 10 ms, still above 1 at 40 ms, by its text; the bound of two loops is the path divided by a leg and \
         the delay",
    ],
    policy: FORCED,
    x: Axis::linear("processing delay, ms"),
    y: SPEED_UP,
    references: &[
        Reference::paper("paper 004", &[(0.0, 2.0), (10.0, 1.5)]),
        Reference::paper(
            "bound of two loops",
            &[
                (0.0, 2.0),
                (5.0, 1.818),
                (10.0, 1.667),
                (20.0, 1.429),
                (30.0, 1.25),
                (40.0, 1.111),
            ],
        ),
    ],
    cases: |points| {
        let case = |delay: u64| Case {
            scene: Scene {
                processing: Duration::from_millis(delay),
                load: points.load(8, 5),
                ..windowed(&[50, 50], FORCED)
            },
            ..case("measured", delay as f64)
        };
        points.of(&[0, 1, 10, 20, 30, 40]).into_iter().map(case).collect()
    },
};

pub(super) const FIG8: Experiment = Experiment {
    name: "fig8",
    title: "Memory of the node (figure 8)",
    notes: &[
        "node in the middle of 100 ms of round trip, 100 Mbit/s, reno; windows of 64 KB at the hosts; 8 s (quick: 5 s)",
        "the limit is that of the node's sending sockets (tcp_wmem): the windows that a node offers are never below those \
         that the far ends had offered before the take-over",
        "paper: linear below the window of the hosts, constant above it, by its text",
    ],
    policy: "",
    x: Axis::logarithmic("bytes that the node holds at most, KB"),
    y: SPEED_UP,
    references: &[Reference::paper(
        "paper 004",
        &[
            (8.0, 0.25),
            (16.0, 0.5),
            (32.0, 1.0),
            (48.0, 1.5),
            (64.0, 2.0),
            (128.0, 2.0),
            (256.0, 2.0),
        ],
    )],
    cases: |points| {
        let case = |kilobytes: u32| Case {
            scene: Scene {
                node_store: Some(kilobytes << 10),
                load: points.load(8, 5),
                ..windowed(&[50, 50], "")
            },
            ..case("measured", f64::from(kilobytes))
        };
        points
            .of(&[8, 16, 32, 48, 64, 128, 256])
            .into_iter()
            .map(case)
            .collect()
    },
};

pub(super) const FIG9: Experiment = Experiment {
    name: "fig9",
    title: "Loss, three nodes (figure 9)",
    notes: &[
        "three evenly spaced nodes on 100 ms of round trip, 100 Mbit/s, no limit of windows; 8 s; medians of three seeds",
        "the loss is that of the whole path, each way, in equal parts on the four links",
        "reno, cubic: of hosts and nodes; BBR: reno hosts, BBR on the outgoing leg of each node",
        "paper: close to 10 by its text",
    ],
    policy: "",
    x: Axis::logarithmic("loss, %"),
    y: Axis::logarithmic(SPEED_UP.label),
    references: &[
        Reference::paper("paper 004", &[(1.0, 10.0), (3.0, 10.0), (10.0, 10.0)]),
        Reference::design("prototype (reno)", &[(1.0, 5.3), (3.0, 6.4), (10.0, 8.3)]),
    ],
    cases: |points| {
        let kinds = [
            ("reno", "reno", ""),
            ("cubic", "cubic", ""),
            ("BBR on the outgoing legs", "reno", "--outside-congestion bbr"),
        ];
        let losses = points.of(&[1.0, 3.0, 10.0]);
        let case = |(series, congestion, options): (&str, &'static str, &str), loss: f64| {
            let each = 1.0 - (1.0 - loss / 100.0).powf(0.25);
            let links: Vec<LinkSpec> = even(100, 3).iter().map(|rtt| lossy(*rtt, each)).collect();
            Case {
                scene: Scene {
                    congestion,
                    load: points.load(8, 8),
                    ..accelerated(links, &[options; 3])
                },
                runs: points.runs(3),
                ..case(series, loss)
            }
        };
        let of = |kind| losses.iter().map(move |loss| case(kind, *loss));
        kinds.into_iter().flat_map(of).collect()
    },
};
