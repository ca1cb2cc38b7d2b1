//! The access log names the end of a request, and tells how long it took.

use std::fs;

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
