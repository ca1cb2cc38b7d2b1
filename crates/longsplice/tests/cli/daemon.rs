//! Tests the daemon over loopback: it forwards with and without privileges, answers, refuses, and ends as it is told.

use std::{
    fs::{self, Permissions},
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener},
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    thread,
};

use crate::common::{Daemon, PATIENCE, Refusing, ask, echo_server, forwarding, instance};
use nix::sys::signal::Signal;

fn status(daemon: &Daemon) -> serde_json::Value {
    let (code, out, err) = daemon.ask(&["status", "--json"]);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn bytes_pass_both_ways_and_are_counted() {
    let daemon = Daemon::forward(&instance("echo"), &echo_server().to_string(), &[]);
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let mut stream = daemon.connect();
    let mut writer = stream.try_clone().unwrap();
    let writing = {
        let sent = sent.clone();
        thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        })
    };
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    assert!(
        received == sent,
        "{} of {} bytes came back",
        received.len(),
        sent.len()
    );
    assert_eq!(status(&daemon)["accepted_total"], 1);
}

#[test]
fn an_open_connection_is_listed() {
    let daemon = Daemon::forward(
        &instance("list"),
        &echo_server().to_string(),
        &["--splice", "never"],
    );
    let mut stream = daemon.connect();
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    let (_, out, _) = daemon.ask(&["flows", "--json"]);
    let flows: serde_json::Value = serde_json::from_str(&out).unwrap();
    let flow = &flows[0];
    assert_eq!(flow["client"]["peer"], stream.local_addr().unwrap().to_string());
    assert_eq!(flow["client"]["local"], daemon.address.to_string());
    assert_eq!(flow["to_server"]["bytes"], 5);
    let (_, table, _) = daemon.ask(&["flows"]);
    assert!(table.contains("CLIENT") && table.contains("relay"), "{table}");
}

#[test]
fn status_bears_the_counters_at_the_top() {
    let name = instance("status");
    let daemon = Daemon::forward(&name, "127.0.0.1:9", &["--splice", "after=1MiB"]);
    let status = status(&daemon);
    for counter in [
        "accepted_total",
        "spliced_total",
        "detached_total",
        "resumed_total",
        "relayed_total",
    ] {
        assert!(status[counter].is_u64(), "{counter}: {status}");
    }
    assert!(status["unsplices_total"].is_object() && status["rebuild"]["samples"].is_u64());
    assert_eq!(status["listeners"][0]["unsplice"], "");
    assert!(status["relayed_reasons"].is_object() && status["health"]["splice_available"].is_boolean());
    assert_eq!(status["instance"], name);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["listeners"][0]["listen"][0], daemon.address.to_string());
    let (code, text, _) = daemon.ask(&["status"]);
    assert_eq!(code, 0);
    assert!(text.contains(&name) && text.contains("after=1048576"), "{text}");
}

#[test]
fn a_client_sees_that_every_target_refused() {
    let refusing = Refusing::new();
    let target = refusing.address.to_string();
    let mut daemon = Daemon::forward(&instance("refused"), &target, &[]);
    assert_eq!(daemon.outcome(), Err(ErrorKind::ConnectionReset));
    let line = daemon.wait_for_line("connection refused");
    assert!(
        line.contains(&target) && line.contains("Connection refused"),
        "{line}"
    );
    assert_eq!(status(&daemon)["listeners"][0]["refused_total"], 1);
}

