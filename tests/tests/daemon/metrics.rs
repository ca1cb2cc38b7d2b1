//! Metrics and probes for Prometheus and orchestrators.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use longsplice_tests::{Bed, Policy, SOON, eventually, soon};
use openmetrics_parser::{MetricNumber, OpenMetricsType, OpenMetricsValue, openmetrics::parse_openmetrics};
use socket2::SockRef;

type Exposition = openmetrics_parser::MetricsExposition<OpenMetricsType, OpenMetricsValue>;

const PORT: u16 = 9090;

fn bed(name: &str, policy: Policy<'_>) -> Bed {
    Bed::with(name, Default::default(), policy, |c| {
        c.with("name = \"web\"")
            .set(&format!("[metrics]\nlisten = \"127.0.0.1:{PORT}\""))
    })
}

/// Returns the status and body of the answer.
fn get(bed: &Bed, path: &str) -> Option<(u16, String)> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], PORT)))?;
        stream.set_read_timeout(Some(SOON))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: metrics\r\nconnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = bed.net.forwarder.run(ask).unwrap().ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

fn scrape(bed: &Bed) -> Exposition {
    let (status, body) = get(bed, "/metrics").unwrap();
    assert_eq!(status, 200, "{body}");
    parse_openmetrics(&body).unwrap_or_else(|e| panic!("{e}:\n{body}"))
}

/// Returns the value of the sample that has these labels.
fn value(all: &Exposition, family: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let family = all.families.get(family)?;
    let names = family.get_label_names();
    let sample = family.iter_samples().find(|sample| {
        let found = sample.get_labelset().unwrap();
        labels
            .iter()
            .all(|(key, value)| names.iter().any(|n| n == key) && found.get_label_value(key) == Some(value))
    })?;
    let number = match &sample.value {
        OpenMetricsValue::Counter(counter) => &counter.value,
        OpenMetricsValue::Gauge(number) => number,
        other => panic!("{other:?}"),
    };
    Some(match number {
        MetricNumber::Int(n) => *n as f64,
        MetricNumber::Float(n) => *n,
    })
}

#[test]
fn a_real_parser_reads_them_and_they_count() {
    let bed = bed("metrics-count", Policy::DETACHED);
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(100_000);
    // Its handler goes a moment after its sockets.
    bed.daemon
        .wait_status("it to be left", |status| status.listeners[0].open == 0);
    let all = scrape(&bed);
    let web = [("listener", "web")];
    assert_eq!(value(&all, "longsplice_connections_accepted", &web), Some(1.0));
    assert_eq!(
        value(&all, "longsplice_connections_open", &web),
        Some(0.0),
        "detached"
    );
    assert_eq!(value(&all, "longsplice_splices", &[]), Some(1.0));
    assert_eq!(value(&all, "longsplice_flows", &[]), Some(1.0));
    assert_eq!(value(&all, "longsplice_splice_available", &[]), Some(1.0));
    assert_eq!(value(&all, "longsplice_config_generation", &[]), Some(1.0));
    let segments = value(&all, "longsplice_segments", &[("verdict", "forwarded")]);
    assert!(segments.unwrap_or(0.0) > 0.0, "{segments:?}");
    let server = [("upstream", "web"), ("server", &*bed.target().to_string())];
    assert_eq!(value(&all, "longsplice_server_connects", &server), Some(1.0));
    pair.close();
    bed.daemon.reload().unwrap();
    let all = scrape(&bed);
    assert_eq!(value(&all, "longsplice_config_generation", &[]), Some(2.0));
    assert_eq!(
        value(&all, "longsplice_connections_accepted", &web),
        Some(1.0),
        "it goes on counting"
    );
}

