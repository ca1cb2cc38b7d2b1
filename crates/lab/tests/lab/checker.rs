//! The checker fails when it should: a relay between client and server damages the stream. Needs root, for a
//! namespace with ports of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use std::{io, thread};

use crate::common::namespace;
use longsplice_lab::traffic::Failure;
use longsplice_lab::{ConnectionSpec, Exchanges, Outcome, Traffic, TrafficServer, TrafficSpec};

const BYTES: u64 = 500_000;

/// Damage that the relay does to the bytes to the client, from a given one on.
#[derive(Clone, Copy)]
enum Damage {
    None,
    Flip,
    Remove,
    Insert,
    End,
    Reset,
}

/// Runs one connection through a relay that damages the byte at `offset` of the stream to the client.
fn through_relay(damage: Damage, offset: u64) -> Outcome {
    through_relay_with(ConnectionSpec::both_ways(BYTES), damage, offset)
}

/// Runs the connection `each` through such a relay.
fn through_relay_with(mut each: ConnectionSpec, damage: Damage, offset: u64) -> Outcome {
    let ns = namespace("lab-relay");
    let server = TrafficServer::start(&ns, SocketAddr::from(([127, 0, 0, 1], 7000))).unwrap();
    let listener = ns.run(|| TcpListener::bind("127.0.0.1:7001")).unwrap().unwrap();
    each.stall = Duration::from_secs(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (client, _) = listener.accept().unwrap();
            let server = ns.run(|| TcpStream::connect(server.addr())).unwrap().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| copy(&client, &server, Damage::None, 0));
                scope.spawn(|| copy(&server, &client, damage, offset));
            });
        });
        Traffic::run(&ns, listener.local_addr().unwrap(), &TrafficSpec::same(1, each)).unwrap()
    })
}

/// Copies until either end is closed, and closes both as a relay does.
fn copy(mut from: &TcpStream, mut to: &TcpStream, damage: Damage, offset: u64) {
    let mut buffer = vec![0; 10_000];
    let mut done = 0;
    let result: io::Result<()> = loop {
        let mut bytes = match from.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(len) => buffer[..len].to_vec(),
            Err(error) => break Err(error),
        };
        let here = (done..done + bytes.len() as u64).contains(&offset);
        done += bytes.len() as u64;
        if here {
            let at = (offset + bytes.len() as u64 - done) as usize;
            match damage {
                Damage::None => {}
                Damage::Flip => bytes[at] ^= 0x10,
                Damage::Remove => drop(bytes.remove(at)),
                Damage::Insert => bytes.insert(at, 0),
                Damage::End => {
                    let _ = to.write_all(&bytes[..at]);
                    break Ok(());
                }
                Damage::Reset => {
                    socket2::SockRef::from(to)
                        .set_linger(Some(Duration::ZERO))
                        .unwrap();
                    break Err(io::ErrorKind::Other.into());
                }
            }
        }
        if let Err(error) = to.write_all(&bytes) {
            break Err(error);
        }
    };
    let how = if result.is_ok() {
        Shutdown::Write
    } else {
        Shutdown::Both
    };
    let _ = to.shutdown(how);
    if result.is_err() {
        let _ = from.shutdown(Shutdown::Both);
    }
}

fn client_failure(outcome: &Outcome) -> Option<&Failure> {
    outcome.connections[0].client.failure.as_ref()
}

#[test]
fn a_faithful_relay_passes() {
    let outcome = through_relay(Damage::None, 0);
    assert!(outcome.all_ok(), "{outcome:?}");
}

#[test]
fn a_flipped_bit_is_found_where_it_is() {
    for offset in [0, 123_456, BYTES - 1] {
        let outcome = through_relay(Damage::Flip, offset);
        assert_eq!(client_failure(&outcome), Some(&Failure::Mismatch { offset }));
    }
}

#[test]
fn a_missing_byte_is_found() {
    let outcome = through_relay(Damage::Remove, 123_456);
    // The byte behind it may happen to be equal, and some of the next ones too, but hardly ten.
    let found = client_failure(&outcome);
    assert!(
        matches!(
            found,
            Some(Failure::Mismatch {
                offset: 123_456..123_466
            })
        ),
        "{found:?}"
    );
    let outcome = through_relay(Damage::Remove, BYTES - 1);
    assert_eq!(
        client_failure(&outcome),
        Some(&Failure::Short {
            received: BYTES - 1,
            expected: BYTES
        })
    );
}

#[test]
fn an_added_byte_is_found() {
    let outcome = through_relay(Damage::Insert, 123_456);
    let found = client_failure(&outcome);
    assert!(
        matches!(
            found,
            Some(Failure::Mismatch {
                offset: 123_456..123_466
            })
        ),
        "{found:?}"
    );
}

#[test]
fn an_early_end_is_found() {
    let outcome = through_relay(Damage::End, 123_456);
    assert_eq!(
        client_failure(&outcome),
        Some(&Failure::Short {
            received: 123_456,
            expected: BYTES
        })
    );
}

#[test]
fn a_lost_connection_is_found() {
    let outcome = through_relay(Damage::Reset, 123_456);
    let found = client_failure(&outcome);
    assert!(
        matches!(found, Some(Failure::Reset { .. } | Failure::Short { .. })),
        "{found:?}"
    );
}

#[test]
fn a_wrong_byte_in_an_exchange_ends_it_there() {
    let spec = ConnectionSpec::exchanges(Exchanges::new(10, 100, 5000));
    let outcome = through_relay_with(spec.clone(), Damage::Flip, 12_345);
    assert_eq!(
        client_failure(&outcome),
        Some(&Failure::Mismatch { offset: 12_345 })
    );
    let client = &outcome.connections[0].client;
    assert_eq!(
        client.exchanges.len(),
        2,
        "those before the wrong byte: {client:?}"
    );
    assert!(client.sent <= 300, "no more requests after it: {client:?}");
    assert!(
        outcome
            .to_string()
            .contains("\n  connection 0: the byte at 12345 is wrong")
    );
    let faithful = through_relay_with(spec, Damage::None, 0);
    assert!(
        faithful.all_ok() && faithful.exchange_times().count() == 10,
        "{faithful}"
    );
}

#[test]
fn a_missing_byte_of_a_reply_stalls_the_exchange() {
    let spec = ConnectionSpec::exchanges(Exchanges::new(3, 100, 5000));
    let outcome = through_relay_with(spec, Damage::Remove, 4999);
    // The server waits for the next request as long as the client for its last byte; either may give up first.
    let found = client_failure(&outcome);
    assert!(
        matches!(
            found,
            Some(
                Failure::Stalled { received: 4999, .. }
                    | Failure::Reset { received: 4999, .. }
                    | Failure::Short { received: 4999, .. }
            )
        ),
        "{found:?}"
    );
    let sent = outcome.connections[0].client.sent;
    assert_eq!(sent, 100, "no request without the reply before");
}
