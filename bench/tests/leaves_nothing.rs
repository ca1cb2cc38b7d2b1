//! The demonstration leaves nothing behind when it is interrupted, or killed, in mid-transfer.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Part of the line that is printed when a transfer runs over a spliced flow.
const SPLICED: &str = "its two sockets are gone";

#[test]
fn an_interrupted_demonstration_leaves_nothing() {
    let (mut demo, mut lines) = start();
    let worker = child_of(demo.id()).unwrap();
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    lines.by_ref().for_each(drop);
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    assert_eq!(left_by(demo.id(), worker), Vec::<String>::new());
}

#[test]
fn a_demonstration_whose_worker_is_killed_leaves_nothing() {
    let (mut demo, mut lines) = start();
    let worker = child_of(demo.id()).unwrap();
    kill_process(worker, Signal::KILL).unwrap();
    lines.by_ref().for_each(drop);
    assert!(!demo.wait().unwrap().success());
    assert_eq!(left_by(demo.id(), worker), Vec::<String>::new());
}

/// Starts the demonstration, and waits until its transfer is spliced.
fn start() -> (Child, impl Iterator<Item = String>) {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(demo.stdout.take().unwrap());
    let mut lines = stdout.lines().map_while(Result::ok);
    let said: Vec<_> = lines
        .by_ref()
        .take_while(|line| !line.contains(SPLICED))
        .collect();
    if demo.try_wait().unwrap().is_some() {
        panic!("it ended too early (`cargo build -p longsplice` first): {said:#?}");
    }
    (demo, lines)
}

/// Returns the worker, which is the only child.
fn child_of(parent: u32) -> Option<Pid> {
    let stat_of = |pid: i32| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let is_child = |pid: &i32| {
        let stat = stat_of(*pid).unwrap_or_default();
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields.to_owned());
        fields.and_then(|fields| fields.split_whitespace().nth(1)?.parse().ok()) == Some(parent)
    };
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_child).and_then(Pid::from_raw)
}

/// Returns all objects whose names hold the number of the demonstration, or of its worker. (The other test has a
/// demonstration at the same time.)
fn left_by(demo: u32, worker: Pid) -> Vec<String> {
    let places = [
        ("/sys/fs/bpf", format!("demo-{demo}-")),
        ("/run/longsplice", format!("demo-{demo}-")),
        ("/run/netns", format!("-{}-", worker.as_raw_nonzero())),
    ];
    let mut left = Vec::new();
    for (place, mark) in places {
        let names = fs::read_dir(place).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.path().display().to_string());
        left.extend(names.filter(|name| name.contains(&mark)));
    }
    left
}