#[test]
fn the_next_target_is_tried() {
    let (refusing, more) = (Refusing::new(), ["--to", &echo_server().to_string()]);
    let daemon = Daemon::forward(&instance("next"), &refusing.address.to_string(), &more);
    let mut stream = daemon.connect();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_name_is_resolved() {
    let server = echo_server();
    let daemon = Daemon::forward(&instance("name"), &format!("localhost:{}", server.port()), &[]);
    let mut stream = daemon.connect();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_second_daemon_of_the_instance_is_refused() {
    let daemon = Daemon::forward(&instance("twice"), "127.0.0.1:9", &[]);
    let (code, _, err) = daemon.ask(&["forward", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
    assert_eq!(code, 1);
    assert!(err.contains("is running already"), "{err}");
}

#[test]
fn a_daemon_with_its_socket_elsewhere_is_known_to_run() {
    let directory = tempfile::tempdir().unwrap();
    let admin = directory.path().join("admin.sock");
    let admin = admin.to_str().unwrap();
    let daemon = Daemon::forward(&instance("elsewhere"), "127.0.0.1:9", &["--admin", admin]);
    let (code, _, err) = daemon.ask(&["status"]);
    assert_eq!(code, 1);
    assert!(
        err.contains("is running, but not at ") && err.contains("--admin PATH"),
        "{err}"
    );
    let other = directory.path().join("other.sock");
    let replacing = [
        "forward",
        "--replace",
        "--listen",
        "127.0.0.1:0",
        "--to",
        "127.0.0.1:9",
    ];
    let (code, _, err) = daemon.ask(&[&replacing[..], &["--admin", other.to_str().unwrap()]].concat());
    assert_eq!(code, 1);
    assert!(
        err.contains("its admin socket is elsewhere than ") && err.contains("must be the same"),
        "{err}"
    );
    let (code, _, err) = daemon.ask(&["status", "--admin", admin]);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn a_socket_that_may_not_be_opened_is_not_said_to_have_a_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let closed = directory.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o000)).unwrap();
    let admin = closed.join("admin.sock");
    let (code, _, err) = ask(&[
        "status",
        "--instance",
        &instance("closed"),
        "--admin",
        admin.to_str().unwrap(),
    ]);
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    assert_eq!(code, 1);
    assert!(
        err.contains("if a daemon runs there, it is another user's"),
        "{err}"
    );
}

#[test]
fn the_reason_for_an_end_has_the_form_of_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("json.toml");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let text =
        format!("[log]\nformat = \"json\"\n[[listener]]\nlisten = \"{taken}\"\nto = \"127.0.0.1:9\"\n");
    fs::write(&file, text).unwrap();
    let (file, name) = (file.to_str().unwrap(), instance("json"));
    let absent = directory.path().join("absent.toml");
    for (config, more, code, says) in [
        (file, &[][..], 1, "cannot listen on"),
        (
            absent.to_str().unwrap(),
            &["--log-format", "json"],
            2,
            "cannot read",
        ),
    ] {
        let words = ["run", "--config", config, "--instance", &name];
        let (ended, _, err) = ask(&[&words[..], more].concat());
        assert_eq!(ended, code, "{err}");
        let line = |line| serde_json::from_str::<serde_json::Value>(line).expect(line);
        let lines: Vec<_> = err.lines().map(line).collect();
        let last = lines.last().unwrap();
        assert_eq!(last["level"], "ERROR", "{err}");
        assert!(last["message"].as_str().unwrap().contains(says), "{err}");
    }
}

#[test]
fn an_accelerators_missing_interface_is_named_with_its_option() {
    let (inside, outside) = ("ls-no-inside", "ls-no-outside");
    let (code, _, err) = ask(&[
        "accelerate",
        "--inside",
        inside,
        "--outside",
        outside,
        "--instance",
        &instance("nowhere"),
    ]);
    assert_eq!(code, 1, "it has no privileges: {err}");
    for (name, option) in [(inside, "--inside"), (outside, "--outside")] {
        let line = err.lines().find(|line| line.contains(name));
        assert!(line.is_some_and(|line| line.contains(option)), "{err}");
    }
}

#[test]
fn a_port_in_use_is_named_with_who_to_ask() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let (code, _, err) = ask(&[
        "forward",
        "--listen",
        &taken.to_string(),
        "--to",
        "127.0.0.1:9",
        "--instance",
        &instance("taken"),
    ]);
    assert_eq!(code, 1);
    assert!(
        err.contains(&format!("cannot listen on {taken}")) && err.contains("ss -ltnp"),
        "{err}"
    );
}

#[test]
fn a_flow_that_is_not_there_cannot_be_spliced() {
    let daemon = Daemon::forward(&instance("splice"), "127.0.0.1:9", &[]);
    let (code, _, err) = daemon.ask(&["splice", "4000000000"]);
    assert_eq!(code, 1, "{err}");
}

#[test]
fn a_flow_that_is_not_there_cannot_come_back() {
    let daemon = Daemon::forward(&instance("unsplice"), "127.0.0.1:9", &[]);
    let (code, _, err) = daemon.ask(&["unsplice", "4000000000"]);
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains("there is no flow 4000000000: `longsplice flows` lists them"),
        "{err}"
    );
}

#[test]
fn a_relayed_flow_has_nothing_to_come_back_from() {
    let daemon = Daemon::forward(&instance("relayed"), &echo_server().to_string(), &[]);
    let mut stream = daemon.connect();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    let (_, out, _) = daemon.ask(&["flows", "--json"]);
    let flows: serde_json::Value = serde_json::from_str(&out).unwrap();
    let id = flows[0]["id"].to_string();
    let (code, _, err) = daemon.ask(&["unsplice", &id]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains(&format!("flow {id} is not spliced")), "{err}");
    stream.write_all(b"y").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

#[test]
fn no_flow_comes_back_into_a_daemon_that_ends() {
    let more = ["--splice", "never", "--shutdown-timeout", "1h"];
    let mut daemon = Daemon::forward(&instance("late"), &echo_server().to_string(), &more);
    let mut stream = daemon.connect();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    daemon.signal(Signal::SIGTERM);
    daemon.wait_for_line("shutting down");
    let (code, _, err) = daemon.ask(&["unsplice", "1"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("the daemon is shutting down"), "{err}");
}

/// Checks conditions that are met while relayed: all bytes pass in both directions, also those after one end has
/// closed.
#[test]
fn conditions_hold_up_no_byte_of_a_relayed_connection() {
    for unsplice in [
        "data",
        "bytes=client:1000,bytes=server:70000",
        "after=1ms,idle=1ms",
    ] {
        let more = ["--splice", "now", "--unsplice", unsplice];
        let daemon = Daemon::forward(&instance("conditions"), &echo_server().to_string(), &more);
        let sent: Vec<u8> = (0..2_000_000u32).map(|i| (i % 251) as u8).collect();
        let mut stream = daemon.connect();
        let mut writer = stream.try_clone().unwrap();
        let mut received = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&sent).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            stream.read_to_end(&mut received).unwrap();
        });
        assert!(received == sent, "{unsplice}: {} bytes came back", received.len());
        let (code, table, _) = daemon.ask(&["status"]);
        assert!(code == 0 && table.contains("UNSPLICE"), "{table}");
    }
}

