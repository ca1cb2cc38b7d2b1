//! The experiments of paper 004 (Ladiwala, Ramaswamy, Wolf: Transparent TCP acceleration), and some beyond it.

use std::time::Duration;

use longsplice_lab::{Direction, LinkSpec, Queue};

use super::figure::{Axis, Source};
use super::load::{FlowSpec, Load};
use super::plan::{Case, Experiment, Measure, Reference};
use super::scene::Scene;

/// All experiments, in the order of the paper.
pub(crate) const EXPERIMENTS: [Experiment; 8] = [FIG4, FIG5, FIG6, FIG8, FIG9, WAN, QUEUE, SHARE];

/// Returns the experiment with a name.
pub(crate) fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}

/// Window of the paper's hosts and nodes.
const WINDOW: u32 = 64 << 10;

/// Options that keep every connection taken over which has two round trips at all.
const FORCED: &str = "--min-rtt 1ms --min-gain 1.01";

const SPEED_UP: Axis = Axis {
    label: "speed-up",
    is_logarithmic: false,
};

const FIG4: Experiment = Experiment {
    name: "fig4",
    title: "Place of the node (figure 4)",
    notes: &[
        "100 ms of round trip from end to end, 100 Mbit/s, reno; windows of 64 KB at the hosts and in the node; 10 s",
        "paper: 2 in the middle by its text; the bound of two loops is the path divided by the longer leg",
        "design: 1.11 and 1.43 off the middle are taken to be at 10 % and 30 %",
    ],
    policy: FORCED,
    x: Axis {
        label: "round trip between client and node, ms of 100",
        is_logarithmic: false,
    },
    y: SPEED_UP,
    references: &[
        Reference {
            name: "paper 004",
            source: Source::Paper,
            points: &[(50.0, 2.0)],
        },
        Reference {
            name: "bound of two loops",
            source: Source::Paper,
            points: &[
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
        },
        Reference {
            name: "prototype",
            source: Source::Design,
            points: &[(10.0, 1.11), (30.0, 1.43), (50.0, 2.0)],
        },
    ],
    cases: |points| {
        let places = points.of(&[10, 20, 30, 40, 50, 60, 70, 80, 90]);
        let case = |place: u64| Case {
            scene: windowed(&[place, 100 - place], FORCED),
            ..case("measured", place as f64)
        };
        places.into_iter().map(case).collect()
    },
};

const FIG5: Experiment = Experiment {
    name: "fig5",
    title: "Size of the transfer (figure 5)",
    notes: &[
        "node in the middle of 100 ms of round trip, 100 Mbit/s, reno; windows of 64 KB at the hosts and in the node",
        "time from the SYN until the last byte has arrived; the connection is taken over at the server's answer (M2), so \
         that the handshake gains nothing",
        "paper: 1.5 for a few kilobytes, 2 for large transfers by its text; 1.8 at 100 KB by the design page",
    ],
    policy: "",
    x: Axis {
        label: "bytes",
        is_logarithmic: true,
    },
    y: SPEED_UP,
    references: &[
        Reference {
            name: "paper 004",
            source: Source::Paper,
            points: &[(4e3, 1.5), (1e5, 1.8), (1e7, 2.0)],
        },
        Reference {
            name: "prototype (M2)",
            source: Source::Design,
            points: &[(4e3, 1.0), (1e5, 1.14)],
        },
    ],
    cases: |points| {
        let sizes = points.of(&[
            1_000, 4_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000,
        ]);
        let case = |size: u64| Case {
            scene: Scene {
                load: Load::Bytes(size),
                ..windowed(&[50, 50], "")
            },
            runs: points.runs(3),
            ..case("measured", size as f64)
        };
        sizes.into_iter().map(case).collect()
    },
};

const FIG6: Experiment = Experiment {
    name: "fig6",
    title: "Number of nodes (figure 6)",
    notes: &[
        "evenly spaced nodes on 100 ms of round trip, 100 Mbit/s, reno; windows of 64 KB at the hosts and in the nodes; 10 s",
        "paper: linear in the number of nodes by its text",
    ],
    policy: "",
    x: Axis {
        label: "nodes",
        is_logarithmic: false,
    },
    y: SPEED_UP,
    references: &[
        Reference {
            name: "paper 004",
            source: Source::Paper,
            points: &[
                (1.0, 2.0),
                (2.0, 3.0),
                (3.0, 4.0),
                (4.0, 5.0),
                (5.0, 6.0),
                (6.0, 7.0),
                (7.0, 8.0),
            ],
        },
        Reference {
            name: "prototype",
            source: Source::Design,
            points: &[(1.0, 2.0), (2.0, 3.05), (3.0, 4.05), (4.0, 5.0), (7.0, 7.7)],
        },
    ],
    cases: |points| {
        let case = |nodes: u64| Case {
            scene: windowed(&even(100, nodes), ""),
            ..case("measured", nodes as f64)
        };
        points.of(&[1, 2, 3, 4, 5, 6, 7]).into_iter().map(case).collect()
    },
};

const FIG8: Experiment = Experiment {
    name: "fig8",
    title: "Memory of the node (figure 8)",
    notes: &[
        "node in the middle of 100 ms of round trip, 100 Mbit/s, reno; windows of 64 KB at the hosts; 10 s",
        "the limit is that of the node's sending sockets (tcp_wmem): the windows that a node offers are never below those \
         that the far ends had offered before the take-over",
        "paper: linear below the window of the hosts, constant above it, by its text",
    ],
    policy: "",
    x: Axis {
        label: "bytes that the node holds at most, KB",
        is_logarithmic: true,
    },
    y: SPEED_UP,
    references: &[Reference {
        name: "paper 004",
        source: Source::Paper,
        points: &[
            (8.0, 0.25),
            (16.0, 0.5),
            (32.0, 1.0),
            (48.0, 1.5),
            (64.0, 2.0),
            (128.0, 2.0),
            (256.0, 2.0),
        ],
    }],
    cases: |points| {
        let case = |kilobytes: u32| Case {
            scene: Scene {
                node_store: Some(kilobytes << 10),
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

const FIG9: Experiment = Experiment {
    name: "fig9",
    title: "Loss, three nodes (figure 9)",
    notes: &[
        "three evenly spaced nodes on 100 ms of round trip, 100 Mbit/s, no limit of windows; 15 s; medians of three seeds",
        "the loss is that of the whole path, each way, in equal parts on the four links",
        "reno, cubic: of hosts and nodes; BBR: reno hosts, BBR on the outgoing leg of each node",
        "paper: close to 10 by its text",
    ],
    policy: "",
    x: Axis {
        label: "loss, %",
        is_logarithmic: true,
    },
    y: Axis {
        is_logarithmic: true,
        ..SPEED_UP
    },
    references: &[
        Reference {
            name: "paper 004",
            source: Source::Paper,
            points: &[(1.0, 10.0), (3.0, 10.0), (10.0, 10.0)],
        },
        Reference {
            name: "prototype (reno)",
            source: Source::Design,
            points: &[(1.0, 5.3), (3.0, 6.4), (10.0, 8.3)],
        },
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
                    load: Load::Time(Duration::from_secs(15)),
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

const WAN: Experiment = Experiment {
    name: "wan",
    title: "Lossy WAN between two edges, BBR on the WAN",
    notes: &[
        "4 + 92 + 4 ms of round trip, 100 Mbit/s, cubic hosts, a node at each edge with BBR on the WAN; 15 s; medians of \
         three seeds",
        "the paper has no such experiment; 6.9, 76 and 140 were measured by a prototype (design page)",
    ],
    policy: "",
    x: Axis {
        label: "loss of the WAN, %",
        is_logarithmic: true,
    },
    y: Axis {
        is_logarithmic: true,
        ..SPEED_UP
    },
    references: &[Reference {
        name: "prototype",
        source: Source::Design,
        points: &[(0.1, 6.9), (1.0, 76.0), (5.0, 140.0)],
    }],
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
                load: Load::Time(Duration::from_secs(15)),
                ..accelerated(vec![link(4), lossy(92, loss / 100.0), link(4)], &options)
            },
            runs: points.runs(3),
            ..case(series, loss)
        };
        let of = |kind| losses.iter().map(move |loss| case(kind, *loss));
        kinds.into_iter().flat_map(of).collect()
    },
};

const QUEUE: Experiment = Experiment {
    name: "queue",
    title: "Queue inside the node, 100 into 20 Mbit/s",
    notes: &[
        "10 + 10 ms of round trip, 100 and 20 Mbit/s, cubic, no limit of windows; sampled every 100 ms: bytes that the node \
         has received and not yet sent",
        "the paper has no such experiment; 0.77 s with autotuned buffers and 0.075 s with a bounded one were measured by a \
         prototype (design page)",
    ],
    policy: "",
    x: Axis {
        label: "time, s",
        is_logarithmic: false,
    },
    y: Axis {
        label: "queue, s at 20 Mbit/s",
        is_logarithmic: false,
    },
    references: &[
        Reference {
            name: "prototype, autotuned",
            source: Source::Design,
            points: &[(0.0, 0.77), (10.0, 0.77)],
        },
        Reference {
            name: "prototype, bounded",
            source: Source::Design,
            points: &[(0.0, 0.075), (10.0, 0.075)],
        },
    ],
    cases: |points| {
        let kinds = [
            ("queue of 75 ms, the default", ""),
            ("without a bound", "--queue 10s"),
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
        // Quick: the first one alone would say nothing, so both stand for all.
        let _ = points;
        kinds.into_iter().map(case).collect()
    },
};

const SHARE: Experiment = Experiment {
    name: "share",
    title: "Accelerated flows beside plain ones",
    notes: &[
        "60 + 80 + 60 ms of round trip, 20 Mbit/s with a queue of 256 KiB in the middle, nodes at both its ends, cubic; 30 s",
        "mean goodput of the accelerated flows divided by that of the plain ones, by how many of them there are",
        "paper: 1.6 for one of ten, 1.1 / 0.7 for nine of ten by its text; design: 1.58 (reno)",
    ],
    policy: "",
    x: Axis {
        label: "accelerated flows beside one plain one; 0.11: one beside nine",
        is_logarithmic: true,
    },
    y: Axis {
        label: "goodput of accelerated flows / of plain ones",
        is_logarithmic: false,
    },
    references: &[
        Reference {
            name: "paper 004",
            source: Source::Paper,
            points: &[(0.11, 1.6), (9.0, 1.57)],
        },
        Reference {
            name: "prototype (reno)",
            source: Source::Design,
            points: &[(0.11, 1.58)],
        },
    ],
    cases: |points| {
        let mixes = points.of(&[(1, 9, 0.11), (1, 1, 1.0), (9, 1, 9.0)]);
        let case = |(accelerated_flows, plain_flows, x): (u16, u16, f64)| {
            let all = accelerated_flows + plain_flows;
            let options = format!("--port {FIRST_PORT}-{}", FIRST_PORT + accelerated_flows - 1);
            Case {
                scene: Scene {
                    congestion: "cubic",
                    load: Load::Time(Duration::from_secs(30)),
                    flows: (0..all).map(|n| flow(n, n < accelerated_flows)).collect(),
                    ..accelerated(
                        vec![link(60), rated(80, 20_000_000, 0.0), link(60)],
                        &[options.as_str(); 2],
                    )
                },
                measure: Measure::Share,
                ..case("measured", x)
            }
        };
        mixes.into_iter().map(case).collect()
    },
};

/// Port of the first flow; the others follow.
const FIRST_PORT: u16 = 7000;

fn flow(n: u16, is_accelerated: bool) -> FlowSpec {
    FlowSpec {
        port: FIRST_PORT + n,
        is_accelerated,
    }
}

/// Returns a link of 100 Mbit/s with this round trip in milliseconds.
fn link(rtt: u64) -> LinkSpec {
    rated(rtt, 100_000_000, 0.0)
}

/// Returns such a link with losses both ways.
fn lossy(rtt: u64, loss: f64) -> LinkSpec {
    rated(rtt, 100_000_000, loss)
}

fn rated(rtt: u64, rate: u64, loss: f64) -> LinkSpec {
    LinkSpec::symmetric(Direction {
        delay: Duration::from_micros(rtt * 500),
        rate: Some(rate),
        queue: Queue::Bytes(256 << 10),
        loss,
        ..Direction::default()
    })
}

/// Returns the round trips of the links between evenly spaced nodes, in milliseconds.
fn even(rtt: u64, nodes: u64) -> Vec<u64> {
    let links = nodes + 1;
    // What a division leaves is spread over the first links.
    (0..links)
        .map(|n| rtt / links + u64::from(n < rtt % links))
        .collect()
}

/// Returns a case with the usual measure; the scene is to be replaced.
fn case(series: &str, x: f64) -> Case {
    Case {
        series: series.to_owned(),
        x,
        runs: 1,
        scene: accelerated(Vec::new(), &[]),
        measure: Measure::SpeedUp,
    }
}

/// Returns a scene of one flow for 10 s over these links, with the options of each node.
fn accelerated(links: Vec<LinkSpec>, options: &[&str]) -> Scene {
    let words = |options: &&str| options.split_whitespace().map(str::to_owned).collect();
    Scene {
        links,
        congestion: "reno",
        host_window: None,
        node_window: None,
        node_store: None,
        accelerators: options.iter().map(words).collect(),
        flows: vec![flow(0, true)],
        load: Load::Time(Duration::from_secs(10)),
        samples_queue: false,
    }
}

/// Returns a scene of links with these round trips in milliseconds, limited by the windows of the hosts and by those of the
/// nodes.
fn windowed(rtts: &[u64], options: &str) -> Scene {
    let links: Vec<LinkSpec> = rtts.iter().map(|rtt| link(*rtt)).collect();
    let options = vec![options; links.len().saturating_sub(1)];
    Scene {
        host_window: Some(WINDOW),
        node_window: Some(WINDOW),
        ..accelerated(links, &options)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Points;
    use super::*;

    #[test]
    fn every_experiment_has_a_name_of_its_own_and_points() {
        for experiment in &EXPERIMENTS {
            let [quick, all] = [Points::Quick, Points::All].map(experiment.cases);
            assert!(
                !quick.is_empty() && quick.len() <= all.len(),
                "{}",
                experiment.name
            );
            assert!(!experiment.references.is_empty(), "{}", experiment.name);
            assert_eq!(
                find(experiment.name).map(|one| one.title),
                Some(experiment.title),
                "the name is unique"
            );
            for case in quick.iter().chain(&all) {
                let scene = &case.scene;
                assert_eq!(scene.accelerators.len(), scene.links.len() - 1, "{case:?}");
                assert!((1..=8).contains(&scene.links.len()) && case.runs > 0);
                for direction in scene.links.iter().map(|link| &link.to_server) {
                    assert!(
                        direction.rate.is_some_and(|rate| rate <= 100_000_000),
                        "the emulator carries no more in time"
                    );
                }
            }
        }
        assert!(find("fig1").is_none());
    }

    #[test]
    fn the_policy_is_that_of_every_node() {
        for experiment in &EXPERIMENTS {
            for case in (experiment.cases)(Points::All) {
                for options in &case.scene.accelerators {
                    let options = options.join(" ");
                    let forced = options.contains("--min-");
                    assert_eq!(forced, experiment.policy == FORCED, "{}", experiment.name);
                    assert!(!forced || options.contains(FORCED));
                }
            }
        }
    }

    #[test]
    fn evenly_spaced_links_add_up() {
        assert_eq!(even(100, 0), [100]);
        assert_eq!(even(100, 3), [25; 4]);
        assert_eq!(even(100, 2), [34, 33, 33]);
        for nodes in 0..8 {
            assert_eq!(even(100, nodes).iter().sum::<u64>(), 100);
        }
    }
}
