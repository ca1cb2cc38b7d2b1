//! `protocol = "tls"`: the hello is read, passed on as it came, and the rest is spliced.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use longsplice_lab::pattern::Pattern;
use longsplice_tests::{Certificate, Daemon, Nginx, Pair, Policy, SOON, client_hello, curl, library::accept};

use crate::Place;

const SIZE: usize = 4 << 20;

#[test]
fn curl_fetches_from_nginx_by_http_1_and_2() {
    for policy in [Policy::DETACHED, Policy::DORMANT, Policy::ON_DEMAND] {
        let place = Place::new("tls-curl");
        let mut daemon = Daemon::of(&place.config(policy, "tls"));
        let dir = daemon.dir().join("nginx");
        fs::create_dir(&dir).unwrap();
        let certificate = Certificate::write(&dir, "a", &["a.example"]);
        let server = format!(
            "server {{ listen {} ssl http2; ssl_certificate {}; ssl_certificate_key {}; }}",
            place.target,
            certificate.certificate.display(),
            certificate.key.display()
        );
        let nginx = Nginx::start(&place.net.server, &dir, &server, place.target);
        let body = Pattern::new(5).at(0, SIZE).to_vec();
        nginx.add("file", &body);
        daemon.start(&place.net.forwarder);
        for (option, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
            let out = dir.join("out");
            let mut words = place.curl_words("a.example", &certificate);
            let more = [option, "-w", "%{http_version}", "-o"].map(str::to_owned);
            words.extend(more);
            words.extend([out.display().to_string(), "https://a.example/file".into()]);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert_eq!(curl(&place.net.client, &words), version.as_bytes());
            assert!(fs::read(&out).unwrap() == body, "the bytes differ");
        }
        daemon.wait_reaped();
        let status = daemon.status();
        let spliced = if policy.splice == "now" { 2 } else { 0 };
        assert_eq!(
            (status.accepted_total, status.spliced_total),
            (2, spliced),
            "{status:?}"
        );
    }
}

/// Has a hello sent in these pieces, and checks that it arrives as it was; then bytes pass both ways.
fn arrives(name: &str, policy: Policy<'_>, hello: &[u8], pieces: usize) {
    let place = Place::new(name);
    let listener = place
        .net
        .server
        .run(|| TcpListener::bind(place.target))
        .unwrap()
        .unwrap();
    let mut daemon = Daemon::of(&place.config(policy, "tls"));
    daemon.start(&place.net.forwarder);
    let connect = || TcpStream::connect_timeout(&place.front, SOON);
    let mut client = place.net.client.run(connect).unwrap().unwrap();
    client.set_nodelay(true).unwrap();
    for piece in hello.chunks(pieces) {
        client.write_all(piece).unwrap();
    }
    let mut server = accept(&listener);
    server.set_read_timeout(Some(SOON)).unwrap();
    let mut got = vec![0; hello.len()];
    server.read_exact(&mut got).unwrap();
    assert!(got == hello, "{name}: the hello was changed");
    let mut pair = Pair::of(client, server);
    pair.exchange(300_000);
    if policy.splice == "now" {
        daemon.wait_state(pair.client_port(), &["detached", "dormant"]);
        pair.exchange(300_000);
    }
    pair.close();
    daemon.wait_reaped();
    assert_eq!(daemon.status().spliced_total, u64::from(policy.splice == "now"));
}

#[test]
fn a_hello_in_many_segments_and_records_is_passed_on_unchanged() {
    for policy in [Policy::DETACHED, Policy::ON_DEMAND] {
        let one = client_hello("a.example", &["h2", "http/1.1"], usize::MAX);
        arrives("tls-bytes", policy, &one, 1);
        let many = client_hello("a.example", &["h2", "http/1.1"], 10);
        arrives("tls-records", policy, &many, 7);
        // Longer than a segment, as with keys that resist quantum computers; and than one read.
        let names: Vec<String> = (0..100).map(|n| format!("{n:0100}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        arrives(
            "tls-long",
            policy,
            &client_hello("a.example", &names, 16_000),
            1200,
        );
    }
}

#[test]
fn what_follows_a_hello_at_once_comes_after_it() {
    // Early data (RFC 8446 section 2.3) is sent with the hello.
    let mut hello = client_hello("a.example", &["h2"], usize::MAX);
    hello.extend([0x17, 3, 3, 0, 100]);
    hello.extend([42; 100]);
    arrives("tls-early", Policy::DETACHED, &hello, usize::MAX);
}
