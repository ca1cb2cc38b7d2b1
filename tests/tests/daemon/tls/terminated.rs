//! `[listener.tls]`: connections that are decrypted here, and relayed.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    process::{ChildStdin, Stdio},
    thread,
    time::{Duration, Instant},
};

use longsplice_lab::{Namespace, Process};
use longsplice_tests::{Certificate, Config, Daemon, Nginx, Policy, SOON, curl, eventually, switch::content};
use tempfile::TempDir;

use crate::tls::Place;

const SIZE: usize = 8 << 20;

/// Starts a TCP listener that terminates TLS with these certificates.
fn daemon(place: &Place, certificates: &[&Certificate], more: &str) -> Daemon {
    let config = place
        .config(Policy::DETACHED, "tcp")
        .with(&Certificate::table(certificates))
        .with(more);
    let mut daemon = Daemon::of(&config);
    daemon.start(&place.net.forwarder);
    daemon
}

/// Starts an echo server that runs until the test ends.
fn echo(place: &Place) {
    let bind = || TcpListener::bind(place.target);
    let listener = place.net.server.run(bind).unwrap().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                // A client that is gone is no failure of the server.
                let _ = std::io::copy(&mut stream, &mut back);
                let _ = back.shutdown(std::net::Shutdown::Write);
            });
        }
    });
}

/// Starts `openssl s_client` to the listener, with these words.
fn s_client(place: &Place, words: &[&str]) -> Process {
    place
        .net
        .client
        .command("timeout")
        // The death of `timeout` must end `openssl`, too.
        .args(["60", "setpriv", "--pdeathsig", "KILL"])
        .args(["openssl", "s_client", "-connect", &place.front.to_string()])
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns its output on a handshake with these words.
pub(crate) fn handshake(place: &Place, words: &[&str]) -> String {
    let client = s_client(place, words);
    drop(client.take_stdin());
    let mut text = String::new();
    client.take_stdout().unwrap().read_to_string(&mut text).unwrap();
    text
}

fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("longsplice-test-")
        .tempdir()
        .unwrap()
}

fn fetch(client: &Namespace, place: &Place, certificate: &Certificate, url: &str, words: &[&str]) -> Vec<u8> {
    let found = place.curl_words("a.example", certificate);
    let mut all: Vec<&str> = found.iter().map(String::as_str).collect();
    all.extend(words);
    all.push(url);
    curl(client, &all)
}

#[test]
fn curl_fetches_from_an_nginx_without_tls() {
    let place = Place::new("tls-ends");
    let dir = folder();
    let certificate = Certificate::write(dir.path(), "a", &["a.example"]);
    let server = format!("server {{ listen {}; }}", place.target);
    let nginx = Nginx::start(
        &place.net.server,
        &dir.path().join("nginx"),
        &server,
        place.target,
    );
    let body = content(SIZE);
    nginx.add("file", &body);
    let daemon = daemon(&place, &[&certificate], "");
    for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
        let got = fetch(
            &place.net.client,
            &place,
            &certificate,
            "https://a.example/file",
            version,
        );
        assert!(got == body, "{version:?}: the bytes differ");
    }
    let status = daemon.wait_status("both to end", |s| {
        s.listeners[0].open == 0 && s.relayed_reasons.get("tls") == Some(&2)
    });
    assert_eq!(status.spliced_total, 0, "{status:?}");
}

#[test]
fn what_is_decrypted_and_idle_ends() {
    let place = Place::new("tls-idle");
    let dir = folder();
    let certificate = Certificate::write(dir.path(), "a", &["a.example"]);
    echo(&place);
    let config = place
        .config(Policy::DETACHED, "tcp")
        .with("relay_idle_timeout = \"2s\"");
    let mut daemon = Daemon::of(&config.with(&Certificate::table(&[&certificate])));
    daemon.start(&place.net.forwarder);
    let client = s_client(&place, &["-quiet"]);
    let stdin = client.take_stdin();
    daemon.wait_status("the connection to stand", |s| s.listeners[0].open == 1);
    daemon.wait_status("it to end", |s| s.listeners[0].open == 0);
    assert!(client.wait(SOON).unwrap().is_some(), "its client was not told");
    drop(stdin);
}

