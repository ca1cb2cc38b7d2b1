//! The program `longsplice-lab`. Needs root.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::one_at_a_time;
use longsplice_lab::Process;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn lab(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longsplice-lab"));
    command.args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the report of a run of `traffic`, and its status.
fn traffic(args: &[&str]) -> (Value, Option<i32>) {
    let output = lab(&[&["traffic", "--json"], args].concat());
    let report = serde_json::from_slice(&output.stdout);
    (
        report.unwrap_or_else(|error| panic!("{error}: {output:?}")),
        output.status.code(),
    )
}

#[test]
fn links_are_shown_as_they_are_meant() {
    let output = lab(&["links"]);
    assert!(output.status.success());
    let syntax = text(&output.stdout);
    for preset in longsplice_lab::link::PRESETS {
        assert!(
            syntax.contains(preset.name) && syntax.contains(preset.text),
            "{preset:?}"
        );
    }
    let output = lab(&["links", "rtt20,loss=1%,seed=3/wire,seed=4"]);
    assert_eq!(
        text(&output.stdout),
        "10ms,100Mbit,queue=256KiB,loss=1%,seed=3 / 0ms,seed=4\n  \
         to the server: 10ms,100Mbit,queue=256KiB,loss=1%,seed=3\n  \
         to the client: 0ms,seed=4\n"
    );
    let output = lab(&["links", "rtt21"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("\"rtt21\" is neither an option"),
        "{output:?}"
    );
}

#[test]
fn a_graph_is_brought_up_from_a_file() {
    let _turn = one_at_a_time();
    let file = std::env::temp_dir().join(format!("longsplice-test-graph-{}.toml", std::process::id()));
    let text = "hosts = [\"here\", \"far-away\"]\nrouters = [\"r\"]\nlinks = [\n\
                { between = [\"here\", \"r\"], link = \"1ms,100Mbit\" },\n\
                { between = [\"r\", \"far-away\"], link = \"2ms,100Mbit\" },\n]\n";
    fs::write(&file, text).unwrap();
    let program = env!("CARGO_BIN_EXE_longsplice-lab");
    let script = format!(
        "{program} exec --name lab-up-graph far-away -- {program} serve --port 7000 & \
         until ip netns exec $LAB_FAR_AWAY ss -tln | grep -q :7000; do sleep 0.05; done; \
         {program} exec --name lab-up-graph here -- {program} drive $LAB_FAR_AWAY_ADDR:7000 --bytes 50000; \
         status=$?; kill $!; exit $status"
    );
    let path = file.display().to_string();
    let output = lab(&[
        "up",
        "--name",
        "lab-up-graph",
        "--graph",
        &path,
        "--",
        "sh",
        "-c",
        &script,
    ]);
    fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{output:?}");
    let says = text_of_both(&output);
    assert!(says.contains("here to r: 1ms,100Mbit"), "{says}");
    assert!(says.contains("LAB_FAR_AWAY_ADDR=198.18.2.1"), "{says}");
    let missing = lab(&["up", "--graph", &path]);
    assert!(text_of_both(&missing).contains("cannot read"), "{missing:?}");
}

fn text_of_both(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

/// The kernel's netem delays packets, or its absence is said clearly.
#[test]
fn netem_is_used_where_the_kernel_has_it() {
    let _turn = one_at_a_time();
    let args = [
        "--links",
        "netem",
        "--client-link",
        "10ms,100Mbit",
        "--bytes",
        "20000",
    ];
    let output = lab(&[&["traffic", "--json"], &args[..]].concat());
    if text(&output.stderr).contains("this kernel has no netem") {
        assert_eq!(output.status.code(), Some(1));
        longsplice_lab::not_run("the kernel has no netem");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report["links"],
        serde_json::json!([]),
        "there is no report on netem's links"
    );
}

#[test]
fn traffic_is_reported_with_links_and_seeds() {
    let _turn = one_at_a_time();
    let (report, status) = traffic(&[
        "--name=lab-prog",
        "--client-link=10ms,100Mbit,loss=5%",
        "--server-link=veth",
        "--server-link=1ms,seed=5",
        "--seed=77",
        "--exchanges=20",
        "--reply=20000",
        "--attempts=5",
    ]);
    // On a busy machine every attempt may fail to count; then the status says so.
    let counts = report["verdict"]["counts"].as_bool().unwrap();
    assert_eq!(status, Some(if counts { 0 } else { 3 }), "{report:#}");
    let [first, second] = report["traffic"].as_array().unwrap().as_slice() else {
        panic!("{report:#}")
    };
    assert_eq!(
        (&first[0], &second[0]),
        (&"198.18.2.1:7000".into(), &"198.18.3.1:7000".into())
    );
    let client = &second[1]["connections"][0]["client"];
    assert_eq!(client["received"], 400_000);
    assert_eq!(client["exchanges"].as_array().unwrap().len(), 20);
    assert_eq!(report["links"][0]["name"], "client");
    assert_eq!(report["links"][0]["link"], "10ms,100Mbit,loss=5%,seed=77");
    assert_eq!(report["links"][1]["link"], "1ms,seed=5");
    assert!(
        report["links"][0]["to_client"]["lost"].as_u64() > Some(0),
        "{report:#}"
    );
    let node = |name: &str| {
        report["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|node| node[0] == name)
            .cloned()
    };
    let sent_again = node("server2").unwrap()[1]["sent_again"].as_i64();
    assert!(sent_again > Some(0), "{report:#}");
}

#[test]
fn the_text_says_the_same() {
    let _turn = one_at_a_time();
    let output = lab(&[
        "traffic",
        "--name=lab-text",
        "--client-link=1ms",
        "--bytes=1000",
        "--attempts=5",
    ]);
    let report = text(&output.stdout);
    let verdict = match output.status.code() {
        Some(0) => "the emulator was in time: this run counts",
        Some(3) => "the emulator was late: this run does not count",
        _ => panic!("{output:?}"),
    };
    for line in [
        "to 198.18.2.1:7000, seed 1: 1 of 1 connections ok, 2000 bytes compared",
        "link of the client: 1ms,seed=1\n  to the server: ",
        verdict,
    ] {
        assert!(report.contains(line), "{line}: {report}");
    }
}

#[test]
fn traffic_that_fails_is_told_by_the_status() {
    let (report, status) = traffic(&["--name=lab-fails", "--no-routing", "--stall=1"]);
    assert_eq!(status, Some(1));
    assert!(
        report["traffic"][0][1]["connections"][0]["client"]["failure"]["Connect"].is_string(),
        "{report:#}"
    );
}

#[test]
fn traffic_passes_a_command_in_the_forwarder() {
    // The command is the laboratory itself, which serves at the forwarder in place of a forwarding daemon.
    let program = env!("CARGO_BIN_EXE_longsplice-lab");
    let (report, _) = traffic(&[
        "--name=lab-front",
        "--front=8080",
        "--no-routing",
        "--",
        program,
        "serve",
        "--port=8080",
    ]);
    // Its reports are in another process, so the server's end is unknown here; the client's is in order.
    let connection = &report["traffic"][0][1]["connections"][0];
    assert_eq!(report["traffic"][0][0], "198.18.1.2:8080");
    assert_eq!(connection["client"]["failure"], Value::Null, "{report:#}");
    assert_eq!(connection["client"]["received"], 1 << 20);
}

#[test]
fn a_command_runs_in_a_node_of_a_topology_that_is_up() {
    let name = format!("lab-up-{}", std::process::id());
    // A leftover of a dead process must be skipped.
    let left = format!("{name}-server2-99999999-0");
    let netns = |what: &str| Command::new("ip").args(["netns", what, &left]).status().unwrap();
    assert!(netns("add").success());
    let up = up(&["--servers=2", "--name", &name]);
    let addrs = |args: &[&str]| {
        let output = lab(&[args, &["--", "ip", "-o", "-4", "addr"]].concat());
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    assert!(addrs(&["exec", "--name", &name, "server2"]).contains("198.18.3.1/24"));
    let full = format!("{name}-client-{}-0", up.pid());
    assert!(addrs(&["exec", &full]).contains("198.18.1.1/24"));
    let failed = lab(&["exec", "--name", &name, "client", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.status.code(), Some(7));
    let unknown = lab(&["exec", "--name", &name, "server3", "--", "true"]);
    assert!(
        text(&unknown.stderr).contains(&full),
        "what there is: {unknown:?}"
    );
    up.kill(Signal::TERM).unwrap();
    up.wait(Duration::from_secs(10)).unwrap().expect("it ends");
    assert!(!fs::exists(format!("/run/netns/{full}")).unwrap());
    assert!(
        netns("delete").success(),
        "it is not the topology's, and still there"
    );
}

/// Brings a topology up, and waits until it is up.
fn up(args: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longsplice-lab"));
    command.arg("up").args(args).stderr(Stdio::piped());
    let up = Process::spawn(&mut command).unwrap();
    let lines = BufReader::new(up.take_stderr().unwrap()).lines();
    let mut said: Vec<String> = lines
        .map_while(Result::ok)
        .take_while(|line| !line.starts_with("up, "))
        .collect();
    assert!(
        said.pop().is_some_and(|line| line.starts_with("LAB_")),
        "this test needs root: {said:?}"
    );
    up
}

#[test]
fn what_a_killed_run_left_is_cleaned() {
    let up = up(&["--name=lab-killed", "--client-link=1ms"]);
    let left = format!("/run/netns/lab-killed-server-{}-2", up.pid());
    // While it lives, `clean` removes nothing of it.
    lab(&["clean", "lab-killed"]);
    assert!(fs::exists(&left).unwrap());
    up.kill(Signal::KILL).unwrap();
    up.wait(None).unwrap();
    assert!(fs::exists(&left).unwrap());
    let output = lab(&["clean", "lab-killed"]);
    assert_eq!(text(&output.stderr), "3 namespaces removed\n");
    assert!(!fs::exists(&left).unwrap());
}

/// A thread without CAP_SYS_NICE gets no real-time priority.
#[test]
fn an_emulator_without_real_time_priority_says_so() {
    let args = ["--bounding-set=-sys_nice", "--inh-caps=-sys_nice"];
    let lab = [
        env!("CARGO_BIN_EXE_longsplice-lab"),
        "up",
        "--name=lab-nice",
        "--client-link=1ms",
        "--",
        "true",
    ];
    let output = Command::new("setpriv").args(args).args(lab).output().unwrap();
    let told = "the emulator runs without SCHED_FIFO";
    assert!(text(&output.stderr).contains(told), "{output:?}");
    assert!(text(&output.stdout).contains(told), "{output:?}");
}

/// A stopped emulator neither takes in nor delivers packets: those that pass then are late, and the run does not count.
/// On a link without delay no packet is ever due; there, the wait at the device must be noticed.
#[test]
fn a_late_run_does_not_count() {
    let _turn = one_at_a_time();
    for link in ["20ms", "wire"] {
        let report = stopped_for_a_while(link);
        assert_eq!(report["verdict"]["counts"], false, "{report:#}");
        let to_server = &report["links"][0]["to_server"];
        assert!(to_server["very_late"].as_u64() > Some(0), "{report:#}");
        let longest = to_server["lateness"]["max_ns"].as_u64();
        assert!(longest > Some(40_000_000), "{report:#}");
    }
}

/// Returns the sequence number of an answer that ping prints.
fn sequence(line: &str) -> Option<u32> {
    line.split_once("icmp_seq=")?.1.split_once(' ')?.0.parse().ok()
}

/// Returns the report on some hundred packets each way, in the middle of which the emulator was stopped for 60 ms.
fn stopped_for_a_while(link: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longsplice-lab"));
    command.args(["up", "--name=lab-late", "--json", "--client-link", link, "--"]);
    // Keep ping running as long as needed: a busy machine may lose all of the first half second.
    let ping = "echo ping=$$; exec nsenter --net=/run/netns/$LAB_CLIENT ping -i 0.002 -w 20 $LAB_SERVER_ADDR";
    command.args(["sh", "-c", ping]).stdout(Stdio::piped());
    let up = Process::spawn(&mut command).unwrap();
    let mut output = BufReader::new(up.take_stdout().unwrap());
    let mut lines = output.by_ref().lines().map(Result::unwrap);
    let ping = lines.find_map(|line| line.strip_prefix("ping=")?.parse().ok());
    let ping = ping.and_then(Pid::from_raw).expect("this test needs root");
    let mut answer = |least: u32| {
        let mut answered = lines.by_ref().filter_map(|line| sequence(&line));
        let found = answered.find(|&seq| seq >= least);
        found.expect("pings should be answered")
    };
    let before = answer(20);
    up.kill(Signal::STOP).unwrap();
    // This test is about time itself.
    std::thread::sleep(Duration::from_millis(60));
    up.kill(Signal::CONT).unwrap();
    answer(before + 100);
    kill_process(ping, Signal::INT).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    serde_json::from_str(&rest[rest.find("\n{").unwrap()..]).unwrap()
}
