//! No room for more connections: by the limit of a listener, or for want of descriptors.

use std::{
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use crate::common::{Daemon, closed_port, echo_server, instance, longsplice_with};

/// A file with one listener of at most one connection.
fn file_with_limit(dir: &Path, name: &str, on_full: &str) -> PathBuf {
    let (file, port, to) = (dir.join("x.toml"), closed_port().port(), echo_server());
    let admin = dir.join("a.sock");
    let text = format!(
        "instance = \"{name}\"\nadmin = \"{}\"\n[[listener]]\nname = \"few\"\nlisten = \"127.0.0.1:{port}\"\n\
         to = \"{to}\"\nsplice = \"never\"\nmax_connections = 1\non_full = \"{on_full}\"\n",
        admin.display(),
    );
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn the_limit_of_connections_holds_and_the_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let name = instance("limit");
    let file = file_with_limit(dir.path(), &name, "refuse");
    let mut daemon = Daemon::start(
        &name,
        &["run", "--config", file.to_str().unwrap(), "--log-format", "json"],
    );
    let mut first = daemon.connect();
    first.write_all(b"x").unwrap();
    first.read_exact(&mut [0]).unwrap();
    assert_eq!(daemon.outcome(), Err(ErrorKind::ConnectionReset));
    let line = daemon.wait_for_line("the listener is full");
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["listener"], "few");
    let (code, out, err) = daemon.ask(&["status", "--admin", dir.path().join("a.sock").to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("1/1"), "{out}");
}

#[test]
fn the_limit_of_connections_holds_and_the_others_wait() {
    let dir = tempfile::tempdir().unwrap();
    let name = instance("wait");
    let file = file_with_limit(dir.path(), &name, "wait");
    let mut daemon = Daemon::start(&name, &["run", "--config", file.to_str().unwrap()]);
    let mut first = daemon.connect();
    first.write_all(b"x").unwrap();
    first.read_exact(&mut [0]).unwrap();
    let mut second = daemon.connect();
    second.write_all(b"y").unwrap();
    daemon.wait_for_line("the listener is full");
    drop(first);
    let mut answer = [0];
    second.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"y");
}

/// Descriptors run out: connections wait, one line is logged, and service goes on when others end.
#[test]
fn without_descriptors_connections_wait() {
    let name = instance("emfile");
    let target = echo_server().to_string();
    let args = [
        "forward",
        "--listen",
        "127.0.0.1:0",
        "--to",
        &target,
        "--splice",
        "never",
        "--instance",
        &name,
    ];
    let mut daemon = Daemon::start_command(&name, &mut longsplice_with(&["prlimit", "--nofile=24"], &args));
    let mut held: Vec<_> = (0..30).map(|_| daemon.connect()).collect();
    daemon.wait_for_line("cannot accept");
    let mut last = held.pop().unwrap();
    drop(held);
    last.write_all(b"x").unwrap();
    last.read_exact(&mut [0]).unwrap();
    assert_eq!(
        daemon.log.iter().filter(|l| l.contains("cannot accept")).count(),
        1
    );
}