/// Sends these bytes through an echo server, and compares them. Returns the client's input, with which it ends.
fn exchange(client: &Process, sent: &[u8]) -> ChildStdin {
    let (mut input, mut output) = (client.take_stdin().unwrap(), client.take_stdout().unwrap());
    let mut got = vec![0; sent.len()];
    thread::scope(|scope| {
        scope.spawn(|| input.write_all(sent).unwrap());
        output.read_exact(&mut got).unwrap();
    });
    assert!(got == sent, "the bytes differ");
    input
}

/// A connection that is told to end is counted with its bytes, as one that ends by itself.
#[test]
fn what_is_decrypted_and_told_to_end_has_its_bytes_counted() {
    let place = Place::new("tls-told");
    let dir = folder();
    let certificate = Certificate::write(dir.path(), "a", &["a.example"]);
    echo(&place);
    let to = |target| {
        let policy = Policy::DETACHED;
        Config::new()
            .listener(place.front, target, policy.splice, policy.detach)
            .with("on_reload = \"reset\"")
            .with(&Certificate::table(&[&certificate]))
            .set("shutdown_timeout = \"100ms\"\n[access_log]\npath = \"access.log\"")
    };
    let elsewhere = (place.net.server_addr, 7001).into();
    let sent = content(300_000);
    for end in ["reload", "shutdown"] {
        let mut daemon = Daemon::of(&to(place.target));
        daemon.start(&place.net.forwarder);
        let client = s_client(&place, &["-quiet"]);
        let _input = exchange(&client, &sent);
        if end == "reload" {
            let said = daemon.change(&to(elsewhere)).unwrap();
            assert!(said.contains("1 open connection ends"), "{said}");
        } else {
            daemon.terminate();
            assert_eq!(daemon.join(), Some(0));
        }
        assert!(client.wait(SOON).unwrap().is_some(), "its client was not told");
        let log = daemon.dir().join("access.log");
        let line = eventually("its record", SOON, || {
            let text = fs::read_to_string(&log).ok();
            text.filter(|text| text.ends_with('\n'))
        });
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["end"], end, "{line}");
        let bytes = ["bytes_to_server", "bytes_to_client"].map(|name| line[name].as_u64());
        assert_eq!(bytes, [Some(300_000); 2], "{line}");
        if end == "reload" {
            let status = daemon.status();
            assert_eq!(status.relayed_reasons.get("tls"), Some(&1), "{status:?}");
            assert_eq!(status.relay_bytes_total, 600_000, "{status:?}");
        }
    }
}

#[test]
fn much_passes_both_ways() {
    let place = Place::new("tls-echo");
    let dir = folder();
    let certificate = Certificate::write(dir.path(), "a", &["a.example"]);
    echo(&place);
    let daemon = daemon(&place, &[&certificate], "");
    let client = s_client(&place, &["-quiet"]);
    let sent = content(SIZE);
    let mut input = client.take_stdin().unwrap();
    let mut output = client.take_stdout().unwrap();
    // `s_client` stops reading while it cannot write: keep only as much on its way as the sockets hold.
    for piece in sent.chunks(64 << 10) {
        let mut got = vec![0; piece.len()];
        input.write_all(piece).unwrap();
        output.read_exact(&mut got).unwrap();
        assert!(got == piece, "the bytes differ");
    }
    drop(client);
    daemon.wait_status("its end", |s| s.listeners[0].open == 0);
}

#[test]
fn a_certificate_is_chosen_by_the_servers_name() {
    let place = Place::new("tls-names");
    let dir = folder();
    let write = |file: &str, names: &[&str]| Certificate::write(dir.path(), file, names);
    let all = [
        write("first", &["first.example"]),
        write("a", &["a.example"]),
        write("wild", &["*.wild.example"]),
    ];
    echo(&place);
    let _daemon = daemon(&place, &all.each_ref(), "");
    for (words, which) in [
        (&["-servername", "a.example"][..], 1),
        (&["-servername", "A.EXAMPLE"], 1),
        (&["-servername", "b.wild.example"], 2),
        (&["-servername", "other.example"], 0),
        (&["-noservername"], 0),
        (&["-servername", "a.example", "-tls1_2"], 1),
    ] {
        let said = handshake(&place, words);
        assert!(said.contains(all[which].pem.trim()), "{words:?}: {said}");
    }
}

