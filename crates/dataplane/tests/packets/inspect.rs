//! Answers of the inspect program about a socket.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use longsplice_dataplane::{Leg, PerSide, Side};
use longsplice_repair::options;

use crate::support::{flow::leg, net::Net, plane::Plane};

/// Returns a listener, its client, the socket that the client is connected to, and the leg of that socket.
fn connected() -> (TcpListener, TcpStream, TcpStream, Leg) {
    let address = leg(Side::Client).local;
    let listener = TcpListener::bind(address).expect("a listener");
    let client = TcpStream::connect(address).expect("a connection");
    let (socket, peer) = listener.accept().expect("a connection");
    (listener, client, socket, Leg::new(peer, address))
}

/// The look-up would find the listener at its port instead, all of whose numbers are zero.
#[test]
fn a_connection_that_has_ended_is_not_found() {
    let _net = Net::new();
    let plane = Plane::open();
    let (_listener, client, mut socket, leg) = connected();
    let before = plane.inspect(leg).expect("a connection");
    // The end that closes last leaves no socket behind.
    drop(client);
    assert_eq!(socket.read(&mut [0]).expect("its end"), 0);
    drop(socket);
    let patience = Instant::now() + Duration::from_secs(5);
    let error = loop {
        match plane.inspect(leg) {
            Ok(closing) => assert_eq!(closing.rcv_nxt, before.rcv_nxt + 1),
            Err(error) => break error,
        }
        assert!(Instant::now() < patience, "it does not end");
    };
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(
        plane.inspect_both(PerSide::both(leg)).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

/// A flow that was registered with an earlier TSval would take an echo of the latest for a guess.
#[test]
fn no_tsval_that_was_sent_is_later_than_what_the_socket_says() {
    let _net = Net::new();
    let plane = Plane::open();
    let (_listener, mut client, mut server, leg) = connected();
    let mut later_than_the_clock = 0;
    let patience = Instant::now() + Duration::from_secs(5);
    while later_than_the_clock < 10 {
        assert!(Instant::now() < patience, "the clock alone would do");
        client.write_all(&[7]).expect("it is written");
        let clock = options::timestamp_clock(&client).expect("a clock");
        let latest = options::latest_timestamp(&client).expect("a clock");
        server.read_exact(&mut [0]).expect("it is read");
        let heard = plane.inspect(leg).expect("a connection").ts_recent;
        assert!((latest.wrapping_sub(heard) as i32) >= 0, "{heard} after {latest}");
        later_than_the_clock += u32::from((clock.wrapping_sub(heard) as i32) < 0);
    }
}
