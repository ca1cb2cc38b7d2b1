//! Another program on the forwarder's host.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    time::{Duration, Instant},
};

use longsplice_lab::Namespace;
use socket2::{Domain, Socket, Type};

use crate::{SOON, patient};

/// Connects from this address and port, and closes.
pub fn connect_from(namespace: &Namespace, source: SocketAddr, target: SocketAddr) -> io::Result<()> {
    let connect = || {
        let socket = Socket::new(Domain::for_address(source), Type::STREAM, None)?;
        socket.bind(&source.into())?;
        socket.connect_timeout(&target.into(), patient(SOON))
    };
    namespace.run(connect).unwrap()
}

/// Connects onto the tuple of a flow, and expects the refusal at once.
pub fn expect_refused_at_once(namespace: &Namespace, source: SocketAddr, target: SocketAddr) {
    let start = Instant::now();
    let refused = connect_from(namespace, source, target).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    assert!(start.elapsed() < Duration::from_secs(1), "at once");
}
