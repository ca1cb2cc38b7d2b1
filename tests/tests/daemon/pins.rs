//! Pins that vanish under a running daemon, and unsuitable folders for pins: every connection goes on, and the daemon
//! reports it.

use std::{
    fs::{self, Permissions},
    io,
    net::SocketAddr,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use longsplice_tests::{Bed, Config, Daemon, Pair, Policy, SOON, eventually, soon, veth_line};

const BYTES: u64 = 200_000;

/// Pins of all maps.
const MAPS: [&str; 6] = ["buckets", "events", "flows", "meta", "slots", "verdicts"];

/// Starts a listener at 8080 that detaches, and one at 8081 that parks.
fn bed(name: &str) -> Bed {
    Bed::with(name, Default::default(), Policy::DETACHED, |config| {
        let target = SocketAddr::from(([198, 18, 2, 1], 7000));
        config.listener(([0, 0, 0, 0], 8081).into(), target, "now", "never")
    })
}

fn dormant(bed: &Bed) -> Pair {
    let front = (bed.net.forwarder_client_addr, 8081).into();
    let pair = Pair::connect(&bed.net.client, front, &bed.listener);
    bed.daemon.wait_state(pair.client_port(), &["dormant"]);
    pair
}

/// Returns the names of all pins.
fn pins(folder: &Path) -> Vec<String> {
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|e| e.file_name().into_string().unwrap()).collect()
    };
    let mut all: Vec<String> = names(folder);
    all.extend::<Vec<String>>(names(&folder.join("links")));
    all.sort();
    all
}

fn removed_pins_are_put_back(bed: &mut Bed) {
    let mut pairs = [bed.connect_spliced("detached"), dormant(bed)];
    let folder = bed.daemon.pins();
    let before = pins(&folder);
    assert!(before.len() > 10, "{before:?}");
    // The daemon may put some back meanwhile.
    eventually("the pins to be removed", SOON, || {
        fs::remove_dir_all(&folder).ok()
    });
    for pair in &mut pairs {
        pair.exchange(BYTES);
    }
    soon("the pins to be put back", || pins(&folder) == before);
    // The line comes after the pins, and more than once if the daemon looks while they are being removed.
    soon("the log to tell", || {
        bed.daemon.log().contains("pins of this instance were removed")
    });
    // A single missing pin is noticed, too.
    fs::remove_file(folder.join("slots")).unwrap();
    soon("the pin to be put back", || pins(&folder) == before);
    bed.daemon.kill();
    for pair in &mut pairs {
        pair.exchange(BYTES);
    }
    bed.daemon.start(&bed.net.forwarder);
    assert_eq!(bed.daemon.status().adopted_total, 2);
    for pair in &mut pairs {
        pair.exchange(BYTES);
        pair.close();
    }
    bed.daemon.wait_reaped();
}

#[test]
fn pins_that_are_removed_are_put_back_and_no_flow_notices() {
    removed_pins_are_put_back(&mut bed("pins-gone"));
}