#[test]
fn what_has_ended_is_counted_by_how() {
    let bed = bed("metrics-ends", Policy::ON_DEMAND);
    let mut pair = bed.connect();
    pair.exchange_unevenly(1000, 2000);
    pair.close();
    let ended = [("listener", "web"), ("end", "complete")];
    soon("the end", || {
        value(&scrape(&bed), "longsplice_connections_ended", &ended) == Some(1.0)
    });
    let all = scrape(&bed);
    for (to, bytes) in [("server", 1000.0), ("client", 2000.0)] {
        let labels = [("listener", "web"), ("to", to)];
        assert_eq!(value(&all, "longsplice_payload_bytes", &labels), Some(bytes));
    }
}

#[test]
fn at_a_shutdown_it_is_alive_and_not_ready() {
    let mut bed = bed("metrics-ready", Policy::ON_DEMAND);
    for (path, status) in [("/health", 200), ("/ready", 200), ("/", 404)] {
        assert_eq!(get(&bed, path).unwrap().0, status, "{path}");
    }
    let mut pair = bed.connect();
    pair.exchange(1000);
    bed.daemon.terminate();
    let says = eventually("it to be unready", SOON, || {
        get(&bed, "/ready").filter(|(status, _)| *status == 503)
    });
    assert!(says.1.contains("shutting down"), "{says:?}");
    assert_eq!(get(&bed, "/health").unwrap().0, 200);
    pair.exchange(1000);
    pair.close();
    assert_eq!(bed.daemon.join(), Some(0));
}

/// A predecessor that still relays leaves the address to its successor, and a connection of a scraper ends with its next
/// answer.
#[test]
fn a_successor_answers_alone() {
    let mut bed = bed("metrics-next", Policy::ON_DEMAND);
    let mut pair = bed.connect();
    pair.exchange(1000);
    let connect = || TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], PORT)));
    let mut kept = bed.net.forwarder.run(connect).unwrap().unwrap();
    kept.set_read_timeout(Some(SOON)).unwrap();
    kept.write_all(b"GET /ready HTTP/1.1\r\nhost: metrics\r\n\r\n")
        .unwrap();
    let answered = kept.read(&mut [0; 4096]).unwrap();
    assert!(answered > 0);
    bed.daemon.replace(&bed.net.forwarder);
    let started = |bed: &Bed| {
        value(
            &scrape(bed),
            "longsplice_connections_accepted",
            &[("listener", "web")],
        )
    };
    for _ in 0..20 {
        assert_eq!(get(&bed, "/ready").unwrap(), (200, "ready\n".to_owned()));
        assert_eq!(started(&bed), Some(0.0), "its own counters");
    }
    let mut rest = Vec::new();
    kept.read_to_end(&mut rest).unwrap();
    pair.exchange(1000);
    pair.close();
    assert_eq!(bed.daemon.join_replaced(), [Some(0)]);
}

#[test]
fn the_address_can_change_while_it_runs() {
    let bed = bed("metrics-moves", Policy::ON_DEMAND);
    let file = bed.daemon.dir().join("longsplice.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&PORT.to_string(), "9091")).unwrap();
    bed.daemon.reload().unwrap();
    soon("the old one to be gone", || get(&bed, "/health").is_none());
    std::fs::write(&file, text).unwrap();
    bed.daemon.reload().unwrap();
    assert_eq!(get(&bed, "/health").unwrap().0, 200);
}

/// Number of connections that are served at once.
const PLACES: usize = 32;

#[test]
fn clients_that_do_not_read_leave_room_for_probes() {
    let bed = bed("metrics-unread", Policy::ON_DEMAND);
    // Their answers are more than all buffers on the way.
    let request = "GET /metrics HTTP/1.1\r\nhost: metrics\r\n\r\n".repeat(2000);
    let silent: Vec<_> = (0..PLACES)
        .map(|_| {
            let ask = || TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], PORT)));
            let mut stream = bed.net.forwarder.run(ask).unwrap().unwrap();
            SockRef::from(&stream).set_recv_buffer_size(4096).unwrap();
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    assert_eq!(get(&bed, "/health").unwrap().0, 200);
    drop(silent);
}
