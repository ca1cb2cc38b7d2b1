//! `accept_proxy`: a header is required from these peers, and is payload from others.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use longsplice_core::proxy_protocol::{Addresses, Header, Version};
use longsplice_lab::{Line, pattern::Pattern};
use longsplice_tests::{
    Certificate, Config, Daemon, Nginx, Pair, Policy, SOON, accept, client_hello, curl, soon, veth_line,
};

/// Client that the proxy names.
const SOURCE: &str = "203.0.113.7:1234";

struct Behind {
    daemon: Daemon,
    listener: TcpListener,
    net: Line,
    front: SocketAddr,
}

/// Starts a listener that trusts either the client as a proxy, or only another host.
fn behind(name: &str, policy: Policy<'_>, protocol: &str, trusts_client: bool) -> Behind {
    let net = veth_line(name, Default::default());
    let front: SocketAddr = (net.forwarder_client_addr, 8080).into();
    let target: SocketAddr = (net.server_addr, 7000).into();
    let trusted = if trusts_client {
        net.client_addr
    } else {
        net.server_addr
    };
    let config = Config::new()
        .listener(front, target, policy.splice, policy.detach)
        .with(&format!("protocol = \"{protocol}\""))
        .with(&format!("accept_proxy = [\"192.0.2.0/24\", \"{trusted}\"]"));
    let mut daemon = Daemon::of(&config);
    let bind = || TcpListener::bind(target);
    let listener = net.server.run(bind).unwrap().unwrap();
    daemon.start(&net.forwarder);
    Behind {
        daemon,
        listener,
        net,
        front,
    }
}

impl Behind {
    fn connect(&self) -> TcpStream {
        let connect = || TcpStream::connect_timeout(&self.front, SOON);
        let client = self.net.client.run(connect).unwrap().unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        client.set_nodelay(true).unwrap();
        client
    }
}

fn headers() -> Vec<Vec<u8>> {
    let ends = Addresses::new(SOURCE.parse().unwrap(), "198.51.100.1:443".parse().unwrap());
    let v1 = Header::new(Version::V1, Some(ends));
    let mut v2 = Header::new(Version::V2, Some(ends));
    v2.authority = Some("a.example".into());
    v2.alpn = Some(b"h2".to_vec());
    vec![v1.write(), v2.write()]
}

/// Sends a header and the first bytes in pieces; the server must get these bytes.
fn passes(name: &str, protocol: &str, policy: Policy<'_>, first: &[u8]) {
    let behind = behind(name, policy, protocol, true);
    let mut count = 0;
    for header in headers() {
        for pieces in [1, 20, usize::MAX] {
            let mut client = behind.connect();
            for piece in [&header, first].concat().chunks(pieces) {
                client.write_all(piece).unwrap();
            }
            let mut server = accept(&behind.listener);
            server.set_read_timeout(Some(SOON)).unwrap();
            let mut got = vec![0; first.len()];
            server.read_exact(&mut got).unwrap();
            assert!(got == first, "{header:x?}, pieces of {pieces}: {got:x?}");
            let mut pair = Pair::of(client, server);
            if policy.splice == "now" {
                behind
                    .daemon
                    .wait_state(pair.client_port(), &["detached", "dormant"]);
            }
            pair.exchange(200_000);
            pair.close();
            count += 1;
        }
    }
    behind.daemon.wait_reaped();
    let status = behind.daemon.status();
    let spliced = if policy.splice == "now" { count } else { 0 };
    assert_eq!(
        (status.accepted_total, status.spliced_total),
        (count, spliced),
        "{status:?}"
    );
    if policy.splice == "never" {
        let log = behind.daemon.log();
        let known = log.matches(&format!("peer={SOURCE}")).count() as u64;
        assert!(known >= count, "{known} of {count} clients are known: {log}");
    }
}

#[test]
fn what_follows_a_header_is_relayed() {
    passes("proxy-relayed", "tcp", Policy::ON_DEMAND, b"first bytes");
}

#[test]
fn what_follows_a_header_is_spliced() {
    passes("proxy-spliced", "tcp", Policy::DORMANT, b"first bytes");
}

#[test]
fn a_hello_that_follows_a_header_is_read() {
    let hello = client_hello("a.example", &["h2"], 100);
    passes("proxy-hello", "tls", Policy::DETACHED, &hello);
}

#[test]
fn of_others_it_is_not_read() {
    let behind = behind("proxy-others", Policy::DETACHED, "tcp", false);
    let mut client = behind.connect();
    let header = &headers()[0];
    client.write_all(header).unwrap();
    let mut server = accept(&behind.listener);
    server.set_read_timeout(Some(SOON)).unwrap();
    let mut got = vec![0; header.len()];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, header, "it is payload");
}

#[test]
fn a_proxy_without_a_header_is_refused() {
    let behind = behind("proxy-none", Policy::DETACHED, "tcp", true);
    behind.listener.set_nonblocking(true).unwrap();
    let good = headers();
    let at_once = Duration::ZERO;
    for (n, (sent, ends, least, says)) in [
        (
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            false,
            at_once,
            "does not begin with a PROXY header",
        ),
        (b"PROXY TCP4 1.2.3.4\r\n", false, at_once, "is missing"),
        (&good[0][..10], true, at_once, "it ended within its PROXY header"),
        (
            &good[1][..20],
            false,
            Duration::from_secs(5),
            "no PROXY header came within 5s",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let start = Instant::now();
        let mut client = behind.connect();
        client.write_all(sent).unwrap();
        if ends {
            client.shutdown(Shutdown::Write).unwrap();
        }
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{says}: {error}");
        assert!(start.elapsed() >= least, "{says}: {:?}", start.elapsed());
        soon("the refusal", || {
            behind.daemon.status().listeners[0].refused_total == n as u64 + 1
        });
        // A refusal is counted before it is logged.
        soon(says, || behind.daemon.log().contains(says));
        let error = behind.listener.accept().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{says}");
    }
}

#[test]
fn curl_speaks_for_itself_before_tls() {
    let net = veth_line("proxy-curl", Default::default());
    let front: SocketAddr = (net.forwarder_client_addr, 8443).into();
    let target: SocketAddr = (net.server_addr, 7000).into();
    let dir = tempfile::tempdir().unwrap();
    let certificate = Certificate::write(dir.path(), "a", &["a.example"]);
    let nginx = Nginx::start(
        &net.server,
        &dir.path().join("nginx"),
        &format!("server {{ listen {target}; }}"),
        target,
    );
    let body = Pattern::new(11).prefix(1 << 20);
    nginx.add("file", &body);
    let config = Config::new()
        .listener(front, target, "now", "now")
        .with(&format!("accept_proxy = \"{}\"", net.client_addr))
        .with(&Certificate::table(&[&certificate]));
    let mut daemon = Daemon::of(&config);
    daemon.start(&net.forwarder);
    let out = dir.path().join("out");
    curl(
        &net.client,
        &[
            "--haproxy-protocol",
            "--connect-to",
            &format!("a.example:443:{front}"),
            "--cacert",
            certificate.certificate.to_str().unwrap(),
            "-o",
            out.to_str().unwrap(),
            "https://a.example/file",
        ],
    );
    assert!(fs::read(&out).unwrap() == body, "the bytes differ");
    let status = daemon.wait_status("its end", |s| s.listeners[0].open == 0);
    assert_eq!(status.relayed_reasons.get("tls"), Some(&1), "{status:?}");
}
