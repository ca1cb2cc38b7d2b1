//! A configuration that cannot be put in force is explained, and changes nothing.

use std::{
    fs::{self, File, OpenOptions},
    net::{SocketAddr, TcpListener},
    os::unix::fs::OpenOptionsExt,
};

use longsplice_tests::{Bed, Config, Policy, SOON, eventually, soon, stop_listening};
use nix::{libc::O_NONBLOCK, sys::stat::Mode, unistd::mkfifo};
use rustix::process::Signal;

/// Returns a configuration with the listener of the bed, and this before it.
fn config(bed: &Bed, head: &str) -> Config {
    let listen = SocketAddr::from((bed.net.family().unspecified(), bed.front().port()));
    Config::new()
        .set(head)
        .listener(listen, bed.target(), "never", "never")
}

/// Checks that nothing has changed, and that the status gives the reason.
fn assert_whole(bed: &Bed, failures: u64, says: &str) {
    let generation = bed.daemon.status().config_generation;
    assert_eq!(
        (generation.number, generation.failed_total),
        (1, failures),
        "{generation:?}"
    );
    let error = generation.failed.unwrap().error;
    assert!(error.contains(says), "{error}");
    let output = bed.daemon.cli(&["status"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("a reload failed"), "{text}");
    let mut pair = bed.connect();
    pair.exchange(10_000);
    pair.close();
}

#[test]
fn a_broken_file_is_explained_by_line_to_the_command_and_to_the_log() {
    let bed = Bed::new("reload-broken", Policy::ON_DEMAND);
    let file = bed.daemon.dir().join("longsplice.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("shutdown_timeout = \"soon\"\n{good}")).unwrap();
    let says = bed.daemon.reload().unwrap_err();
    assert!(
        says.contains("longsplice.toml:1:") && says.contains("soon"),
        "{says}"
    );
    assert_eq!(bed.daemon.cli(&["reload"]).status.code(), Some(1));
    assert_whole(&bed, 2, "longsplice.toml:1:");
    bed.daemon.signal(Signal::HUP);
    soon("the third failure", || {
        bed.daemon.status().config_generation.failed_total == 3
    });
    // A failure is counted before it is logged.
    let says = "stays as it is";
    soon(says, || bed.daemon.log().contains(says));
    // The repaired file is loaded, and the failure is cleared.
    fs::write(&file, good).unwrap();
    bed.daemon.reload().unwrap();
    let generation = bed.daemon.status().config_generation;
    assert_eq!(
        (generation.number, generation.failed.is_none()),
        (2, true),
        "{generation:?}"
    );
}

#[test]
fn an_address_that_is_taken_leaves_no_new_listener_behind() {
    let bed = Bed::new("reload-bind", Policy::ON_DEMAND);
    let any = bed.net.family().unspecified();
    let taken = bed
        .net
        .forwarder
        .run(|| TcpListener::bind((any, 8082)))
        .unwrap()
        .unwrap();
    let more = config(&bed, "")
        .listener((any, 8081).into(), bed.target(), "now", "now")
        .listener((any, 8082).into(), bed.target(), "now", "now");
    let says = bed.daemon.change(&more).unwrap_err();
    assert!(says.contains("8082") && says.contains("ss -ltnp"), "{says}");
    assert_whole(&bed, 1, "8082");
    let free = bed.net.forwarder.run(|| TcpListener::bind((any, 8081))).unwrap();
    assert!(free.is_ok(), "8081 is not listened on: {free:?}");
    stop_listening(free.unwrap());
    stop_listening(taken);
    let said = bed.daemon.change(&more).unwrap();
    assert!(
        said.contains("generation 2") && said.contains("3 listeners"),
        "{said}"
    );
    for port in [8080, 8081, 8082] {
        let front = (bed.net.forwarder_client_addr, port).into();
        let mut pair = longsplice_tests::Pair::connect(&bed.net.client, front, &bed.listener);
        pair.exchange(1000);
    }
}

