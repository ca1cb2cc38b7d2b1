//! The access log has a line for each connection, with the kernel's byte counts, whichever task sees its end.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    path::PathBuf,
    time::Duration,
};

use longsplice_tests::{
    Bed, Pair, Policy, SOON, accept, client_hello, connect_again, eventually, soon, stop_listening,
};
use rustix::process::Signal;
use serde_json::Value;
use socket2::SockRef;

const BYTES: u64 = 300_000;

/// Starts a bed with an access log in JSON.
fn bed(name: &str, policy: Policy<'_>, more: &str) -> (Bed, PathBuf) {
    let bed = Bed::with(name, Default::default(), policy, |c| {
        // The path is relative to the folder of the configuration.
        c.with(more).set("[access_log]\npath = \"access.log\"")
    });
    let path = bed.daemon.dir().join("access.log");
    (bed, path)
}

fn lines(path: &PathBuf) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Waits for the only line, and returns it.
fn only_line(path: &PathBuf) -> Value {
    let mut all = eventually("a line", SOON, || Some(lines(path)).filter(|all| !all.is_empty()));
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn run(pair: &mut Pair) {
    pair.exchange_unevenly(BYTES, 2 * BYTES);
    pair.close();
}

#[test]
fn a_relayed_connection_is_told_of_at_its_end() {
    let (bed, path) = bed("log-relay", Policy::ON_DEMAND, "");
    let mut pair = bed.connect();
    pair.exchange_unevenly(BYTES, 2 * BYTES);
    assert!(lines(&path).is_empty(), "not before");
    pair.close();
    let line = only_line(&path);
    assert_eq!(line["bytes_to_server"], BYTES, "{line}");
    assert_eq!(line["bytes_to_client"], 2 * BYTES, "{line}");
    assert_eq!(
        (&line["spliced"], &line["bytes_spliced"]),
        (&false.into(), &0.into()),
        "{line}"
    );
    assert_eq!(
        (&line["relay_reason"], &line["end"]),
        (&"policy_never".into(), &"complete".into()),
        "{line}"
    );
    assert_eq!(line["client"], bed.net.client_addr.to_string(), "{line}");
    assert_eq!(line["client_port"], pair.client_port(), "{line}");
    assert_eq!(line["server"], bed.target().to_string(), "{line}");
}

/// The reaper logs the end of a detached flow, unless its handler waits for it: then the handler does.
#[test]
fn what_a_spliced_connection_weighed_is_counted_in_the_kernel() {
    for (name, policy, more) in [
        ("log-detached", Policy::DETACHED, ""),
        ("log-waited", Policy::DETACHED, "unsplice = \"idle=1h\""),
        ("log-dormant", Policy::DORMANT, ""),
    ] {
        let (bed, path) = bed(name, policy, more);
        let mut pair = bed.connect_spliced(policy_state(policy));
        run(&mut pair);
        let line = only_line(&path);
        let seen = [&line["bytes_to_server"], &line["bytes_to_client"]].map(|n| n.as_u64().unwrap());
        // Retransmitted bytes count again.
        for (seen, sent) in seen.into_iter().zip([BYTES, 2 * BYTES]) {
            assert!((sent..sent + sent / 10).contains(&seen), "{name}: {line}");
        }
        assert_eq!(line["spliced"], true, "{name}: {line}");
        assert!(
            line["bytes_spliced"].as_u64().unwrap() >= 3 * BYTES - 10_000,
            "{name}: {line}"
        );
        assert_eq!(line["end"], "complete", "{name}: {line}");
        assert!(line["duration_seconds"].as_f64().unwrap() > 0.0, "{name}: {line}");
    }
}

/// A detached connection that was taken back has passed bytes in the kernel before, which no handler saw.
#[test]
fn what_passed_before_a_return_is_told_of() {
    let (bed, path) = bed("log-back", Policy::DETACHED, "");
    let mut pair = bed.connect_spliced("detached");
    for _ in 0..2 {
        pair.exchange_unevenly(BYTES, 2 * BYTES);
        bed.daemon.take_back(pair.client_port(), "detached");
        pair.exchange_unevenly(BYTES, 2 * BYTES);
        bed.daemon.splice_to(pair.client_port(), "detached");
    }
    bed.daemon.take_back(pair.client_port(), "detached");
    run(&mut pair);
    let line = only_line(&path);
    // Retransmitted bytes count again. Two of five exchanges were spliced, but for what the sockets had at either end of a splice.
    for (name, least, sent) in [
        ("bytes_to_server", 5 * BYTES, 5 * BYTES),
        ("bytes_to_client", 10 * BYTES, 10 * BYTES),
        ("bytes_spliced", 6 * BYTES - 10_000, 6 * BYTES),
    ] {
        let seen = line[name].as_u64().unwrap();
        assert!((least..sent + sent / 10).contains(&seen), "{name}: {line}");
    }
    assert_eq!(
        (&line["spliced"], &line["end"]),
        (&true.into(), &"complete".into()),
        "{line}"
    );
}

/// Lets a connection be idle for too long on a listener with these settings, beside one that is not: it ends, and its record
/// says why.
fn idle_for_too_long(name: &str, policy: Policy<'_>, more: &str) {
    let bed = Bed::with(name, Default::default(), policy, |c| {
        c.with(more)
            .set("idle_timeout = \"4s\"\n[access_log]\npath = \"access.log\"")
    });
    let path = bed.daemon.dir().join("access.log");
    let state = policy_state(policy);
    let [mut idle, mut busy] = [(); 2].map(|()| {
        let mut pair = bed.connect_spliced(state);
        pair.server.send(BYTES);
        pair.client.receive(BYTES);
        pair
    });
    let line = eventually("its line", SOON, || {
        busy.server.send(10);
        busy.client.receive(10);
        lines(&path).pop()
    });
    assert_eq!(line["client_port"], idle.client_port(), "{line}");
    assert_eq!(
        (&line["end"], &line["spliced"]),
        (&"idle".into(), &true.into()),
        "{name}: {line}"
    );
    assert!(line["bytes_to_client"].as_u64().unwrap() >= BYTES, "{line}");
    // The ends hear of it with their next segment.
    for end in [&mut idle.client, &mut idle.server] {
        end.send(1);
        end.expect_reset(SOON);
    }
    let status = bed.daemon.status();
    assert_eq!(status.ended("idle"), 1, "{status:?}");
    busy.exchange(BYTES);
    assert_eq!(lines(&path).len(), 1);
}

#[test]
fn a_detached_flow_that_is_idle_for_too_long_is_told_of_as_such() {
    idle_for_too_long("log-idle", Policy::DETACHED, "");
}

#[test]
fn so_is_one_whose_handler_waits_for_it() {
    idle_for_too_long("log-idle-waits", Policy::DETACHED, "unsplice = \"data=client\"");
}

#[test]
fn a_dormant_flow_that_is_idle_for_too_long_is_ended_and_told_of_as_such() {
    idle_for_too_long("log-idle-dorm", Policy::DORMANT, "");
}

fn policy_state(policy: Policy<'_>) -> &'static str {
    match policy.detach {
        "now" => "detached",
        _ => "dormant",
    }
}

/// Nothing else tells of a connection that lasts for days, and nothing at all of one that was adopted.
#[test]
fn a_spliced_connection_is_recorded_from_time_to_time() {
    for policy in [Policy::DETACHED, Policy::DORMANT] {
        let mut bed = Bed::with("log-flows", Default::default(), policy, |c| {
            c.set("[access_log]\npath = \"access.log\"\nflow_interval = \"1s\"")
        });
        let path = bed.daemon.dir().join("access.log");
        let records = || {
            let mut all = lines(&path);
            all.retain(|line| line["record"] == "flow");
            all
        };
        let state = policy_state(policy);
        let mut pair = bed.connect_spliced(state);
        let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
        let mut bytes = |sent: u64| {
            pair.exchange_unevenly(BYTES, 2 * BYTES);
            let counted = |line: &Value| line["to_server"]["bytes"].as_u64().unwrap() >= sent;
            eventually("its record", SOON, || records().into_iter().rfind(counted))
        };
        let line = bytes(BYTES);
        assert_eq!(
            (&line["id"], &line["state"]),
            (&flow.id.into(), &state.into()),
            "{line}"
        );
        bytes(2 * BYTES);
        assert_eq!(
            lines(&path).len(),
            records().len(),
            "the connection has not ended"
        );
        if policy.detach == "now" {
            bed.daemon.kill();
            bed.daemon.start(&bed.net.forwarder);
            let known = records().len();
            soon("a record of the adopted one", || records().len() > known);
        }
        pair.close();
        soon("its end", || {
            bed.daemon.flows().iter().all(|flow| flow.state != state)
        });
        // The next one is recorded, and the one that has ended is not.
        let next = bed.connect_spliced(state);
        let id = bed.daemon.wait_state(next.client_port(), &[state]).id;
        let of_next = || records().iter().filter(|line| line["id"] == id).count();
        soon("two records", || of_next() >= 2);
        let all = records();
        let first = all.iter().position(|line| line["id"] == id).unwrap();
        assert!(all[first..].iter().all(|line| line["id"] == id), "{all:?}");
    }
}

#[test]
fn how_it_ended_is_told() {
    let (bed, path) = bed("log-ends", Policy::DETACHED, "");
    let pair = bed.connect_spliced("detached");
    let flow = bed.daemon.wait_state(pair.client_port(), &["detached"]);
    pair.client.reset();
    let line = only_line(&path);
    assert_eq!(
        (&line["end"], &line["flow"]),
        (&"reset".into(), &flow.id.into()),
        "{line}"
    );
    let pair = bed.connect_spliced("detached");
    let flow = bed.daemon.wait_state(pair.client_port(), &["detached"]);
    bed.daemon.kill_flow(flow.id).unwrap();
    soon("a line", || lines(&path).len() == 2);
    let line = &lines(&path)[1];
    assert_eq!(
        (&line["end"], &line["flow"]),
        (&"admin".into(), &flow.id.into()),
        "{line}"
    );
    stop_listening(bed.listener);
    // Without a listener at the server, the connection is refused.
    let front = (bed.net.forwarder_client_addr, 8080);
    let _ = bed
        .net
        .client
        .run(|| std::net::TcpStream::connect(front))
        .unwrap();
    soon("a line", || lines(&path).len() == 3);
    let line = &lines(&path)[2];
    assert_eq!(
        (&line["end"], &line["server"]),
        (&"unavailable".into(), &Value::Null),
        "{line}"
    );
}

/// Each connection takes the place of the one before it, faster than the daemon looks at its flows.
#[test]
fn what_passed_is_told_of_a_connection_whose_port_is_used_again_at_once() {
    const CONNECTIONS: usize = 8;
    let (bed, path) = bed("log-again", Policy::DETACHED, "");
    let source = (bed.net.client_addr, 40_000).into();
    for _ in 0..CONNECTIONS {
        let mut pair = Pair::accept(connect_again(&bed.net.client, source, bed.front()), &bed.listener);
        bed.daemon.wait_state(40_000, &["detached"]);
        pair.exchange(BYTES);
        // The client's port is not in TIME-WAIT then.
        pair.server.finish();
        pair.client.expect_end();
        pair.client.finish();
        pair.server.expect_end();
    }
    soon("all lines", || lines(&path).len() == CONNECTIONS);
    for line in lines(&path) {
        assert_eq!(line["end"], "complete", "{line}");
        assert!(line["bytes_to_client"].as_u64().unwrap() >= BYTES, "{line}");
    }
    let all = CONNECTIONS as u64;
    bed.daemon
        .wait_status("all are counted", |s| s.ended("closed") == all);
}

/// A new connection takes the place of one that has ended before the daemon, which stood still, has seen how.
#[test]
fn an_end_that_went_unseen_is_told_of_as_unknown() {
    let (bed, path) = bed("log-unseen", Policy::DETACHED, "unsplice = \"idle=1h\"");
    let source = (bed.net.client_addr, 40_000).into();
    let connect = || connect_again(&bed.net.client, source, bed.front());
    let mut pair = Pair::accept(connect(), &bed.listener);
    bed.daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(BYTES);
    bed.daemon.signal(Signal::STOP);
    // The client's port is not in TIME-WAIT then.
    pair.server.finish();
    pair.client.expect_end();
    pair.client.finish();
    pair.server.expect_end();
    drop(pair);
    let client = connect();
    bed.daemon.signal(Signal::CONT);
    let line = only_line(&path);
    assert_eq!(line["end"], "unknown", "{line}");
    let mut next = Pair::accept(client, &bed.listener);
    run(&mut next);
    soon("a line", || lines(&path).len() == 2);
    assert_eq!(lines(&path)[1]["end"], "complete");
}

/// A reply in control mode that a shutdown cuts off has its record, and its client is reset.
#[test]
fn a_request_that_a_shutdown_cuts_off_is_told_of() {
    let mut bed = Bed::with("log-stop", Default::default(), Policy::ON_DEMAND, |c| {
        c.with("protocol = \"http\"")
            .set("shutdown_timeout = \"100ms\"\n[access_log]\npath = \"access.log\"")
    });
    let front = bed.front();
    let connected = bed.net.client.run(|| TcpStream::connect(front)).unwrap();
    let mut client = connected.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut server = accept(&bed.listener);
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ")
        .unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"half ") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        got.extend(byte);
    }
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    let end = client.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    let line = only_line(&bed.daemon.dir().join("access.log"));
    assert_eq!(
        (&line["status"], &line["end"]),
        (&200.into(), &"shutdown".into()),
        "{line}"
    );
}

