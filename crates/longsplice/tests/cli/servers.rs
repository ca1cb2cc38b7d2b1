//! Tests `servers`, `servers drain` and `servers ready` on a running daemon.

use std::io::{ErrorKind, Read, Write};

use crate::common::{Daemon, Refusing, ask, echo_server, instance};

/// Returns whether a new connection reaches an echo server.
fn is_served(daemon: &Daemon) -> bool {
    let mut stream = daemon.connect();
    stream.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).is_ok() && back == *b"hello"
}

#[test]
fn a_server_is_drained_and_made_ready_by_command() {
    let (one, two) = (echo_server().to_string(), echo_server().to_string());
    let daemon = Daemon::forward(&instance("drain"), &one, &["--to", &two, "--splice", "never"]);
    let servers = || -> serde_json::Value {
        let (code, out, err) = daemon.ask(&["servers", "--json"]);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let mut kept = daemon.connect();
    kept.write_all(b"hello").unwrap();
    kept.read_exact(&mut [0; 5]).unwrap();
    let all = servers();
    assert_eq!(all[0]["balance"], "first");
    assert_eq!(all[0]["servers"][0]["open"], 1);

    // A listener of `forward` has its address as given for a name.
    let (code, out, err) = daemon.ask(&["servers", "drain", &format!("127.0.0.1:0/{one}")]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("takes no new connections"), "{out}");
    assert_eq!(servers()[0]["servers"][0]["state"], "draining");
    assert!(is_served(&daemon));
    assert_eq!(servers()[0]["servers"][1]["requests_total"], 1);
    // An existing connection goes on.
    kept.write_all(b"again").unwrap();
    kept.read_exact(&mut [0; 5]).unwrap();

    let (_, table, _) = daemon.ask(&["servers"]);
    let row = table.lines().find(|line| line.contains(&one)).unwrap();
    assert!(row.contains("draining"), "{table}");

    let (code, _, err) = daemon.ask(&["servers", "drain", &format!("127.0.0.1:0/{two}")]);
    assert_eq!(code, 0, "{err}");
    let refused = daemon.outcome();
    assert!(matches!(refused, Err(ErrorKind::ConnectionReset)), "{refused:?}");
    let (code, out, err) = daemon.ask(&["servers", "ready", &format!("127.0.0.1:0/{one}")]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("again"), "{out}");
    assert!(is_served(&daemon));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let refusing = Refusing::new();
    let daemon = Daemon::forward(&instance("drain-none"), &refusing.address.to_string(), &[]);
    let (code, _, err) = daemon.ask(&["servers", "drain", "web/one"]);
    assert_eq!(code, 1);
    assert!(
        err.contains("there is no upstream `web`; `longsplice servers` shows them"),
        "{err}"
    );
    let (code, _, err) = daemon.ask(&["servers", "ready", "127.0.0.1:0/one"]);
    assert_eq!(code, 1);
    assert!(err.contains("has no server `one`"), "{err}");
    let (code, _, err) = ask(&["servers", "drain", "one"]);
    assert_eq!(code, 2);
    assert!(err.contains("write UPSTREAM/SERVER"), "{err}");
}