#[test]
fn at_sigterm_new_connections_are_refused_and_nothing_stays_behind() {
    let mut daemon = Daemon::forward(&instance("term"), &echo_server().to_string(), &[]);
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_line("started without a file");
    daemon.signal(Signal::SIGTERM);
    daemon.wait_for_line("shutting down");
    assert_eq!(daemon.wait().code(), Some(0), "{:#?}", daemon.log);
    assert!(std::net::TcpStream::connect(daemon.address).is_err());
    let (code, _, err) = daemon.ask(&["status"]);
    assert_eq!(code, 1, "{err}");
    for kind in ["sock", "lock"] {
        let path = format!("/run/longsplice/{}.{kind}", daemon.instance);
        assert!(!std::path::Path::new(&path).exists(), "{path}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let more = ["--splice", "never", "--shutdown-timeout", "1h"];
    let mut daemon = Daemon::forward(&instance("hurry"), &echo_server().to_string(), &more);
    let mut stream = daemon.connect();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    daemon.signal(Signal::SIGTERM);
    daemon.wait_for_line("shutting down");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(1), "{:#?}", daemon.log);
}

#[test]
fn a_stale_socket_is_no_obstacle() {
    let name = instance("stale");
    let mut daemon = Daemon::forward(&name, "127.0.0.1:9", &[]);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let next = Daemon::forward(&name, "127.0.0.1:9", &[]);
    assert_eq!(status(&next)["instance"], name);
}

/// Checks the protocol of systemd's `Type=notify`.
#[test]
fn readiness_and_the_end_are_announced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let received = || {
        let mut buffer = [0; 64];
        let n = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    let name = instance("notify");
    let mut command = forwarding(&name, "127.0.0.1:9");
    let daemon = Daemon::start_command(&name, command.env("NOTIFY_SOCKET", &path));
    assert_eq!(received(), "READY=1");
    // READY=1 follows however a reload ends.
    daemon.signal(Signal::SIGHUP);
    let reloading = received();
    let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
    assert!(
        micros.is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n > 0)),
        "{reloading}"
    );
    assert_eq!(received(), "READY=1");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(received(), "STOPPING=1");
}

/// Checks that it forwards without any capability, and reports once what it lacks.
#[test]
fn without_privileges_it_relays_and_says_so_once() {
    let daemon = Daemon::forward(
        &instance("relay"),
        &echo_server().to_string(),
        &["--splice", "now"],
    );
    for _ in 0..2 {
        let mut stream = daemon.connect();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    let warned: Vec<_> = daemon
        .log
        .iter()
        .filter(|l| l.contains("every connection is relayed"))
        .collect();
    assert_eq!(warned.len(), 1, "{:#?}", daemon.log);
    assert!(warned[0].contains("longsplice doctor"), "{warned:?}");
    let status = status(&daemon);
    assert_eq!(status["health"]["splice_available"], false);
    assert_eq!(status["spliced_total"], 0);
}

/// Starts a daemon that forwards nothing, with a variable in its environment.
fn with_variable(name: &str, variable: &str, value: &str) -> Daemon {
    Daemon::start_command(name, forwarding(name, "127.0.0.1:9").env(variable, value))
}

/// A program that a service starts inherits the variable of the service's own output.
#[test]
fn lines_that_go_elsewhere_than_the_journal_have_their_time() {
    let mut daemon = with_variable(&instance("journal"), "JOURNAL_STREAM", "1:1");
    let line = daemon.log.last().unwrap();
    assert!(line.starts_with(|c: char| c.is_ascii_digit()), "{line}");
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait().success());
}

#[test]
fn a_level_in_the_environment_that_is_not_understood_is_told() {
    let daemon = with_variable(&instance("level"), "LONGSPLICE_LOG", "longsplice=loud");
    let told = |line: &&String| line.contains("LONGSPLICE_LOG=longsplice=loud is not understood");
    assert!(daemon.log.iter().any(|line| told(&line)), "{:#?}", daemon.log);
}