/// A client closes or resets its connection before what precedes the protocol is complete, or the daemon ends.
#[test]
fn an_end_within_a_proxy_header_or_a_hello_is_told_of() {
    let hello = client_hello("a.example", &[], usize::MAX);
    for (name, more, first) in [
        (
            "log-proxy",
            "accept_proxy = [\"0.0.0.0/0\", \"::/0\"]",
            &b"PROXY TCP4 1.2."[..],
        ),
        ("log-hello", "protocol = \"tls\"", &hello[..20]),
    ] {
        let mut bed = Bed::with(name, Default::default(), Policy::ON_DEMAND, |c| {
            c.with(more)
                .set("shutdown_timeout = \"100ms\"\n[access_log]\npath = \"access.log\"")
        });
        let path = bed.daemon.dir().join("access.log");
        let front = bed.front();
        let connect = || {
            let mut client = bed.net.client.run(|| TcpStream::connect(front)).unwrap().unwrap();
            client.write_all(first).unwrap();
            client
        };
        let closed = connect();
        closed.shutdown(Shutdown::Write).unwrap();
        soon("the first line", || lines(&path).len() == 1);
        SockRef::from(&connect())
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        soon("the second line", || lines(&path).len() == 2);
        let _open = connect();
        bed.daemon
            .wait_status("the third one", |status| status.listeners[0].open == 1);
        bed.daemon.terminate();
        assert_eq!(bed.daemon.join(), Some(0));
        let all = lines(&path);
        let ends: Vec<_> = all.iter().map(|line| &line["end"]).collect();
        assert_eq!(
            ends,
            ["bad_request", "bad_request", "shutdown"],
            "{name}: {all:?}"
        );
    }
}

