//! The experiments of paper 004 about where nodes stand in a network (section 6).

use std::time::Duration;

use longsplice_lab::{GraphLink, GraphSpec, LinkSpec};

use super::figure::{Axis, SPEED_UP};
use super::load::{FlowSpec, Load};
use super::paper::{FORCED, KEPT};
use super::paths::{accelerated, case, flow, link, rated};
use super::plan::{Case, Experiment, Measure, Reference};
use super::scene::{Action, Scene, Step};

/// Round trips between the node and its customers, and between the node and the servers, in milliseconds: those of a
/// campus, and of an Internet.
const LAN: [u64; 6] = [4, 8, 15, 30, 60, 120];
const WAN: [u64; 6] = [10, 30, 60, 100, 150, 240];

pub(super) const FIG14: Experiment = Experiment {
    name: "fig14",
    title: "Round trips on the two sides of an edge router (figure 14)",
    notes: &[
        "a flow from each of six customers to each of six servers, all through one node; 3 s",
        "the round trips are those that the node knows of its flows while they last",
        "paper: measured at a campus's access; most connections have a short round trip on one side and a long one on the other, by its \
         text",
        "beyond the lines of 10 % a node gains less than 1.11",
    ],
    policy: FORCED,
    x: Axis::logarithmic("round trip to the customer, ms"),
    y: Axis::logarithmic("round trip to the server, ms"),
    references: &[
        Reference::paper("half on each side", &[(2.0, 2.0), (300.0, 300.0)]),
        Reference::paper("10 % inside", &[(2.0, 18.0), (34.0, 306.0)]),
        Reference::paper("10 % outside", &[(18.0, 2.0), (300.0, 33.3)]),
    ],
    cases: |points| {
        let (lan, wan) = (points.of(&LAN), points.of(&WAN));
        let names = |kind: &str, count: usize| (0..count).map(|n| format!("{kind}{n}")).collect::<Vec<_>>();
        let (customers, servers) = (names("customer", lan.len()), names("server", wan.len()));
        let to_router = |name: &String, router: &str, rtt: u64| GraphLink {
            between: [name.clone(), router.to_owned()],
            link: link(rtt),
        };
        let mut links = vec![
            to_router(&"node".to_owned(), "inside", 0),
            to_router(&"node".to_owned(), "outside", 0),
        ];
        links.extend(
            customers
                .iter()
                .zip(&lan)
                .map(|(name, rtt)| to_router(name, "inside", *rtt)),
        );
        links.extend(
            servers
                .iter()
                .zip(&wan)
                .map(|(name, rtt)| to_router(name, "outside", *rtt)),
        );
        let pairs = (0..lan.len()).flat_map(|customer| (0..wan.len()).map(move |server| [customer, server]));
        let flow = |(n, [customer, server]): (u16, [usize; 2])| FlowSpec {
            hosts: [customer, lan.len() + server],
            ..flow(n, true)
        };
        let graph = GraphSpec {
            hosts: customers.iter().chain(&servers).cloned().collect(),
            nodes: vec!["node".to_owned()],
            routers: vec!["inside".to_owned(), "outside".to_owned()],
            links,
        };
        let mut scene = accelerated(Vec::new(), &[FORCED]);
        scene.flows = (0..).zip(pairs).map(flow).collect();
        let measured = Case {
            scene: Scene {
                graph,
                nodes_passed: 1,
                host_window: Some(32 << 10),
                load: Load::Time(Duration::from_secs(3)),
                steps: vec![Step {
                    at: Duration::from_millis(1500),
                    action: Action::List,
                }],
                ..scene
            },
            measure: Measure::RoundTrips,
            ..case("known to the node", 0.0)
        };
        vec![measured]
    },
};

/// Domains of the graph of figure 15: each has a transit router, a node, and hosts.
const DOMAINS: usize = 8;
/// Hosts of a domain; with the nodes there are 200 namespaces.
const HOSTS: usize = 24;
/// Flows between hosts of different domains.
const FLOWS: u16 = 400;

