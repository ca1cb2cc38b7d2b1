//! Tests how requests are counted and logged.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::harness::{Certified, PATIENCE, Server, Switch, ok, read_until, until};
use crate::{
    access_log::LogTarget,
    config::{AccessLogConfig, AccessLogFormat},
};

const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// Turns the access log of a switch on; its file is in this folder.
fn log(switch: &Switch, dir: &TempDir) {
    let target = LogTarget::open(&AccessLogConfig {
        path: Some(dir.path().join("log")),
        format: AccessLogFormat::Json,
        flow_interval: None,
    });
    switch.shared.access_log.set(Some(target.unwrap()));
}

/// Returns the lines of the log once there are so many.
async fn lines(switch: &Switch, dir: &Path, many: usize) -> Vec<Value> {
    let read = || {
        switch.shared.access_log.flush(PATIENCE);
        let text = fs::read_to_string(dir.join("log")).unwrap();
        text.lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect::<Vec<Value>>()
    };
    until("the lines are there", || read().len() >= many).await;
    read()
}

#[tokio::test]
async fn a_reply_that_is_relayed_says_why_and_all_its_bytes_are_counted() {
    for (keys, reason) in [
        ("splice = \"now\"\nsplice_min = \"1\"", "unsupported"),
        ("splice = \"never\"", "policy_never"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::new().await;
        let switch = Switch::with(server.address, keys);
        log(&switch, &dir);
        let mut client = switch.client().await;
        client.send(GET).await;
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\n").await;
        let reply = ok(&format!("{}end", "x".repeat(200_000)));
        tokio::join!(at_server.send(&reply), client.until("end"));
        let line = &lines(&switch, dir.path(), 1).await[0];
        assert_eq!(
            (&line["relay_reason"], &line["spliced"]),
            (&reason.into(), &false.into()),
            "{line}"
        );
        let logged = line["bytes_to_client"].as_u64().unwrap() + line["bytes_to_server"].as_u64().unwrap();
        assert!(logged > 200_000, "{line}");
        assert_eq!(
            switch.shared.splicer.counters().relay_bytes_total,
            logged,
            "{keys}"
        );
    }
}

#[tokio::test]
async fn a_decrypted_connection_counts_as_relayed_once_and_says_so_of_each_request() {
    let dir = tempfile::tempdir().unwrap();
    let certified = Certified::new(dir.path());
    let mut server = Server::new().await;
    let keys = format!(
        "[[listener.route]]\npath = \"/no\"\nstatus = 403\n{}",
        certified.table
    );
    let switch = Switch::with(server.address, &keys);
    log(&switch, &dir);
    let mut client = certified.connect(switch.client().await.0).await;
    let mut at_server = None;
    for _ in 0..2 {
        client.write_all(GET.as_bytes()).await.unwrap();
        let at_server = match &mut at_server {
            Some(at_server) => at_server,
            none => none.insert(server.next().await),
        };
        at_server.until("\r\n\r\n").await;
        at_server.send(ok("two")).await;
        read_until(&mut client, "two").await;
    }
    let no = GET
        .replace("GET / ", "GET /no ")
        .replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    client.write_all(no.as_bytes()).await.unwrap();
    client.read_to_end(&mut Vec::new()).await.unwrap();
    drop(client);
    let counters = || switch.shared.splicer.counters();
    until("it has ended", || switch.service.open() == 0).await;
    assert_eq!(
        counters().relayed_reasons.get("tls"),
        Some(&1),
        "{:?}",
        counters()
    );
    let lines = lines(&switch, dir.path(), 3).await;
    let reasons: Vec<_> = lines.iter().map(|line| &line["relay_reason"]).collect();
    assert_eq!(reasons, [&Value::from("tls"), &"tls".into(), &Value::Null]);
    // The answer of the switch itself is not relayed.
    let bytes =
        |line: &Value| line["bytes_to_client"].as_u64().unwrap() + line["bytes_to_server"].as_u64().unwrap();
    assert_eq!(
        counters().relay_bytes_total,
        lines[..2].iter().map(bytes).sum::<u64>()
    );
}
