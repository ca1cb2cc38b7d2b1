//! Connections from a given address and port.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use longsplice_lab::Namespace;
use socket2::{Domain, Socket, Type};

use crate::{SOON, eventually, patient};

/// Connects from this address and port; 0 is any port.
pub fn connect_from(namespace: &Namespace, source: SocketAddr, target: SocketAddr) -> io::Result<TcpStream> {
    connect(namespace, source, target, false)
}

fn connect(
    namespace: &Namespace,
    source: SocketAddr,
    target: SocketAddr,
    again: bool,
) -> io::Result<TcpStream> {
    let connect = || {
        let socket = Socket::new(Domain::for_address(source), Type::STREAM, None)?;
        socket.set_reuse_address(again)?;
        socket.bind(&source.into())?;
        socket.connect_timeout(&target.into(), patient(SOON))?;
        Ok(socket.into())
    };
    namespace.run(connect).unwrap()
}

/// Connects from an address and port that a connection has had, even if that lingers in TIME-WAIT here.
///
/// # Panics
/// Panics if the kernel refuses the connection.
pub fn connect_again(namespace: &Namespace, source: SocketAddr, target: SocketAddr) -> TcpStream {
    // A child process of another test has the sockets of this one until its exec(2).
    eventually("the port to be free", SOON, || {
        match connect(namespace, source, target, true) {
            Err(e) if e.kind() == ErrorKind::AddrNotAvailable => None,
            other => Some(other.unwrap()),
        }
    })
}

/// Connects onto the tuple of a flow, and expects the refusal at once.
pub fn expect_refused_at_once(namespace: &Namespace, source: SocketAddr, target: SocketAddr) {
    let start = Instant::now();
    let refused = connect_from(namespace, source, target).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    assert!(start.elapsed() < Duration::from_secs(1), "at once");
}
