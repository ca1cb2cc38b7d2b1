//! `protocol = "tls"`: the hello is read, passed on as it came, and the rest is spliced.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use longsplice_tests::{
    Certificate, Daemon, Nginx, Pair, Policy, SOON, accept, client_hello, curl, switch::content,
};

use crate::tls::{Place, terminated::handshake};

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
        let body = content(SIZE);
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

/// Sends hellos in pieces of these sizes, and checks that each arrives unchanged; then bytes pass both ways.
fn arrive(name: &str, policy: Policy<'_>, hellos: &[(Vec<u8>, usize)]) {
    let place = Place::new(name);
    let bind = || TcpListener::bind(place.target);
    let listener = place.net.server.run(bind).unwrap().unwrap();
    let mut daemon = Daemon::of(&place.config(policy, "tls"));
    daemon.start(&place.net.forwarder);
    for (n, (hello, pieces)) in hellos.iter().enumerate() {
        let connect = || TcpStream::connect_timeout(&place.front, SOON);
        let mut client = place.net.client.run(connect).unwrap().unwrap();
        client.set_nodelay(true).unwrap();
        for piece in hello.chunks(*pieces) {
            client.write_all(piece).unwrap();
        }
        let mut server = accept(&listener);
        server.set_read_timeout(Some(SOON)).unwrap();
        let mut got = vec![0; hello.len()];
        server.read_exact(&mut got).unwrap();
        assert!(&got == hello, "{name}: hello {n} was changed");
        let mut pair = Pair::of(client, server);
        pair.exchange(300_000);
        if policy.splice == "now" {
            daemon.wait_state(pair.client_port(), &["detached", "dormant"]);
            pair.exchange(300_000);
        }
        pair.close();
    }
    daemon.wait_reaped();
    let spliced = if policy.splice == "now" { hellos.len() } else { 0 };
    assert_eq!(daemon.status().spliced_total, spliced as u64);
}

#[test]
fn a_hello_in_many_segments_and_records_is_passed_on_unchanged() {
    let alpn = &["h2", "http/1.1"];
    // Longer than a segment, as with post-quantum keys, and longer than one read.
    let names: Vec<String> = (0..100).map(|n| format!("{n:0100}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let hellos = [
        (client_hello("a.example", alpn, usize::MAX), 1),
        (client_hello("a.example", alpn, 10), 7),
        (client_hello("a.example", &names, 16_000), 1200),
    ];
    for policy in [Policy::DETACHED, Policy::ON_DEMAND] {
        arrive("tls-pieces", policy, &hellos);
    }
}

#[test]
fn what_follows_a_hello_at_once_comes_after_it() {
    // Early data (RFC 8446 section 2.3) is sent with the hello.
    let mut hello = client_hello("a.example", &["h2"], usize::MAX);
    hello.extend([0x17, 3, 3, 0, 100]);
    hello.extend([42; 100]);
    arrive("tls-early", Policy::DETACHED, &[(hello, usize::MAX)]);
}

/// Clients of TLS 1.1 and earlier offer no signature algorithms. That is between them and their server.
#[test]
fn an_old_clients_hello_is_passed_on_by_its_name() {
    let place = Place::new("tls-old");
    let nowhere = SocketAddr::new(place.target.ip(), 7999);
    let config = longsplice_tests::Config::new()
        .listener(place.front, nowhere, "now", "now")
        .with(&format!(
            "protocol = \"tls\"\n[[listener.route]]\nsni = \"a.example\"\nupstream = \"old\"\n\
             [[upstream]]\nname = \"old\"\nservers = \"{}\"",
            place.target
        ));
    let mut daemon = Daemon::of(&config);
    let dir = daemon.dir().join("nginx");
    fs::create_dir(&dir).unwrap();
    let certificate = Certificate::write(&dir, "a", &["a.example"]);
    let server = format!(
        "server {{ listen {} ssl; ssl_protocols TLSv1.1; ssl_ciphers DEFAULT@SECLEVEL=0; ssl_certificate {}; ssl_certificate_key {}; }}",
        place.target,
        certificate.certificate.display(),
        certificate.key.display()
    );
    let _nginx = Nginx::start(&place.net.server, &dir, &server, place.target);
    daemon.start(&place.net.forwarder);
    let said = handshake(
        &place,
        &[
            "-tls1_1",
            "-cipher",
            "DEFAULT@SECLEVEL=0",
            "-servername",
            "a.example",
        ],
    );
    assert!(said.contains(certificate.pem.trim()), "{said}");
    assert!(said.contains("Protocol  : TLSv1.1"), "{said}");
}
