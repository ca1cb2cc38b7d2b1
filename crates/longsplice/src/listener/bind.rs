//! Binds listening sockets early, so that a port in use is reported before the kernel half is touched.

use std::{io, net::SocketAddr, os::fd::OwnedFd};

use longsplice_engine::intercept::make_transparent;
use tokio::net::TcpSocket;

use super::{Listening, acceptor::Acceptor};

/// Number of connections that may wait to be accepted; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

/// A socket that is bound and does not listen yet.
#[derive(Debug)]
pub(crate) struct Bound {
    socket: TcpSocket,
    configured: SocketAddr,
    address: SocketAddr,
}

/// Reason why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}{}", remedy(.source, .address))]
pub(crate) struct BindError {
    address: SocketAddr,
    source: io::Error,
}

fn remedy(error: &io::Error, address: &SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("; `ss -ltnp sport = :{}` shows who listens there", address.port())
        }
        io::ErrorKind::AddrNotAvailable => {
            "; this machine (or network namespace) has no such address, `ip -br address` lists them".into()
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE, and interception needs \
             CAP_NET_ADMIN"
                .into()
        }
        _ => String::new(),
    }
}

/// Returns a socket that can be bound to this address. `[::]` is IPv6 only: it shares a port with `0.0.0.0`, whatever
/// net.ipv6.bindv6only is.
pub(crate) fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            socket2::SockRef::from(&socket).set_only_v6(true)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    Ok(socket)
}

impl Bound {
    /// Binds the address. With `intercepts`, the socket also accepts connections to other addresses.
    pub(crate) fn bind(configured: SocketAddr, intercepts: bool) -> Result<Bound, BindError> {
        let bind = |socket: &TcpSocket| socket.bind(configured);
        Bound::set_up(socket_for(configured), configured, intercepts, bind)
    }

    /// Uses a socket that another process has passed, which listens already. Sets its options again. Fails if it cannot
    /// be used, or cannot intercept.
    pub(crate) fn inherit(
        socket: OwnedFd,
        configured: SocketAddr,
        intercepts: bool,
    ) -> Result<Bound, BindError> {
        let stream = std::net::TcpStream::from(socket);
        let socket = stream
            .set_nonblocking(true)
            .map(|()| TcpSocket::from_std_stream(stream));
        Bound::set_up(socket, configured, intercepts, |_| Ok(()))
    }

    fn set_up(
        socket: io::Result<TcpSocket>,
        configured: SocketAddr,
        intercepts: bool,
        bind: impl FnOnce(&TcpSocket) -> io::Result<()>,
    ) -> Result<Bound, BindError> {
        let bound = || {
            let socket = socket?;
            // Accepted sockets inherit TCP_NODELAY: the end of a message must not wait for an acknowledgement.
            socket.set_nodelay(true)?;
            if intercepts {
                make_transparent(&socket)?;
            }
            bind(&socket)?;
            Ok(Bound {
                address: socket.local_addr()?,
                socket,
                configured,
            })
        };
        bound().map_err(|source| BindError {
            address: configured,
            source,
        })
    }

    /// Listens: from now on, connections wait to be accepted. Fails if another socket listens at the address.
    pub(crate) fn listen(self) -> Result<Listening, BindError> {
        let Bound {
            socket,
            configured,
            address,
        } = self;
        let acceptor = socket
            .listen(BACKLOG)
            .and_then(Acceptor::new)
            .map_err(|source| BindError { address, source })?;
        Ok(Listening {
            configured,
            address,
            acceptor,
        })
    }
}
