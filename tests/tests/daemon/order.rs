//! Programs that stand before ours at tc, as a daemon and `doctor` see them without CAP_SYS_ADMIN.

use std::{fs, net::SocketAddr};

use longsplice_lab::Namespace;
use longsplice_tests::{Config, Daemon, SOON, binary, eventually, soon, veth_line};
use rustix::process::Signal;

use crate::unit::confine;

fn relay(front: u16) -> Daemon {
    let target = SocketAddr::from(([198, 18, 2, 1], 7000));
    let front = SocketAddr::from(([0, 0, 0, 0], front));
    Daemon::of(&Config::new().listener(front, target, "never", "never"))
}

/// Runs `doctor` in a namespace, through another program, and returns its findings about the order, each behind its verdict.
fn doctor(namespace: &Namespace, under: &[&str]) -> Vec<String> {
    let words = [under, &[binary().to_str().unwrap(), "doctor", "--json"]].concat();
    let report = tempfile::NamedTempFile::new().unwrap();
    let run = namespace.command(words[0]).args(&words[1..]);
    let process = run.log_to(report.path()).unwrap().spawn().unwrap();
    process.wait(SOON).unwrap().expect("it ends");
    let text = fs::read_to_string(report.path()).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).expect(&text);
    let findings = report["findings"].as_array().unwrap().iter();
    let of_order = findings.filter(|finding| finding["check"] == "order");
    let tell = |f: &serde_json::Value| {
        format!(
            "{} {}",
            f["verdict"].as_str().unwrap(),
            f["text"].as_str().unwrap()
        )
    };
    of_order.map(tell).collect()
}

/// The links of an instance whose pins are gone are another owner's: only a process that may open programs could tell.
#[test]
fn programs_before_ours_are_seen_without_cap_sys_admin() {
    let confine = confine();
    let confine: Vec<&str> = confine.iter().map(String::as_str).collect();
    let net = veth_line("order", Default::default());
    let mut daemon = relay(8080).under(&confine);
    daemon.start(&net.forwarder);
    let mut other = relay(8081);
    other.start(&net.forwarder);
    let good = ["good no program of others stands before ours"];
    assert_eq!(doctor(&net.forwarder, &confine), good);
    other.signal(Signal::STOP);
    fs::remove_dir_all(other.pins()).unwrap();
    let status = daemon.wait_status("others to be before ours", |s| !s.health.before_ours.is_empty());
    let lines = status.health.before_ours;
    assert!(
        lines.iter().all(|line| line.contains(" egress: ? (program ")),
        "{lines:?}"
    );
    assert!(
        lines.iter().all(|line| line.contains(", ingress: ? (program ")),
        "{lines:?}"
    );
    assert_eq!(lines.len(), status.health.interfaces.len(), "{lines:?}");
    let found = doctor(&net.forwarder, &confine);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("notice programs of others stand before ours"),
        "{found:?}"
    );
    assert!(
        lines.iter().all(|line| found[0].contains(line)),
        "{found:?} {lines:?}"
    );
    other.signal(Signal::CONT);
    // Its pins tell now that they are an instance's.
    daemon.wait_status("none to be before ours", |s| s.health.before_ours.is_empty());
    assert_eq!(doctor(&net.forwarder, &confine), good);
    soon("the log to tell the end", || {
        daemon
            .log()
            .contains("no other program stands before ours any more")
    });
    let told = daemon
        .log()
        .matches("other programs were attached before ours")
        .count();
    assert_eq!(told, lines.len(), "{}", daemon.log());
}

#[test]
fn the_order_of_filters_is_told_to_be_unseen() {
    let net = veth_line("order-clsact", Default::default());
    let mut daemon = relay(8080).under(&["env", "LONGSPLICE_ATTACH=clsact"]);
    daemon.start(&net.forwarder);
    let found = eventually("an interface to be watched", SOON, || {
        let found = doctor(&net.forwarder, &[]);
        (!found.is_empty()).then_some(found)
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("notice whether programs of others stand before ours cannot be seen: "),
        "{found:?}"
    );
    assert!(found[0].contains("attached as filters"), "{found:?}");
}
