//! Scenes that experiments begin with: links, flows, and the limits of windows.

use std::time::Duration;

use longsplice_lab::{Direction, GraphLink, GraphSpec, LinkSpec, Queue};

use super::load::{FlowSpec, Load};
use super::plan::{Case, Measure};
use super::scene::Scene;

/// Window of the paper's hosts and nodes.
const WINDOW: u32 = 64 << 10;

/// Port of the first flow; the others follow.
pub(super) const FIRST_PORT: u16 = 7000;

pub(super) fn flow(n: u16, is_accelerated: bool) -> FlowSpec {
    FlowSpec {
        port: FIRST_PORT + n,
        is_accelerated,
        hosts: [0, 1],
        after: Duration::ZERO,
    }
}

/// Returns a link of 100 Mbit/s with this round trip in milliseconds.
pub(super) fn link(rtt: u64) -> LinkSpec {
    rated(rtt, 100_000_000, 0.0)
}

/// Returns such a link with losses both ways.
pub(super) fn lossy(rtt: u64, loss: f64) -> LinkSpec {
    rated(rtt, 100_000_000, loss)
}

pub(super) fn rated(rtt: u64, rate: u64, loss: f64) -> LinkSpec {
    LinkSpec::symmetric(Direction {
        delay: Duration::from_micros(rtt * 500),
        rate: Some(rate),
        queue: Queue::Bytes(256 << 10),
        loss,
        ..Direction::default()
    })
}

/// Returns the round trips of the links between evenly spaced nodes, in milliseconds.
pub(super) fn even(rtt: u64, nodes: u64) -> Vec<u64> {
    let links = nodes + 1;
    // Spread the remainder of the division over the first links.
    (0..links)
        .map(|n| rtt / links + u64::from(n < rtt % links))
        .collect()
}

/// Returns a case with the usual measure; the scene is to be replaced.
pub(super) fn case(series: &str, x: f64) -> Case {
    Case {
        series: series.to_owned(),
        x,
        runs: 1,
        scene: accelerated(Vec::new(), &[]),
        measure: Measure::SpeedUp,
    }
}

/// Returns a client, nodes and a server in a row, with these links between them.
fn chain(links: Vec<LinkSpec>) -> GraphSpec {
    let nodes: Vec<String> = (1..links.len()).map(|n| format!("node{n}")).collect();
    let mut row = vec!["client".to_owned()];
    row.extend(nodes.iter().cloned());
    row.push("server".to_owned());
    let pairs = row.windows(2).map(|pair| [pair[0].clone(), pair[1].clone()]);
    let link = |(between, link)| GraphLink { between, link };
    GraphSpec {
        hosts: vec!["client".to_owned(), "server".to_owned()],
        nodes,
        routers: Vec::new(),
        links: pairs.zip(links).map(link).collect(),
    }
}

/// Returns a scene of one flow for 10 s over these links in a row, with the options of each node between them.
pub(super) fn accelerated(links: Vec<LinkSpec>, options: &[&str]) -> Scene {
    let words = |options: &&str| options.split_whitespace().map(str::to_owned).collect();
    Scene {
        nodes_passed: links.len().saturating_sub(1),
        graph: chain(links),
        congestion: "reno",
        host_window: None,
        node_window: None,
        node_store: None,
        initial_window: None,
        accelerators: options.iter().map(words).collect(),
        processing: Duration::ZERO,
        flows: vec![flow(0, true)],
        load: Load::Time(Duration::from_secs(10)),
        samples_queue: false,
        steps: Vec::new(),
        measures_cost: false,
        samples_every: None,
    }
}

/// Returns a scene of links with these round trips in milliseconds, limited by the windows of the hosts and by those of the
/// nodes.
pub(super) fn windowed(rtts: &[u64], options: &str) -> Scene {
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
    use super::*;

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
