//! Unit of packaging/: the daemon works without everything that the unit takes away.

use std::net::SocketAddr;

use longsplice_tests::{Config, Daemon, Pair, Policy, veth_line};

const UNIT: &str = include_str!("../../../packaging/longsplice.service");

/// Returns the words of all lines of the unit with this key.
fn words(key: &str) -> Vec<&'static str> {
    let line = |line: &'static str| line.strip_prefix(key)?.strip_prefix('=');
    UNIT.lines()
        .filter_map(line)
        .flat_map(str::split_whitespace)
        .collect()
}

/// Returns the words that make the mounts and drop the privileges as systemd does for the unit, and then run the rest
/// of their arguments. Two features of systemd itself are left out: another user's view of /proc, and the filter of
/// system calls.
pub(crate) fn confine() -> [String; 6] {
    let writable = words("ReadWritePaths");
    let mounts: Vec<String> = writable
        .iter()
        .map(|path| path.trim_start_matches('-'))
        .map(|path| format!("[ ! -e {path} ] || mount --bind {path} {path}"))
        .collect();
    let caps: Vec<String> = words("CapabilityBoundingSet")
        .iter()
        .map(|cap| format!("+{}", cap.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let caps = format!("-all,{}", caps.join(","));
    let script = format!(
        "set -e; mount --make-rprivate /; mount --rbind /sys /sys; mount --bind /proc/sys /proc/sys; {}; \
         mount -o remount,bind,ro /proc/sys; mount -o remount,bind,ro /sys; \
         if [ -w /proc/sys/kernel/core_pattern ]; then exit 9; fi; \
         exec setpriv --no-new-privs --bounding-set={caps} --inh-caps={caps} --ambient-caps={caps} -- \"$@\"",
        mounts.join("; ")
    );
    ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned)
}

#[test]
fn a_daemon_that_is_confined_as_the_unit_says_splices_and_is_followed_by_another() {
    let confine = confine();
    let confine: Vec<&str> = confine.iter().map(String::as_str).collect();
    let net = veth_line("unit", Default::default());
    let target = SocketAddr::from((net.server_addr, 7000));
    let listener = net
        .server
        .run(|| std::net::TcpListener::bind(target))
        .unwrap()
        .unwrap();
    let front = SocketAddr::from((net.family().unspecified(), 8080));
    let Policy { splice, detach } = Policy::DETACHED;
    let config = Config::new().listener(front, target, splice, detach);
    let mut daemon = Daemon::of(&config).under(&confine);
    daemon.start(&net.forwarder);
    let to = (net.forwarder_client_addr, 8080).into();
    let mut pair = Pair::connect(&net.client, to, &listener);
    daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(1 << 20);
    // The pins outlive the daemon, and its successor may change them.
    daemon.kill();
    daemon.start(&net.forwarder);
    pair.exchange(1 << 20);
    let flow = daemon.wait_state(pair.client_port(), &["detached"]);
    daemon.unsplice(flow.id).unwrap();
    daemon.wait_state(pair.client_port(), &["relay"]);
    pair.exchange(1 << 20);
    pair.close();
    daemon.wait_reaped();
    let log = daemon.log();
    assert!(
        !log.contains("ermission denied") && !log.contains("Read-only"),
        "{log}"
    );
}

#[test]
fn the_unit_leaves_no_way_around() {
    for line in [
        "ProtectKernelTunables=yes",
        "ProtectSystem=strict",
        "NoNewPrivileges=yes",
        "SystemCallArchitectures=native",
    ] {
        assert!(UNIT.lines().any(|l| l == line), "{line}");
    }
    for cap in words("CapabilityBoundingSet") {
        let is_known = ["BPF", "PERFMON", "NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE"];
        assert!(is_known.contains(&cap.trim_start_matches("CAP_")), "{cap}");
    }
    for path in words("ReadWritePaths") {
        assert!(
            path == "/sys/fs/bpf" || path.trim_start_matches('-').starts_with("/proc/sys/net/ipv"),
            "{path}"
        );
    }
}
