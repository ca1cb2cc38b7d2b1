//! The access log names the end of a request, and the side at fault.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    thread,
};

use longsplice_repair::options::set_reset_on_close;
use longsplice_tests::{
    SOON, eventually,
    switch::{Backend, Mode, More, Switch},
};
use serde_json::Value;

const LOG: &str = "[access_log]\npath = \"access.log\"";

/// Waits for the `nth` line, and returns it.
fn line(switch: &Switch, nth: usize) -> Value {
    let path = switch.daemon.dir().join("access.log");
    let text = eventually("a line", SOON, || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        text.split_inclusive('\n')
            .nth(nth)
            .filter(|line| line.ends_with('\n'))
            .map(str::to_owned)
    });
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_time_of_a_request_begins_with_its_first_byte() {
    let more = More {
        http: "head_timeout = \"400ms\"",
        tables: LOG,
        ..More::default()
    };
    let switch = Switch::with("log-head", Mode::Plain, more);
    let _server = Backend::start(&switch.net.server, switch.target());
    let mut client = switch.connect();
    assert_eq!(client.get("/a").text(), "ok");
    client.send("GET / HTTP/1.1\r\nHost: sw");
    assert_eq!(client.reply().status, 408);
    let line = line(&switch, 1);
    assert_eq!(
        (&line["status"], &line["end"]),
        (&408.into(), &"client_timeout".into()),
        "{line}"
    );
    assert!(line["duration_seconds"].as_f64().unwrap() >= 0.4, "{line}");
}

#[test]
fn a_client_that_resets_its_upload_beside_the_reply_has_closed() {
    let more = More {
        tables: LOG,
        ..More::default()
    };
    let switch = Switch::with("log-upload", Mode::Plain, more);
    let listener = switch.net.server.run(|| TcpListener::bind(switch.target()));
    let listener = listener.unwrap().unwrap();
    // The reply begins before the request has ended, and goes on for as long as the connection.
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut request = Vec::new();
        while !request.ends_with(b"hello") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            .unwrap();
        let _ = stream.read_to_end(&mut request);
    });
    let mut client = switch.connect();
    client.send("POST / HTTP/1.1\r\nHost: switch\r\nContent-Length: 10\r\n\r\nhello");
    client.read_until(b"half").unwrap();
    set_reset_on_close(&client.stream, true).unwrap();
    drop(client);
    let line = line(&switch, 0);
    assert_eq!(
        (&line["status"], &line["end"]),
        (&200.into(), &"client_closed".into()),
        "{line}"
    );
    server.join().unwrap();
}

#[test]
fn a_reply_that_stops_is_late_by_the_side_that_stopped() {
    let more = More {
        // The half of a reply is seen to be spliced within this time.
        http: "body_timeout = \"3s\"",
        tables: LOG,
        ..More::default()
    };
    // All modes wait at the same time.
    thread::scope(|scope| {
        for mode in Mode::ALL {
            scope.spawn(move || a_reply_that_stops_is_late_in(mode, more));
        }
    });
}

fn a_reply_that_stops_is_late_in(mode: Mode, more: More<'_>) {
    let switch = Switch::with("log-idle", mode, more);
    let _server = Backend::start(&switch.net.server, switch.target());
    let mut client = switch.connect();
    let _half = switch.get_half("halves", &mut client);
    let said = line(&switch, 0);
    assert_eq!(said["end"], "server_timeout", "{mode:?}: {said}");

    // This client takes no more than its window. Once the reply is spliced, the daemon cannot tell that from a
    // server that stops.
    let mut client = switch.connect();
    client.send("GET /length/50000000 HTTP/1.1\r\nHost: switch\r\n\r\n");
    client.read_until(b"\r\n\r\n").unwrap();
    let said = line(&switch, 1);
    let expected = match mode.splices() {
        true => "server_timeout",
        false => "client_timeout",
    };
    assert_eq!(said["end"], expected, "{mode:?}: {said}");
}
