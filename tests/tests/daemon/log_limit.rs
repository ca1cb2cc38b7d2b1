//! Log lines that clients provoke are limited, and suppressed ones are counted.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use longsplice_tests::{Config, Daemon, Pair, SOON, soon, veth_line};

const CLIENTS: usize = 400;

/// Connects again and again to a listener whose target refuses.
fn provoke(namespace: &longsplice_lab::Namespace, front: SocketAddr) {
    for _ in 0..CLIENTS {
        let mut client = namespace.run(|| TcpStream::connect(front)).unwrap().unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        client.read(&mut [0]).unwrap_err();
    }
}

/// Returns the number of lines of the log that contain this text.
fn lines(log: &str, text: &str) -> usize {
    log.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn a_flood_of_refused_connections_leaves_a_burst_and_a_count() {
    let net = veth_line("log-limit", Default::default());
    let front = (net.forwarder_client_addr, 8080).into();
    let target = (net.server_addr, 7000).into();
    let config = Config::new().listener(front, target, "auto", "now");
    let mut daemon = Daemon::of(&config);
    daemon.start(&net.forwarder);
    provoke(&net.client, front);
    // A client is reset before its line is written.
    daemon.wait_status("all to be counted", |s| {
        s.listeners[0].refused_total == CLIENTS as u64
    });
    daemon.terminate();
    assert_eq!(daemon.join(), Some(0));
    let log = daemon.log();
    let written = lines(&log, "connection refused listener");
    // The limit is a hundred at once, and ten for each second that it took.
    assert!((100..CLIENTS).contains(&written), "{written} of {CLIENTS}: {log}");
    // A line with the number of suppressed ones may come every ten seconds, and one comes at the end.
    let told = |line: &str| -> Option<usize> {
        let (_, rest) = line.split_once("suppressed (log.lines_per_second) lines=")?;
        rest.split(' ').next()?.parse().ok()
    };
    let suppressed: usize = log.lines().filter_map(told).sum();
    assert_eq!(written + suppressed, CLIENTS, "{log}");

    // With the limit switched off, all lines are written.
    daemon.reconfigure(&config.set("[log]\nlines_per_second = 0"));
    daemon.start(&net.forwarder);
    provoke(&net.client, front);
    soon("all lines", || {
        lines(&daemon.log(), "connection refused listener") == CLIENTS
    });
}

/// Returns the number of lines that were not written, from the metrics.
fn not_written(namespace: &longsplice_lab::Namespace, metrics: SocketAddr) -> Option<f64> {
    let mut stream = namespace.run(|| TcpStream::connect(metrics)).unwrap().ok()?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    let ask = b"GET /metrics HTTP/1.1\r\nhost: metrics\r\nconnection: close\r\n\r\n";
    stream.write_all(ask).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let sample = answer
        .lines()
        .find(|line| line.contains("log_lines_suppressed_total "))?;
    sample.rsplit(' ').next()?.parse().ok()
}

/// Redirects standard error with a shell, to where no line can be written; all else goes on.
fn all_else_goes_on(name: &str, redirected_to: &str) {
    let net = veth_line(name, Default::default());
    let front = (net.forwarder_client_addr, 8080).into();
    let target: SocketAddr = (net.server_addr, 7000).into();
    let listener = net.server.run(|| TcpListener::bind(target)).unwrap().unwrap();
    let metrics: SocketAddr = ([127, 0, 0, 1], 9090).into();
    let config = Config::new()
        .listener(front, target, "now", "now")
        .set(&format!("[metrics]\nlisten = \"{metrics}\""));
    let shell = format!("exec \"$0\" \"$@\" 2> {redirected_to}");
    let mut daemon = Daemon::of(&config).under(&["bash", "-c", &shell]);
    daemon.start(&net.forwarder);
    soon("lines that are counted", || {
        let mut pair = Pair::connect(&net.client, front, &listener);
        pair.exchange(10_000);
        pair.close();
        not_written(&net.forwarder, metrics).is_some_and(|lines| lines > 0.0)
    });
    daemon.wait_reaped();
    daemon.terminate();
    assert_eq!(daemon.join(), Some(0));
}

#[test]
fn a_full_disk_behind_standard_error_ends_nothing() {
    all_else_goes_on("log-full", "/dev/full");
}

#[test]
fn a_reader_of_standard_error_that_goes_away_ends_nothing() {
    // It takes the first line only.
    all_else_goes_on("log-broken", ">(head -n 1 > /dev/null)");
}
