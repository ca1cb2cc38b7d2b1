//! The program removes everything when it is interrupted. Needs root.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use longsplice_lab::Process;
use rustix::process::Signal;

/// Starts a topology around a long sleep, interrupts it, and returns its status and its namespaces.
fn interrupt(name: &str, options: &[&str], signal: Signal) -> (Option<i32>, Vec<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longsplice-lab"));
    command.args(["up", "--name", name]).args(options);
    command.args(["--", "sh", "-c", "echo ready; sleep 1000"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let lab = Process::spawn(&mut command).unwrap();
    let mut ready = String::new();
    BufReader::new(lab.take_stdout().unwrap())
        .read_line(&mut ready)
        .unwrap();
    let mut lines = BufReader::new(lab.take_stderr().unwrap()).lines();
    let first = lines.next().expect("this test needs root").unwrap();
    assert_eq!(ready, "ready\n", "this test needs root: {first}");
    let mut names = vec![first];
    names.extend((0..2).map(|_| lines.next().unwrap().unwrap()));
    let names: Vec<_> = names
        .iter()
        .map(|line| line.split_once('=').unwrap().1.to_owned())
        .collect();
    assert!(names.iter().all(|name| exists(name)), "{names:?}");
    lab.kill(signal).unwrap();
    let status = lab.wait(Duration::from_secs(10)).unwrap().expect("it ends");
    (status.code(), names)
}

fn exists(name: &str) -> bool {
    std::fs::exists(format!("/run/netns/{name}")).unwrap()
}

#[test]
fn by_the_keyboard() {
    let (code, names) = interrupt("lab-int", &[], Signal::INT);
    assert_eq!(code, Some(130));
    assert!(!names.iter().any(|name| exists(name)), "{names:?}");
}

#[test]
fn by_a_supervisor_with_emulated_links() {
    let (code, names) = interrupt(
        "lab-term",
        &["--client-link=1ms", "--server-link=1ms"],
        Signal::TERM,
    );
    assert_eq!(code, Some(143));
    assert!(!names.iter().any(|name| exists(name)), "{names:?}");
}
