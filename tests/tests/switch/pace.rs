//! `rate_limit` holds for HTTP as for any connection: one account for all requests of a client, relayed, spliced or
//! decrypted.

use std::time::{Duration, Instant};

use longsplice_tests::{
    Certificate,
    switch::{Backend, Mode, More, Switch, content},
};

/// Limit, in bytes per second.
const RATE: u64 = 1_000_000;
/// Bytes that pass at once, …
const BURST: u64 = 100_000;
/// … and bytes that one read may take beyond it.
const READ: u64 = 100_000;

/// Fails if so many bytes passed in less time than permitted.
#[track_caller]
fn assert_held(what: &str, bytes: u64, took: Duration) {
    let least = Duration::from_secs_f64((bytes - BURST - READ) as f64 / RATE as f64);
    assert!(
        took >= least,
        "{what}: {bytes} bytes in {took:?}, less than {least:?}"
    );
}

fn limited(name: &str, mode: Mode, side: &str, tables: &str) -> Switch {
    let listener = format!("rate_limit = \"{side}={RATE}B/s,burst={BURST}B\"");
    let more = More {
        listener: &listener,
        tables,
        ..More::default()
    };
    Switch::with(name, mode, more)
}

#[test]
fn replies_of_one_connection_have_one_account() {
    for mode in Mode::ALL {
        let switch = limited("pace", mode, "server", "");
        let _server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        let start = Instant::now();
        for _ in 0..3 {
            assert!(client.get("/length/200000").body == content(200_000), "{mode:?}");
        }
        for _ in 0..100 {
            assert_eq!(client.get("/length/1000").body, content(1_000), "{mode:?}");
        }
        assert_held(&format!("{mode:?}"), 700_000, start.elapsed());
    }
}

#[test]
fn request_bodies_are_held_to_the_clients_rate() {
    let switch = limited("paceup", Mode::Plain, "client", "");
    let server = Backend::start(&switch.net.server, switch.target());
    let mut client = switch.connect();
    let start = Instant::now();
    let body = content(600_000);
    client.send(format!(
        "PUT /b HTTP/1.1\r\nHost: switch\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    assert_eq!(client.reply().text(), "ok");
    assert_held("upload", 600_000, start.elapsed());
    assert!(server.seen()[0].body == body);
}

#[test]
fn what_is_decrypted_is_held_to_it_too() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = Certificate::write(dir.path(), "a", &["a.example"]);
    let switch = limited("pacetls", Mode::Detached, "server", &certificate.listener_table());
    let _server = Backend::start(&switch.net.server, switch.target());
    let to = format!("a.example:443:{}", switch.front());
    let start = Instant::now();
    let ca = certificate.certificate.display().to_string();
    let url = "https://a.example/length/300000";
    let output = switch.curl(&["--cacert", &ca, "--connect-to", &to, url, url]);
    assert!(output.stdout == content(300_000).repeat(2), "{output:?}");
    assert_held("TLS", 600_000, start.elapsed());
}