#[test]
fn a_file_that_was_moved_away_is_opened_anew() {
    let (bed, path) = bed("log-rotate", Policy::ON_DEMAND, "");
    for (n, signal) in [Signal::USR1, Signal::HUP].into_iter().enumerate() {
        let mut pair = bed.connect();
        run(&mut pair);
        soon("a line", || lines(&path).len() == 1);
        let old = path.with_extension(n.to_string());
        fs::rename(&path, &old).unwrap();
        bed.daemon.signal(signal);
        soon("a new file", || path.exists());
        assert_eq!((lines(&old).len(), lines(&path).len()), (1, 0));
    }
}

#[test]
fn a_log_that_cannot_be_opened_is_a_reason_not_to_start() {
    let bed = Bed::new("log-none", Policy::ON_DEMAND);
    let file = bed.daemon.dir().join("longsplice.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{good}\n[access_log]\npath = \"/proc/none/x\"\n")).unwrap();
    let says = bed.daemon.reload().unwrap_err();
    assert!(
        says.contains("/proc/none/x") && says.contains("make its folder"),
        "{says}"
    );
    let mut pair = bed.connect();
    run(&mut pair);
    // A full disk is another matter: connections go on.
    fs::write(&file, format!("{good}\n[access_log]\npath = \"/dev/full\"\n")).unwrap();
    bed.daemon.reload().unwrap();
    let mut pair = bed.connect();
    run(&mut pair);
    soon("a word about it", || {
        bed.daemon.log().contains("cannot be written")
    });
}
