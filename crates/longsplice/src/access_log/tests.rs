//! Tests the whole log, with its own files.

use std::{fs, io::Write, path::Path, time::Instant};

use super::*;
use crate::config::{AccessLogConfig, AccessLogFormat};

const PATIENCE: Duration = Duration::from_secs(10);

fn target(path: &Path) -> LogTarget {
    with_interval(path, None)
}

fn with_interval(path: &Path, flow_interval: Option<Duration>) -> LogTarget {
    LogTarget::open(&AccessLogConfig {
        path: Some(path.to_owned()),
        format: AccessLogFormat::Common,
        flow_interval,
    })
    .unwrap()
}

fn record(port: u16) -> AccessRecord {
    AccessRecord {
        traffic: Traffic {
            bytes_to_client: u64::from(port),
            ..Traffic::default()
        },
        ..AccessRecord::new("web", ([198, 18, 0, 1], port).into())
    }
    .ended(Instant::now(), End::Complete)
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap().lines().count()
}

#[test]
fn a_file_that_was_moved_away_is_left_at_the_order_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let log = AccessLog::default();
    log.write(record(1));
    assert!(!log.is_on(), "it has no reader");
    log.set(Some(target(&path)));
    log.write(record(2));
    log.flush(PATIENCE);
    fs::rename(&path, &old).unwrap();
    log.write(record(3));
    log.flush(PATIENCE);
    assert_eq!((lines(&old), path.exists()), (2, false));
    log.reopen();
    log.write(record(4));
    log.flush(PATIENCE);
    assert_eq!((lines(&old), lines(&path)), (2, 1));
    log.set(None);
    log.write(record(5));
    log.flush(PATIENCE);
    assert_eq!(lines(&path), 1);
    let counts = LogCounts {
        written: 3,
        dropped: 0,
        failed: 0,
    };
    assert_eq!(log.counts(), counts);
}

/// A full disk has left half a line. Each way to open the file is taken.
#[test]
fn a_line_that_is_torn_stays_alone_when_its_file_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let log = AccessLog::default();
    for (n, again) in [false, false, true].into_iter().enumerate() {
        let mut file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        file.write_all(b"half").unwrap();
        match again {
            true => log.reopen(),
            false => log.set(Some(target(&path))),
        }
        for port in [1, 2] {
            log.write(record(port));
        }
        log.flush(PATIENCE);
        let text = fs::read_to_string(&path).unwrap();
        let halves = text.lines().filter(|line| *line == "half").count();
        assert_eq!((halves, lines(&path)), (n + 1, 3 * (n + 1)), "{text}");
    }
}

/// Sets a target as each reload does: one that leaves the interval must not break a round of records off.
#[test]
fn only_another_interval_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let log = AccessLog::default();
    let mut interval = log.flow_interval();
    for (seconds, is_told) in [(60, true), (60, false), (1, true)] {
        let period = Some(Duration::from_secs(seconds));
        log.set(Some(with_interval(&dir.path().join("access.log"), period)));
        assert_eq!(interval.has_changed().unwrap(), is_told, "{seconds}");
        assert_eq!(*interval.borrow_and_update(), period);
    }
}

#[test]
fn a_disk_that_takes_nothing_stops_nobody() {
    // Every write to it fails with ENOSPC.
    let log = AccessLog::default();
    log.set(Some(target(Path::new("/dev/full"))));
    let many = 2 * QUEUE as u64;
    for port in 0..many {
        log.write(record(port as u16));
    }
    log.flush(PATIENCE);
    let counts = log.counts();
    assert_eq!((counts.written, counts.failed + counts.dropped), (0, many));
    assert!(counts.failed > 0);
}

#[test]
fn where_it_cannot_be_opened_the_reason_is_told() {
    let config = AccessLogConfig {
        path: Some("/proc/none/access.log".into()),
        format: AccessLogFormat::Json,
        flow_interval: None,
    };
    let error = LogTarget::open(&config).unwrap_err().to_string();
    assert!(
        error.contains("/proc/none/access.log") && error.contains("make its folder first"),
        "{error}"
    );
}
