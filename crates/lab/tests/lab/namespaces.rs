//! Namespaces and processes go away with their guards. Needs root.

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use crate::common::{eventually, namespace};
use longsplice_lab::cleanup;

fn exists(name: &str) -> bool {
    fs::exists(format!("/run/netns/{name}")).unwrap()
}

#[test]
fn a_namespace_is_visible_and_removed_on_drop() {
    let ns = namespace("lab-drop");
    let name = ns.name().to_owned();
    let list = Command::new("ip").args(["netns", "list"]).output().unwrap();
    assert!(String::from_utf8_lossy(&list.stdout).contains(&name));
    drop(ns);
    assert!(!exists(&name));
}

#[test]
fn a_namespace_is_removed_on_panic() {
    let mut name = String::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let ns = namespace("lab-panic");
        name = ns.name().to_owned();
        assert!(exists(&name));
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert!(!exists(&name));
}

#[test]
fn a_socket_made_inside_stays_inside() {
    let ns = namespace("lab-socket");
    let inside = ns.run(|| TcpListener::bind("127.0.0.1:0")).unwrap().unwrap();
    let addr = inside.local_addr().unwrap();
    // Outside, this address and port are free.
    drop(TcpListener::bind(addr).unwrap());
    let connected = ns.run(|| std::net::TcpStream::connect(addr)).unwrap();
    assert!(connected.is_ok(), "lo is up inside: {connected:?}");
}

#[test]
fn sysctls_are_those_of_the_namespace() {
    let (one, other) = (namespace("lab-sysctl"), namespace("lab-sysctl"));
    one.sysctl("net.ipv4.tcp_retries2", "3").unwrap();
    other.sysctl("net.ipv4.tcp_retries2", "4").unwrap();
    let file = "/proc/sys/net/ipv4/tcp_retries2";
    assert_eq!(one.run(|| fs::read_to_string(file)).unwrap().unwrap(), "3\n");
    assert!(one.sysctl("net.ipv4.no_such_thing", "1").is_err());
}

#[test]
fn a_command_runs_inside_and_sees_the_bpf_file_system_of_the_machine() {
    let ns = namespace("lab-command");
    let links = |namespace: &str| fs::read_link(format!("/proc/self/ns/{namespace}")).unwrap();
    let inside = ns
        .command("readlink")
        .args(["/proc/self/ns/net", "/proc/self/ns/mnt"])
        .output()
        .unwrap();
    let inside = String::from_utf8(inside.stdout).unwrap();
    let (net, mnt) = inside.trim().split_once('\n').unwrap();
    assert_ne!(net, links("net").to_str().unwrap());
    assert_eq!(mnt, links("mnt").to_str().unwrap());
}

#[test]
fn processes_inside_are_killed_with_the_namespace() {
    let ns = namespace("lab-kill");
    // The shell ends at once and leaves an orphan behind, which must not keep the pipe open.
    let shell = ns
        .command("sh")
        .args(["-c", "sleep 1000 >/dev/null 2>&1 & echo $!"])
        .output()
        .unwrap();
    let orphan: u32 = String::from_utf8(shell.stdout).unwrap().trim().parse().unwrap();
    let child = ns.command("sleep").arg("1000").spawn().unwrap();
    let is_sleep =
        |pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with("sleep"));
    // The shell may print its number before it has become `sleep`.
    eventually("the orphan", || is_sleep(orphan));
    drop(ns);
    assert!(!is_sleep(orphan));
    let status = child.wait(Duration::ZERO).unwrap().expect("the child has ended");
    assert!(!status.success());
}

#[test]
fn the_processor_time_of_threads_counts() {
    let ns = namespace("lab-cpu");
    let busy = ns
        .command("timeout")
        .args(["1.5", "sh", "-c", "while :; do :; done"])
        .spawn()
        .unwrap();
    assert_eq!(busy.wait(Duration::from_millis(50)).unwrap(), None);
    assert!(busy.wait(Duration::from_secs(10)).unwrap().is_some());
    assert!(
        busy.cpu_seconds().unwrap() < 0.2,
        "the time of timeout itself, not of its child"
    );
}

#[test]
fn leftovers_of_the_dead_are_swept_and_those_of_the_living_are_not() {
    let ns = namespace("lab-sweep");
    // A process id that is surely free: the largest one of the kernel is 2^22.
    let left = "lab-sweep-99999999-0";
    assert!(
        Command::new("ip")
            .args(["netns", "add", left])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(cleanup::sweep("lab-sweep").unwrap(), 1);
    assert!(!exists(left));
    assert!(exists(ns.name()));
}

#[test]
fn several_may_sweep_at_once() {
    let left: Vec<_> = (0..8).map(|i| format!("lab-broom-99999998-{i}")).collect();
    for name in &left {
        let added = Command::new("ip").args(["netns", "add", name]).status();
        assert!(added.unwrap().success());
    }
    let swept: usize = thread::scope(|scope| {
        let sweepers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| cleanup::sweep("lab-broom")))
            .collect();
        let swept = sweepers.into_iter().map(|one| one.join().unwrap().unwrap());
        swept.sum()
    });
    assert_eq!(swept, left.len());
    assert!(!left.iter().any(|name| exists(name)));
}

#[test]
fn many_at_once() {
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let ns = namespace("lab-many");
                assert!(ns.run(|| TcpListener::bind("127.0.0.1:80")).unwrap().is_ok());
            });
        }
    });
}