#[test]
fn protocols_are_negotiated() {
    let place = Place::new("tls-alpn");
    let dir = folder();
    let certificate = Certificate::write(dir.path(), "a", &["a.example"]);
    echo(&place);
    let config = place
        .config(Policy::DETACHED, "tcp")
        .with(&Certificate::table(&[&certificate]).replace(" }] }", " }], alpn = [\"imap\", \"x\"] }"));
    let mut daemon = Daemon::of(&config);
    daemon.start(&place.net.forwarder);
    for (offers, says) in [
        ("x,imap", "ALPN protocol: imap"),
        ("x", "ALPN protocol: x"),
        ("y", "no peer certificate available"),
    ] {
        let said = handshake(&place, &["-alpn", offers]);
        assert!(said.contains(says), "{offers}: {said}");
    }
    assert!(handshake(&place, &[]).contains("No ALPN negotiated"));
    for old in ["-tls1_1", "-tls1"] {
        let said = handshake(&place, &[old, "-cipher", "DEFAULT@SECLEVEL=0"]);
        assert!(said.contains("no peer certificate available"), "{old}: {said}");
    }
}

#[test]
fn a_certificate_is_replaced_while_connections_go_on() {
    let place = Place::new("tls-renew");
    let dir = folder();
    let old = Certificate::write(dir.path(), "a", &["a.example"]);
    echo(&place);
    let daemon = daemon(&place, &[&old], "");
    let open = s_client(&place, &["-quiet"]);
    let (mut input, mut output) = (open.take_stdin().unwrap(), open.take_stdout().unwrap());
    let mut alive = |text: &[u8]| {
        input.write_all(text).unwrap();
        let mut got = vec![0; text.len()];
        output.read_exact(&mut got).unwrap();
        assert_eq!(got, text);
    };
    alive(b"before");
    fs::write(&old.certificate, "half a certif").unwrap();
    eventually("the broken file to be told of", SOON, || {
        daemon.log().contains("what is in use stays in use").then_some(())
    });
    assert!(
        handshake(&place, &[]).contains(old.pem.trim()),
        "the old one stays"
    );
    alive(b"meanwhile");
    let new = Certificate::write(dir.path(), "a", &["a.example"]);
    assert_ne!(new.pem, old.pem);
    eventually("the new certificate", SOON, || {
        handshake(&place, &[]).contains(new.pem.trim()).then_some(())
    });
    alive(b"after");
    drop(open);
}

#[test]
fn a_daemon_does_not_start_without_its_certificate() {
    let place = Place::new("tls-none");
    let config = place
        .config(Policy::DETACHED, "tcp")
        .with("tls = { certificate = \"none.pem\", key = \"none.key\" }");
    let exit = Daemon::of(&config).start_in_vain(&place.net.forwarder);
    assert_eq!(exit.code, Some(2), "{}", exit.says);
    assert!(exit.says.contains("none.pem: No such file"), "{}", exit.says);
}

#[test]
fn a_rate_limit_holds_for_what_is_decrypted() {
    const RATE: u32 = 2_000_000;
    let place = Place::new("tls-rate");
    let dir = folder();
    let certificate = Certificate::write(dir.path(), "a", &["a.example"]);
    echo(&place);
    for side in ["client", "server"] {
        let config = place
            .config(Policy::DETACHED, "tcp")
            .with(&format!("rate_limit = \"{side}={RATE}B/s,burst=64KiB\""))
            .with(&Certificate::table(&[&certificate]));
        let mut daemon = Daemon::of(&config);
        daemon.start(&place.net.forwarder);
        let client = s_client(&place, &["-quiet"]);
        let mut input = client.take_stdin().unwrap();
        let mut output = client.take_stdout().unwrap();
        let sent = content(800_000);
        let start = Instant::now();
        let mut got = vec![0; sent.len()];
        thread::scope(|scope| {
            scope.spawn(|| input.write_all(&sent).unwrap());
            output.read_exact(&mut got).unwrap();
        });
        // Allow for its burst, and for one read beyond it.
        let least = Duration::from_secs_f64((800_000.0 - 65_536.0 - 65_536.0) / f64::from(RATE));
        assert!(start.elapsed() >= least, "{side}: {:?}", start.elapsed());
        assert!(got == sent, "{side}: the bytes differ");
    }
}
