//! Tests the lack of room for connections: by the limit of a listener, or by too few descriptors.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::common::{Daemon, echo_server, instance, longsplice_with, own_address};

/// Writes a file with one listener of at most one connection.
fn file_with_limit(dir: &Path, name: &str, on_full: &str) -> PathBuf {
    let (file, listen, to) = (dir.join("x.toml"), own_address(), echo_server());
    let admin = dir.join("a.sock");
    let text = format!(
        "instance = \"{name}\"\nadmin = \"{}\"\n[[listener]]\nname = \"few\"\nlisten = \"{listen}\"\n\
         to = \"{to}\"\nsplice = \"never\"\nmax_connections = 1\non_full = \"{on_full}\"\n",
        admin.display(),
    );
    std::fs::write(&file, text).unwrap();
    file
}

/// Starts a daemon with such a file, with further options.
fn limited(test: &str, on_full: &str, more: &[&str]) -> (TempDir, Daemon) {
    let (dir, name) = (tempfile::tempdir().unwrap(), instance(test));
    let file = file_with_limit(dir.path(), &name, on_full);
    let args = [&["run", "--config", file.to_str().unwrap()], more].concat();
    let daemon = Daemon::start(&name, &args);
    (dir, daemon)
}

#[test]
fn the_limit_of_connections_holds_and_the_others_are_refused() {
    let (dir, mut daemon) = limited("limit", "refuse", &["--log-format", "json"]);
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
    let (_dir, mut daemon) = limited("wait", "wait", &[]);
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

/// Lets many connections wait for each other at a full listener: one line tells that.
#[test]
fn a_listener_that_stays_full_says_so_once() {
    let (_dir, mut daemon) = limited("full-once", "wait", &[]);
    let clients: Vec<_> = (0..20).map(|_| daemon.connect()).collect();
    for mut client in clients {
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(daemon.wait().success());
    let is_full = |line: &&String| line.contains("the listener is full");
    assert_eq!(daemon.log.iter().filter(is_full).count(), 1, "{:#?}", daemon.log);
}

/// Checks that a connection which waits for room, or for descriptors, is served when the daemon shuts down: it is accepted
/// already.
#[test]
fn who_waits_at_the_end_of_the_daemon_is_served() {
    for (test, nofile, limit, says) in [
        ("end-full", 4096, "max_connections = 1\n", "the listener is full"),
        // Leave two descriptors for connections.
        ("end-fds", 131, "", "the limit of descriptors is reached"),
    ] {
        let (dir, name) = (tempfile::tempdir().unwrap(), instance(test));
        let file = file_with_limit(dir.path(), &name, "wait");
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("max_connections = 1\n", limit);
        std::fs::write(&file, format!("shutdown_timeout = \"1h\"\n{text}")).unwrap();
        let args = ["run", "--config", file.to_str().unwrap()];
        let by = ["prlimit", &format!("--nofile={nofile}")];
        let mut daemon = Daemon::start_command(&name, &mut longsplice_with(&by, &args));
        let [mut first, mut second] = [(); 2].map(|()| {
            let mut client = daemon.connect();
            client.write_all(b"x").unwrap();
            client
        });
        first.read_exact(&mut [0]).unwrap();
        daemon.wait_for_line(says);
        daemon.signal(nix::sys::signal::Signal::SIGTERM);
        second.read_exact(&mut [0]).unwrap();
        first.write_all(b"y").unwrap();
        first.read_exact(&mut [0]).unwrap();
        drop((first, second));
        assert!(daemon.wait().success(), "{:#?}", daemon.log);
    }
}

/// Starts a server that answers each request of each connection, and keeps the connections open.
fn http_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while let Some(Ok(line)) = lines.next() {
                    if line.is_empty() && (&stream).write_all(OK).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Number of servers that take turns, so that idle connections to all of them would be kept.
const SERVERS: usize = 8;

/// Checks that idle connections to servers count among the descriptors, and give way to clients.
#[test]
fn idle_connections_do_not_use_up_the_descriptors() {
    let (dir, name, listen) = (tempfile::tempdir().unwrap(), instance("idle-fds"), own_address());
    let mut text = format!(
        "instance = \"{name}\"\nadmin = \"{}\"\n[[listener]]\nname = \"web\"\nlisten = \"{listen}\"\n\
         protocol = \"http\"\nsplice = \"never\"\nupstream = \"u0\"\n",
        dir.path().join("a.sock").display(),
    );
    for n in 0..SERVERS {
        text += &format!("[[listener.route]]\npath = \"/{n}\"\nupstream = \"u{n}\"\n");
    }
    for n in 0..SERVERS {
        let server = http_server();
        text += &format!("[[upstream]]\nname = \"u{n}\"\nservers = [\"{server}\"]\nmax_idle = 100\n");
    }
    let file = dir.path().join("x.toml");
    std::fs::write(&file, text).unwrap();
    let args = ["run", "--config", file.to_str().unwrap()];
    let mut daemon = Daemon::start_command(&name, &mut longsplice_with(&["prlimit", "--nofile=176"], &args));
    for n in 0..SERVERS {
        // Send all requests at once: each needs its own connection to the server, which is idle afterwards.
        let clients: Vec<_> = (0..20).map(|_| daemon.connect()).collect();
        for client in &clients {
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let request = format!("GET /{n} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            (&*client).write_all(request.as_bytes()).unwrap();
        }
        for mut client in clients {
            let mut reply = String::new();
            client.read_to_string(&mut reply).unwrap();
            assert!(reply.starts_with("HTTP/1.1 200 "), "server {n}: {reply:?}");
        }
    }
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(daemon.wait().success());
}

/// Checks the lack of descriptors: connections wait, one line is logged, and service continues when others end.
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