/// Replaces the folder of an instance's pins with one that every user can write.
fn squat(folder: &Path) {
    eventually("the place", SOON, || {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir(folder).ok()
    });
    fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn where_pins_cannot_be_put_back_it_relays() {
    let mut bed = bed("pins-taken");
    let mut detached = bed.connect_spliced("detached");
    let folder = bed.daemon.pins();
    // Try again if the daemon made the folder in between: that one is its own.
    eventually("the daemon to give up", SOON, || {
        squat(&folder);
        std::thread::sleep(std::time::Duration::from_millis(1500));
        (!bed.daemon.status().health.splice_available).then_some(())
    });
    let why = bed.daemon.status().health.why_not.unwrap_or_default();
    assert!(why.contains("can be written by others"), "{why}");
    let mut relayed = bed.connect();
    relayed.exchange(BYTES);
    detached.exchange(BYTES);
    let flow = bed.daemon.wait_state(relayed.client_port(), &["relay"]);
    assert_eq!(flow.reason.as_deref(), Some("pins"));
    fs::remove_dir(&folder).unwrap();
    bed.daemon
        .wait_status("the pins to be in place", |s| s.health.splice_available);
    let mut spliced = bed.connect_spliced("detached");
    for pair in [&mut spliced, &mut relayed, &mut detached] {
        pair.exchange(BYTES);
    }
    bed.daemon.kill();
    detached.exchange(BYTES);
    spliced.exchange(BYTES);
}

/// Checks that a daemon only relays, logs the reason, and refuses to start under `--require-splice`.
fn relays(bed: &Bed, mut daemon: Daemon, says: &str, reason: &str) {
    daemon.start(&bed.net.forwarder);
    let front = (bed.net.forwarder_client_addr, 8082).into();
    let mut pair = Pair::connect(&bed.net.client, front, &bed.listener);
    pair.exchange(BYTES);
    pair.close();
    let status = daemon.wait_status("the connection to end", |s| s.relayed_total == 1);
    assert_eq!(status.relayed(reason), 1, "{status:?}");
    let why = status.health.why_not.unwrap_or_default();
    assert!(why.contains(says), "{why}");
    let log = daemon.log();
    assert_eq!(log.matches("every connection is relayed").count(), 1, "{log}");
    daemon.terminate();
    assert_eq!(daemon.join(), Some(0));
    daemon.add_args(&["--require-splice"]);
    let exit = daemon.start_in_vain(&bed.net.forwarder);
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(
        exit.says.contains(says) && exit.says.contains("required"),
        "{exit:?}"
    );
}

fn other(bed: &Bed) -> Daemon {
    let front = (bed.net.forwarder_client_addr, 8082).into();
    Daemon::of(&Config::new().listener(front, bed.target(), "now", "now"))
}

#[test]
fn an_unsafe_place_for_pins_is_not_used() {
    let bed = bed("pins-unsafe");
    let daemon = other(&bed);
    let folder = daemon.pins();
    squat(&folder);
    relays(&bed, daemon, "can be written by others", "pins");
}

#[test]
fn a_bpf_file_system_that_cannot_be_written_is_no_reason_to_end() {
    let bed = bed("pins-ro");
    let script =
        "mount --bind /sys/fs/bpf /sys/fs/bpf && mount -o remount,ro,bind /sys/fs/bpf && exec \"$@\"";
    let daemon = other(&bed).under(&["unshare", "--mount", "sh", "-c", script, "sh"]);
    let read_only = io::Error::from_raw_os_error(30).to_string();
    relays(&bed, daemon, &read_only, "system");
}

/// Capabilities do not open a directory of root's, and lacking ones are not to blame.
#[test]
fn a_bpf_file_system_of_another_user_is_told_as_such() {
    const NOBODY: u32 = 65_534;
    let bed = bed("pins-closed");
    let caps = "+bpf,+perfmon,+net_admin,+net_raw";
    let script = format!(
        "mount -t bpf -o mode=0700 bpf /sys/fs/bpf && exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \
         --inh-caps=-all,{caps} --ambient-caps=-all,{caps} -- \"$@\""
    );
    let daemon = other(&bed).under(&["unshare", "--mount", "sh", "-c", &script, "sh"]);
    chown(daemon.dir(), Some(NOBODY), Some(NOBODY)).unwrap();
    relays(&bed, daemon, "Permission denied", "system");
}

/// The pins have their names already when forwarding of the loopback turns out to be closed.
#[test]
fn a_start_that_fails_late_leaves_no_pins() {
    let net = veth_line("pins-late", Default::default());
    let target = SocketAddr::from((net.server_addr, 7000));
    let front = (net.forwarder_client_addr, 8082).into();
    let script = "echo 0 > /proc/sys/net/ipv4/conf/lo/forwarding && mount --bind /proc/sys /proc/sys && \
                  mount -o remount,ro,bind /proc/sys && exec \"$@\"";
    let daemon = Daemon::of(&Config::new().listener(front, target, "now", "now"));
    let mut daemon = daemon.under(&["unshare", "--mount", "sh", "-c", script, "sh"]);
    daemon.start(&net.forwarder);
    let why = daemon.status().health.why_not.unwrap_or_default();
    assert!(why.contains("lo/forwarding to 1"), "{why}");
    assert_eq!(daemon.generations(), [] as [std::path::PathBuf; 0]);
}

/// The pin of a clsact filter holds the program itself; it is put back, too.
#[test]
fn pins_of_filters_are_put_back() {
    let mut bed = bed("pins-clsact");
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    let daemon = std::mem::replace(&mut bed.daemon, Daemon::new(&[]));
    bed.daemon = daemon.under(&["env", "LONGSPLICE_ATTACH=clsact"]);
    bed.daemon.start(&bed.net.forwarder);
    removed_pins_are_put_back(&mut bed);
}

#[test]
fn a_kill_at_any_step_of_the_start_leaves_all_pins_or_none() {
    let bed = bed("pins-kill");
    let mut daemon = other(&bed);
    let there =
        |daemon: &Daemon| -> usize { daemon.generations().iter().map(|folder| pins(folder).len()).sum() };
    // Numbers of pins at which it is killed. At 7 the directory is complete; each kill behind that takes a whole start.
    let steps: Vec<usize> = match std::env::var("LONGSPLICE_STEPS") {
        Ok(most) => (1..=most.parse().unwrap()).collect(),
        Err(_) => vec![2, 7, 8],
    };
    for step in steps {
        daemon.start_until(&bed.net.forwarder, |daemon| there(daemon) >= step);
        for folder in daemon.generations() {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            let pins = pins(&folder);
            let is_whole = MAPS.iter().all(|map| pins.iter().any(|pin| pin == map));
            assert!(is_whole || name.contains('~'), "step {step}: {name} has {pins:?}");
        }
        // Begin from nothing each time, but for what the kill has left unfinished.
        let _ = fs::remove_dir_all(daemon.pins());
    }
    daemon.start(&bed.net.forwarder);
    assert_eq!(daemon.generations(), [daemon.pins()]);
    let front = (bed.net.forwarder_client_addr, 8082).into();
    let mut pair = Pair::connect(&bed.net.client, front, &bed.listener);
    daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(BYTES);
}

/// Restarts a daemon with other limits while a connection is spliced: the table stays as it is until a successor makes its own.
#[test]
fn limits_that_a_predecessors_table_does_not_have_are_told() {
    const SAYS: &str = "whose size is in force instead of the configured one";
    let mut bed = bed("pins-size");
    let mut pair = bed.connect_spliced("detached");
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    let front = ([0, 0, 0, 0], 8080).into();
    let config = Config::new().listener(front, bed.target(), "now", "now");
    bed.daemon
        .reconfigure(&config.clone().set("max_flows = 1000\nmax_dormant = 500"));
    bed.daemon.start(&bed.net.forwarder);
    let log = bed.daemon.log();
    assert_eq!(log.matches(SAYS).count(), 1, "{log}");
    let line = log.lines().find(|line| line.contains(SAYS)).unwrap();
    assert!(line.contains("run --replace"), "{line}");
    let before = bed.daemon.status().health.max_flows;
    assert_ne!(before, 1000);
    let refused = bed
        .daemon
        .change(&config.clone().set("max_flows = 2000\nmax_dormant = 500"));
    let refused = refused.unwrap_err();
    assert!(
        refused.contains("`max_flows` cannot be changed") && refused.contains("run --replace"),
        "{refused}"
    );
    bed.daemon.replace(&bed.net.forwarder);
    assert_eq!(bed.daemon.status().health.max_flows, 2000);
    assert!(!bed.daemon.log().contains(SAYS), "{}", bed.daemon.log());
    pair.exchange(BYTES);
}