pub(super) const FIG15: Experiment = Experiment {
    name: "fig15",
    title: "200 nodes, 400 flows (figure 15)",
    notes: &[
        "eight domains of 24 hosts, each behind a node; their routers are a ring with four chords, links of 3.5 Mbit/s and 40 to 80 ms, \
         40 ms of round trip to the node (congested), or of 5 Mbit/s and 80 to 160 ms, 80 ms to the node, windows of 6 KB (windows): \
         the prototype's graph, stretched in time, as the emulator would be late at its rates",
        "400 flows between hosts of different domains, chosen by a fixed rule; 16 s (quick: 12 s); reno; each accelerated flow passes two nodes",
        "paper: 1.5 with 70 % of the flows accelerated, 2 with 90 %, half of the links congested, by its text",
        "design: 1.00 (congested) and 1.16 (windows), all flows accelerated",
    ],
    policy: KEPT,
    x: Axis::linear("accelerated flows, %"),
    y: SPEED_UP,
    references: &[
        Reference::paper("paper 004", &[(0.0, 1.0), (70.0, 1.5), (90.0, 2.0)]),
        Reference::design("prototype, windows", &[(0.0, 1.0), (100.0, 1.16)]),
        Reference::design("prototype, congested", &[(0.0, 1.0), (100.0, 1.0)]),
    ],
    cases: |points| {
        let kinds = [
            ("windows", 5_000_000, 4, Some(6 << 10)),
            ("congested", 3_500_000, 2, None),
        ];
        let places = [
            (kinds[0], 30),
            (kinds[0], 70),
            (kinds[0], 100),
            (kinds[1], 30),
            (kinds[1], 70),
            (kinds[1], 100),
        ];
        let case = |(series, rate, stretch, window): (&str, u64, u64, Option<u32>), share: u16| {
            let count = FLOWS * share / 100;
            let options = format!(
                "{KEPT} --port {}-{}",
                super::paths::FIRST_PORT,
                super::paths::FIRST_PORT + count - 1
            );
            let mut scene = accelerated(Vec::new(), &[options.as_str(); DOMAINS]);
            scene.flows = (0..FLOWS).map(|n| crossing(n, n < count)).collect();
            Case {
                scene: Scene {
                    graph: domains(rate, stretch),
                    nodes_passed: 2,
                    host_window: window,
                    load: points.load(16, 12),
                    ..scene
                },
                ..case(series, f64::from(share))
            }
        };
        points
            .of(&places)
            .into_iter()
            .map(|(kind, share)| case(kind, share))
            .collect()
    },
};

/// Returns the `n`-th flow: it leads from one domain to another.
fn crossing(n: u16, is_accelerated: bool) -> FlowSpec {
    let n_wide = usize::from(n);
    let from = n_wide % DOMAINS;
    // Step through all other domains as `n` grows.
    let to = (from + 1 + n_wide / DOMAINS % (DOMAINS - 1)) % DOMAINS;
    let host = n_wide / DOMAINS % HOSTS;
    FlowSpec {
        hosts: [from * HOSTS + host, to * HOSTS + (host * 7 + n_wide) % HOSTS],
        ..flow(n, is_accelerated)
    }
}

/// Returns the graph of figure 15, with the rate of the links between the domains; all round trips are so many times as long.
fn domains(rate: u64, stretch: u64) -> GraphSpec {
    let name = |kind: &str, n: usize| format!("{kind}{n}");
    let (mut hosts, mut links) = (Vec::new(), Vec::new());
    let mut connect = |here: String, there: String, link: LinkSpec| {
        links.push(GraphLink {
            between: [here, there],
            link,
        });
    };
    for domain in 0..DOMAINS {
        connect(name("node", domain), name("stub", domain), link(0));
        connect(name("node", domain), name("transit", domain), link(0));
        for host in 0..HOSTS {
            let host = format!("host{domain}-{host}");
            connect(host.clone(), name("stub", domain), link(20 * stretch));
            hosts.push(host);
        }
    }
    let ring = (0..DOMAINS).map(|n| (n, (n + 1) % DOMAINS));
    let chords = (0..DOMAINS / 2).map(|n| (n, n + DOMAINS / 2));
    for (n, (here, there)) in ring.chain(chords).enumerate() {
        let rtt = stretch * [40, 50, 60, 70, 80][n * 3 % 5];
        connect(
            name("transit", here),
            name("transit", there),
            rated(rtt, rate, 0.0),
        );
    }
    let all = |kind: &str| (0..DOMAINS).map(|n| name(kind, n)).collect::<Vec<_>>();
    GraphSpec {
        hosts,
        nodes: all("node"),
        routers: [all("stub"), all("transit")].concat(),
        links,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_lead_from_each_domain_to_each_other() {
        let graph = domains(3_500_000, 2);
        assert_eq!(graph.hosts.len() + graph.nodes.len(), 200);
        let mut pairs = [[0; DOMAINS]; DOMAINS];
        for n in 0..FLOWS {
            let [client, server] = crossing(n, false).hosts;
            assert!(client < graph.hosts.len() && server < graph.hosts.len());
            pairs[client / HOSTS][server / HOSTS] += 1;
        }
        for (from, row) in pairs.iter().enumerate() {
            for (to, count) in row.iter().enumerate() {
                assert_eq!(*count == 0, from == to, "{from} to {to}: {pairs:?}");
            }
        }
    }
}
