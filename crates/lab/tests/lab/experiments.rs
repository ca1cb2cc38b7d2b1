//! The experiments of the program `longsplice-lab`. Those that run need root, and the program `longsplice`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::one_at_a_time;
use longsplice_lab::Process;
use rustix::process::Signal;
use serde_json::Value;

/// Switch of the kernel's clock for eBPF programs.
const CLOCK: &str = "/proc/sys/kernel/bpf_stats_enabled";

fn lab(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longsplice-lab"));
    command.args(args);
    if let Some(path) = std::env::var_os("LONGSPLICE_BIN")
        && args.first() == Some(&"run")
    {
        command.arg("--longsplice").arg(path);
    }
    command
}

/// Folder of results, removed when it is dropped.
struct Results(PathBuf);

impl Results {
    fn new() -> Results {
        let name = format!("longsplice-test-figures-{}", std::process::id());
        Results(std::env::temp_dir().join(name))
    }

    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(Path::new(&self.0).join(file)).unwrap()
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_list_names_every_experiment() {
    let output = lab(&["list"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for name in [
        "fig4",
        "fig7",
        "fig11",
        "fig12",
        "utilisation",
        "fig14",
        "fig15",
        "table1",
        "wan",
        "queue",
        "return",
        "share",
        "convergence",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
    }
    let unknown = lab(&["run", "fig1"]);
    assert_eq!(unknown.status.code(), Some(1));
    let says = String::from_utf8(unknown.stderr).unwrap();
    assert!(says.contains("there is no experiment fig1"), "{says}");
}

/// Transfers of three sizes arrive through a router and through an accelerator, which makes the largest one faster.
#[test]
fn a_quick_experiment_leaves_data_and_pictures() {
    let _turn = one_at_a_time();
    let results = Results::new();
    let folder = results.0.display().to_string();
    let output = lab(&[
        "run",
        "fig5",
        "--points=quick",
        "--attempts=1",
        "--seed=3",
        "--out",
        &folder,
    ]);
    // On a busy machine a point may not count; then the status says so.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    let figure: Value = serde_json::from_slice(&results.read("fig5.json")).unwrap();
    let points = figure["series"][0]["points"].as_array().unwrap();
    assert_eq!((points.len(), &figure["seed"]), (3, &3.into()));
    for point in points {
        for run in point["runs"].as_array().unwrap() {
            for flow in run["flows"].as_array().unwrap() {
                assert_eq!(flow["failure"], Value::Null, "{point:#}");
            }
            for node in run["accelerators"].as_array().unwrap() {
                assert_eq!(node["taken_over_total"], 1, "{point:#}");
            }
        }
        let against = point["against"].as_array().unwrap();
        assert_eq!(point["counts"], against.is_empty());
        assert!(
            against
                .iter()
                .all(|reason| reason.as_str().unwrap().contains("late")),
            "{point:#}"
        );
    }
    let gain = points[2]["y"].as_f64().unwrap();
    assert!(gain > 1.2, "{gain}");
    let table = String::from_utf8(results.read("fig5.csv")).unwrap();
    assert!(table.contains("fig5,paper 004,paper,4000,1.5,true"), "{table}");
    assert!(results.read("fig5.svg").ends_with(b"</svg>\n"));
    assert!(results.read("fig5.png").starts_with(b"\x89PNG"));
}

/// Starts an experiment, and waits until its first daemon serves and the clock of eBPF programs is on.
fn measuring(results: &Results) -> Process {
    let folder = results.0.display().to_string();
    let args = [
        "run",
        "table1",
        "--points=quick",
        "--attempts=1",
        "--out",
        &folder,
    ];
    let lab = Process::spawn(command(&args).stderr(Stdio::null())).unwrap();
    let (start, clock) = (Instant::now(), format!("longsplice-lab-{}.clock", lab.pid()));
    while !left_by(&lab).contains(&clock) || fs::read(CLOCK).unwrap() != b"1\n" {
        assert!(
            lab.is_running(),
            "this test needs root, and the program longsplice"
        );
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", left_by(&lab));
        // Poll, because no event announces it.
        thread::sleep(Duration::from_millis(5));
    }
    let left = left_by(&lab);
    let pins = format!("longsplice-lab-{}-0", lab.pid());
    for kind in [&pins, ".sock", ".log", ".lock"] {
        assert!(left.iter().any(|name| name.ends_with(kind)), "{kind}: {left:?}");
    }
    lab
}

/// Returns the names of pins, files and namespaces of a run.
fn left_by(lab: &Process) -> Vec<String> {
    let marks = [".", "-"].map(|end| format!("-{}{end}", lab.pid()));
    let temporary = std::env::temp_dir();
    let folders = ["/sys/fs/bpf", "/run", "/run/longsplice", "/run/netns"].map(Path::new);
    let entries = folders
        .into_iter()
        .chain([&*temporary])
        .flat_map(fs::read_dir)
        .flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| marks.iter().any(|mark| name.contains(mark)))
        .collect()
}

#[test]
fn an_interrupted_experiment_leaves_nothing() {
    let _turn = one_at_a_time();
    let (results, clock) = (Results::new(), fs::read(CLOCK).unwrap());
    let run = measuring(&results);
    run.kill(Signal::TERM).unwrap();
    let status = run.wait(Duration::from_secs(20)).unwrap().expect("it ends");
    assert_eq!(status.code(), Some(143));
    assert_eq!(left_by(&run), [""; 0]);
    assert_eq!(fs::read(CLOCK).unwrap(), clock);
}

#[test]
fn what_a_killed_experiment_left_is_removed_by_the_next_run_and_cleaned() {
    let _turn = one_at_a_time();
    let (results, clock) = (Results::new(), fs::read(CLOCK).unwrap());
    // A run that has no place for its results ends at once.
    for next in [&["clean", "lab-exp"][..], &["run", "fig5", "--out", "/proc/none"]] {
        let run = measuring(&results);
        run.kill(Signal::KILL).unwrap();
        run.wait(None).unwrap();
        // A daemon that was killed as it began leaves a directory under another name.
        let begun = format!("/sys/fs/bpf/longsplice-lab-{0}-1~{0}-0", run.pid());
        fs::create_dir(begun).unwrap();
        let output = lab(next);
        let says = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() || says.contains("cannot make /proc/none"),
            "{says}"
        );
        assert_eq!(left_by(&run), [""; 0], "{next:?}");
        assert_eq!(fs::read(CLOCK).unwrap(), clock, "{next:?}");
    }
}
