//! What user space is told of a socket.

use std::{
    io::{ErrorKind, Read},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use longsplice_dataplane::{Leg, Side};

use crate::support::{flow::leg, net::Net, plane::Plane};

/// The listener at its port would be found instead, all of whose numbers are zero.
#[test]
fn a_connection_that_has_ended_is_not_found() {
    let _net = Net::new();
    let plane = Plane::open();
    let address = leg(Side::Client).local;
    let listener = TcpListener::bind(address).expect("a listener");
    let client = TcpStream::connect(address).expect("a connection");
    let (mut socket, peer) = listener.accept().expect("a connection");
    let leg = Leg::new(peer, address);
    let before = plane.peek(leg).expect("a connection");
    // Who closes last leaves nothing behind.
    drop(client);
    assert_eq!(socket.read(&mut [0]).expect("its end"), 0);
    drop(socket);
    let patience = Instant::now() + Duration::from_secs(5);
    let error = loop {
        match plane.peek(leg) {
            Ok(closing) => assert_eq!(closing.rcv_nxt, before.rcv_nxt + 1),
            Err(error) => break error,
        }
        assert!(Instant::now() < patience, "it does not end");
    };
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(plane.peek_both([leg; 2]).unwrap_err().kind(), ErrorKind::NotFound);
}
