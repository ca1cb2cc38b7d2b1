//! Reads the PROXY header of a connection from a proxy ([`longsplice_core::proxy_protocol`]).

use std::time::Duration;

use longsplice_core::proxy_protocol::{Header, Step, parse};
use longsplice_repair::options::set_reset_on_close;
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};

use crate::{
    client::{Client, RejectReason, Stream},
    config::Protocol,
};

/// Longest time for a header.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of the first read: a header, and often a complete request or ClientHello behind it.
const CHUNK: usize = 2048;

/// Reads the header of a connection of which nothing was read, and adopts its addresses. A connection without one is
/// reset when it is dropped.
pub(crate) async fn read(mut client: Client, protocol: Protocol) -> Result<Client, RejectReason> {
    let Stream::Plain(socket) = &mut client.stream else {
        return Ok(client);
    };
    let resets = |socket: &TcpStream, on| {
        set_reset_on_close(socket, on).map_err(|error| RejectReason::Gone(error.into()))
    };
    resets(socket, true)?;
    let (header, rest) = timeout(TIMEOUT, header(socket))
        .await
        .unwrap_or(Err(RejectReason::ProxyLate(TIMEOUT)))?;
    if protocol == Protocol::Http {
        // Close with a FIN from here on: messages of HTTP tell their own length.
        resets(socket, false)?;
    }
    if let Some(ends) = header.addresses {
        client.peer = ends.source;
        client.local = ends.destination;
    }
    client.early = rest;
    Ok(client)
}

/// Reads the header. Returns it, and the bytes behind it.
async fn header(socket: &mut TcpStream) -> Result<(Header, Vec<u8>), RejectReason> {
    let mut bytes = Vec::with_capacity(CHUNK);
    loop {
        match parse(&bytes).map_err(RejectReason::Proxy)? {
            Step::Done { header, length } => return Ok((header, bytes.split_off(length))),
            Step::NeedMore => {}
        }
        match socket.read_buf(&mut bytes).await {
            Ok(0) | Err(_) if !bytes.is_empty() => return Err(RejectReason::ProxyCut),
            Ok(0) => return Err(RejectReason::Gone(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return Err(RejectReason::Gone(error)),
        }
    }
}
