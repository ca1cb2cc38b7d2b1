//! Table 1 of paper 004 for this implementation: the cost of each operation.

use std::time::Duration;

use super::cost::Operations;
use super::figure::Axis;
use super::load::Load;
use super::paper::FORCED;
use super::paths::{accelerated, case, flow, link};
use super::plan::{Case, Experiment, Measure, Points, Reference};
use super::scene::{Action, Scene, Step};

/// Flows of the case of short connections.
const SHORT: u16 = 100;

pub(super) const TABLE1: Experiment = Experiment {
    name: "table1",
    title: "Cost of each operation of a node (table 1)",
    notes: &[
        "1: take-over, from the SYN/ACK until both sockets stand and both segments are sent on, median of 100 (the daemon's times)",
        "2: a short connection from SYN to FIN, processor time of the daemon, system calls included",
        "3: a data segment and its acknowledgement over a taken-over connection, processor time of the daemon, system calls \
         included; what the kernel's TCP does as packets arrive is not in it",
        "4, 5, 6: eBPF programs for a data segment and its acknowledgement: taken over, released, passed through (kernel.bpf_stats_enabled)",
        "7: release, from a drained pair to segments that pass in the kernel; 8: return, until the sockets of a flow are built; \
         medians of four (the daemon's times)",
        "20 + 20 ms of round trip, 100 Mbit/s; 5 s of bulk; timeouts are the kernel's, and were not measured",
        "paper: Intel IXP2350, microengines of 900 MHz; segments of 1,516 bytes: receive, acknowledge, send on, and its acknowledgement \
         (37.72 + 0.86 + 36.36 + 0.28); SYN 0.52; FIN 1.13; a timeout 36.75",
    ],
    policy: "",
    x: Axis::linear("operation, by number (see the notes)"),
    y: Axis::logarithmic("µs"),
    references: &[
        Reference::paper("paper 004: SYN", &[(1.0, 0.52)]),
        Reference::paper("paper 004: SYN and FIN", &[(2.0, 1.65)]),
        Reference::paper("paper 004: data and acknowledgements", &[(3.0, 75.22)]),
    ],
    cases: |points| {
        let scene = |options: &str, is_accelerated| Scene {
            load: Load::Time(Duration::from_secs(5)),
            flows: vec![flow(0, is_accelerated)],
            measures_cost: true,
            ..accelerated(vec![link(20), link(20)], &[options])
        };
        let step = |n: u64, action| Step {
            at: Duration::from_millis(1000 + n * 350),
            action,
        };
        let turns = (0..10).map(|n| {
            step(
                n,
                if n % 2 == 0 {
                    Action::Splice
                } else {
                    Action::Unsplice
                },
            )
        });
        let short = Scene {
            load: Load::Bytes(1000),
            flows: (0..SHORT).map(|n| flow(n, true)).collect(),
            ..scene("", true)
        };
        let turning = Scene {
            load: Load::Time(Duration::from_secs(13)),
            steps: turns.collect(),
            ..scene("", true)
        };
        let released = Scene {
            steps: vec![Step {
                at: Duration::from_millis(300),
                action: Action::Splice,
            }],
            ..scene("", true)
        };
        let passed = scene("--port 1", false);
        [
            ("short connections", short, Operations::Short),
            ("taken over", scene(FORCED, true), Operations::TakenOver),
            ("released", released, Operations::Released),
            ("passed through", passed, Operations::PassedThrough),
            ("released and taken over in turns", turning, Operations::Turns),
        ]
        .into_iter()
        // The turns take the longest.
        .take(if points == Points::Quick { 4 } else { 5 })
        .map(|(series, scene, operations)| Case {
            scene,
            measure: Measure::Costs(operations),
            ..case(series, 0.0)
        })
        .collect()
    },
};
