//! Counts a listener's connections and requests, for metrics.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use prometheus_client::metrics::histogram::Histogram;
use strum::VariantArray;

use crate::access_log::{AccessRecord, End, Traffic};

/// Bounds of the histograms for requests, in seconds: from immediate answers to slow replies.
const REQUEST: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];
/// Bounds of the histogram for connections, in seconds; a connection may live for days.
const CONNECTION: [f64; 10] = [
    0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0,
];

/// Classes of requests by the first digit of their status; 0 is for requests without one.
pub(crate) const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Counters of a listener.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    pub(crate) to_client: AtomicU64,
    pub(crate) to_server: AtomicU64,
    pub(crate) spliced: AtomicU64,
    /// Ended requests and connections by their end, indexed as [`End::VARIANTS`].
    pub(crate) ended: [AtomicU64; End::VARIANTS.len()],
    /// Durations of connections of which no requests were read.
    pub(crate) duration: Histogram,
    /// Counters by the name of the route; the empty name is for requests that no route takes.
    routes: ArcSwap<HashMap<String, Arc<RouteCounts>>>,
}

/// Counters of the requests that a route takes.
#[derive(Debug)]
pub(crate) struct RouteCounts {
    /// Number of requests by [`CLASSES`].
    pub(crate) classes: [AtomicU64; CLASSES.len()],
    pub(crate) duration: Histogram,
    pub(crate) first_byte: Histogram,
}

/// Values that are counted for an ended request or connection; a subset of its [`AccessRecord`].
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    pub(crate) is_request: bool,
    pub(crate) route: Option<&'a str>,
    pub(crate) status: Option<u16>,
    pub(crate) traffic: Traffic,
    pub(crate) duration: Duration,
    pub(crate) first_byte: Option<Duration>,
    pub(crate) end: End,
}

impl<'a> From<&'a AccessRecord> for Tally<'a> {
    fn from(record: &'a AccessRecord) -> Self {
        Tally {
            is_request: record.is_request,
            route: record.route.as_deref(),
            status: record.status,
            traffic: record.traffic,
            duration: record.duration,
            first_byte: record.first_byte,
            end: record.end,
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Counts {
            accepted: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            spliced: AtomicU64::new(0),
            ended: Default::default(),
            duration: Histogram::new(CONNECTION),
            routes: ArcSwap::default(),
        }
    }
}

impl Counts {
    /// Counts these routes from now on, and forgets others. Only this adds entries: names from outside must not.
    pub(super) fn keep_routes<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let before = self.routes.load();
        let new = || {
            Arc::new(RouteCounts {
                classes: Default::default(),
                duration: Histogram::new(REQUEST),
                first_byte: Histogram::new(REQUEST),
            })
        };
        let kept = |name: &str| (name.to_owned(), before.get(name).cloned().unwrap_or_else(new));
        self.routes.store(Arc::new(names.chain([""]).map(kept).collect()));
    }

    /// Returns the counters of all routes, sorted by name.
    pub(crate) fn routes(&self) -> Vec<(String, Arc<RouteCounts>)> {
        let mut all: Vec<_> = HashMap::clone(&self.routes.load()).into_iter().collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Counts an ended request or connection.
    pub(super) fn add(&self, tally: &Tally<'_>) {
        let count = |to: &AtomicU64, n: u64| to.fetch_add(n, Ordering::Relaxed);
        count(&self.to_client, tally.traffic.bytes_to_client);
        count(&self.to_server, tally.traffic.bytes_to_server);
        if tally.traffic.bytes_spliced > 0 {
            count(&self.spliced, tally.traffic.bytes_spliced);
        }
        if let Some(of_it) = self.ended.get(tally.end as usize) {
            count(of_it, 1);
        }
        let seconds = tally.duration.as_secs_f64();
        if !tally.is_request {
            return self.duration.observe(seconds);
        }
        let routes = self.routes.load();
        // A request of an earlier configuration may name a route that is gone.
        let Some(route) = routes.get(tally.route.unwrap_or_default()) else {
            return;
        };
        let class = usize::from(tally.status.unwrap_or_default() / 100);
        count(&route.classes[if class < CLASSES.len() { class } else { 0 }], 1);
        route.duration.observe(seconds);
        if let Some(time) = tally.first_byte {
            route.first_byte.observe(time.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_counted_that_the_configuration_has_and_no_others() {
        let counts = Counts::default();
        counts.keep_routes(["a", "b"].into_iter());
        let request = |route: &str, status| AccessRecord {
            route: Some(route.to_owned()),
            is_request: true,
            status,
            traffic: Traffic {
                bytes_to_client: 10,
                ..Traffic::default()
            },
            ..AccessRecord::new("web", "198.18.0.1:5".parse().unwrap())
        };
        for (route, status) in [
            ("a", Some(200)),
            ("a", Some(503)),
            ("x", Some(200)),
            ("b", None),
            ("a", Some(999)),
        ] {
            counts.add(&Tally::from(&request(route, status)));
        }
        let classes = || -> Vec<(String, Vec<u64>)> {
            let of_one =
                |of_it: &RouteCounts| of_it.classes.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            counts
                .routes()
                .iter()
                .map(|(name, of_it)| (name.clone(), of_one(of_it)))
                .collect()
        };
        let (a, b) = (vec![1, 0, 1, 0, 0, 1], vec![1, 0, 0, 0, 0, 0]);
        assert_eq!(
            classes(),
            [
                (String::new(), vec![0; 6]),
                ("a".into(), a.clone()),
                ("b".into(), b)
            ]
        );
        counts.keep_routes(["a"].into_iter());
        assert_eq!(classes(), [(String::new(), vec![0; 6]), ("a".into(), a)]);
        assert_eq!(counts.to_client.load(Ordering::Relaxed), 50);
        assert_eq!(counts.ended[End::Complete as usize].load(Ordering::Relaxed), 5);
    }

    #[test]
    fn ends_are_counted_in_their_order() {
        for (n, end) in End::VARIANTS.iter().enumerate() {
            assert_eq!(*end as usize, n);
        }
    }
}
