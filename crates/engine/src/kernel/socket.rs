//! Prepares, names and closes the sockets of a pair.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use longsplice_dataplane::{PerSide, rules::Mark};
use longsplice_repair::{close_silently, options};
use socket2::SockRef;
use tokio::net::TcpStream;

/// Bits of `skb->mark` by which the routing rule finds packets for this host, and by which segments of taken-over connections are
/// exempted from connection tracking. (The other bits are the user's.)
pub(crate) const MARK: Mark = Mark {
    value: 0x4c00_0000,
    mask: 0xff00_0000,
};

/// Marks what a socket sends ([`MARK`]). Routing rules do not find it: they name the interface at which a packet came in.
pub(crate) fn mark(socket: impl AsFd) -> io::Result<()> {
    SockRef::from(&socket.as_fd()).set_mark(MARK.value)
}

/// Returns true if a socket marks what it sends.
pub(crate) fn is_marked(socket: impl AsFd) -> bool {
    let mark = SockRef::from(&socket.as_fd()).mark();
    mark.is_ok_and(|mark| mark & MARK.mask == MARK.value)
}

/// Returns `SO_COOKIE` of two sockets: no two sockets of a machine have the same.
pub(crate) fn cookies(client: &TcpStream, server: &TcpStream) -> io::Result<PerSide<u64>> {
    Ok(PerSide {
        client: SockRef::from(client).cookie()?,
        server: SockRef::from(server).cookie()?,
    })
}

/// Makes a socket reset its connection if it closes because its process died: the bytes in our buffers are lost then, and
/// an orderly end would hide that.
pub(crate) fn prepare_socket(socket: impl AsFd) -> io::Result<()> {
    options::set_reset_on_close(&socket, true)?;
    options::set_nodelay(&socket, true)?;
    // Otherwise an urgent byte is left out of the read data (RFC 6093 section 3.2), and would be lost here. MPTCP has no
    // urgent data, and does not support the option.
    match SockRef::from(&socket.as_fd()).set_out_of_band_inline(true) {
        Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
        done => done,
    }
}

/// Closes a parked socket; its peer notices nothing. Logs an error: in mode Final the kernel half drops whatever the socket
/// sends at its end.
pub(crate) fn close_in_silence(socket: TcpStream) {
    let closed = socket
        .into_std()
        .and_then(|socket| close_silently(OwnedFd::from(socket)).map_err(|e| e.source.into()));
    if let Err(error) = closed {
        tracing::error!(%error, "cannot close a socket in silence");
    }
}