#[test]
fn what_needs_a_restart_is_named() {
    let bed = Bed::new("reload-fixed", Policy::ON_DEMAND);
    let says = bed
        .daemon
        .change(&config(&bed, "max_flows = 1000\ninterfaces = [\"lo\"]"))
        .unwrap_err();
    for name in ["`interfaces`", "`max_flows`", "restart"] {
        assert!(says.contains(name), "{name}: {says}");
    }
    assert_whole(&bed, 1, "`max_flows`");
}

/// A change from one address to all of them, on the same port, is refused: both sockets cannot exist at once.
#[test]
fn an_address_that_is_in_its_own_way_is_explained() {
    let bed = Bed::new("reload-own-way", Policy::ON_DEMAND);
    let front = bed.front();
    let one = Config::new().listener(front, bed.target(), "never", "never");
    let says = bed.daemon.change(&one).unwrap_err();
    assert!(says.contains("listens on") && says.contains("itself"), "{says}");
    assert_whole(&bed, 1, "restart");
}

/// The socket for metrics, too, is open until the next configuration is in force.
#[test]
fn an_address_that_the_metrics_have_is_explained() {
    let bed = Bed::new("reload-metrics", Policy::ON_DEMAND);
    let any = bed.net.family().unspecified();
    let [one, all] = [bed.net.forwarder_client_addr, any].map(|ip| SocketAddr::from((ip, 9391)));
    let metrics = |at: SocketAddr| config(&bed, &format!("[metrics]\nlisten = \"{at}\""));
    let none = config(&bed, "");
    bed.daemon.change(&metrics(one)).unwrap();
    let listener = none.clone().listener(one, bed.target(), "now", "now");
    let elsewhere = Config::new()
        .set(&format!("[metrics]\nlisten = \"{}\"", bed.front()))
        .listener((any, 8081).into(), bed.target(), "now", "now");
    let twice = format!("metrics of the configuration in force are at {one}");
    let restart = format!("this daemon listens on {any}:{}", bed.front().port());
    for (next, says) in [
        (&listener, [&*twice, "reload twice"]),
        (&metrics(all), [&*twice, "reload twice"]),
        (&elsewhere, [&*restart, "restart"]),
    ] {
        let said = bed.daemon.change(next).unwrap_err();
        assert!(says.iter().all(|says| said.contains(says)), "{said}");
        assert_eq!(bed.daemon.status().config_generation.number, 2);
    }
    // The remedies of these messages work.
    for next in [&none, &metrics(all), &none, &listener] {
        bed.daemon.change(next).unwrap();
    }
}

/// Begins a reload that hangs, as on a file system that does. Returns the end of a pipe that the daemon waits for.
fn begin_to_hang(bed: &Bed) -> File {
    let file = bed.daemon.dir().join("longsplice.toml");
    fs::remove_file(&file).unwrap();
    mkfifo(&file, Mode::S_IRWXU).unwrap();
    bed.daemon.signal(Signal::HUP);
    let mut options = OpenOptions::new();
    // It can be opened once the daemon reads it.
    options.write(true).custom_flags(O_NONBLOCK);
    eventually("the daemon to read the pipe", SOON, || options.open(&file).ok())
}

#[test]
fn a_daemon_whose_reload_hangs_ends_when_it_is_told_to() {
    let mut bed = Bed::new("reload-hang", Policy::ON_DEMAND);
    let pipe = begin_to_hang(&bed);
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0), "{}", bed.daemon.log());
    drop(pipe);
}

#[test]
fn a_daemon_whose_reload_hangs_can_be_replaced() {
    let mut bed = Bed::new("reload-hang-repl", Policy::ON_DEMAND);
    let file = bed.daemon.dir().join("longsplice.toml");
    let good = fs::read_to_string(&file).unwrap();
    let pipe = begin_to_hang(&bed);
    fs::remove_file(&file).unwrap();
    fs::write(&file, good).unwrap();
    bed.daemon.replace(&bed.net.forwarder);
    assert_eq!(bed.daemon.join_replaced(), [Some(0)]);
    drop(pipe);
    let mut pair = bed.connect();
    pair.exchange(10_000);
    pair.close();
}
