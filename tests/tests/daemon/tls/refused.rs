//! Only TLS reaches a server.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use longsplice_tests::{Daemon, Policy, SOON, client_hello, soon};

use crate::tls::Place;

struct Refusing {
    daemon: Daemon,
    listener: TcpListener,
    place: Place,
}

impl Refusing {
    fn new(name: &str) -> Refusing {
        let place = Place::new(name);
        let bind = || TcpListener::bind(place.target);
        let listener = place.net.server.run(bind).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut daemon = Daemon::of(&place.config(Policy::DETACHED, "tls"));
        daemon.start(&place.net.forwarder);
        Refusing {
            daemon,
            listener,
            place,
        }
    }

    /// Returns the bytes that a client which sends this receives before the end, and the time until then.
    fn hears(&self, sent: &[u8]) -> (Vec<u8>, Duration) {
        // The daemon's time may begin before the client learns that it is connected.
        let start = Instant::now();
        let connect = || TcpStream::connect_timeout(&self.place.front, SOON);
        let mut client = self.place.net.client.run(connect).unwrap().unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        // The daemon may reset it in the middle of the write.
        let _ = client.write_all(sent);
        let mut heard = Vec::new();
        if let Err(error) = client.read_to_end(&mut heard) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
        (heard, start.elapsed())
    }

    /// Waits until so many were refused, the last for this reason; no connection may reach the server.
    fn expect_refused(&self, count: u64, says: &str) {
        soon("the refusal", || {
            self.daemon.status().listeners[0].refused_total == count
        });
        // A refusal is counted before it is logged.
        soon(says, || self.daemon.log().contains(says));
        let error = self.listener.accept().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn what_is_no_hello_gets_an_alert() {
    let refusing = Refusing::new("tls-garbage");
    let mut server_hello = client_hello("a.example", &[], usize::MAX);
    server_hello[5] = 2;
    for (n, garbage) in [
        b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n".as_slice(),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        &[0; 100],
        &server_hello,
    ]
    .into_iter()
    .enumerate()
    {
        let (heard, after) = refusing.hears(garbage);
        // The alert is fatal (RFC 8446 section 6).
        assert_eq!(
            (heard.first(), heard.get(5)),
            (Some(&0x15), Some(&2)),
            "{garbage:x?}: {heard:x?}"
        );
        assert!(after < Duration::from_secs(5), "{after:?}");
        refusing.expect_refused(n as u64 + 1, "no TLS ClientHello: ");
    }
}

#[test]
fn a_hello_that_does_not_end_is_not_waited_for() {
    let refusing = Refusing::new("tls-slow");
    let hello = client_hello("a.example", &[], usize::MAX);
    let (heard, after) = refusing.hears(&hello[..hello.len() - 1]);
    assert!(heard.is_empty(), "{heard:x?}");
    let limit = Duration::from_secs(10);
    assert!(after >= limit && after < limit + SOON, "{after:?}");
    refusing.expect_refused(1, "no TLS ClientHello came within 10s");
}

#[test]
fn a_hello_that_is_too_long_is_refused() {
    let refusing = Refusing::new("tls-too-long");
    let mut endless = vec![0x16, 3, 1, 0, 4, 1, 0, 0xfd, 0xe8];
    while endless.len() < 100_000 {
        endless.extend([0x16, 3, 1, 0, 1, 0]);
    }
    refusing.hears(&endless);
    refusing.expect_refused(1, "longer than 65536 bytes");
}
