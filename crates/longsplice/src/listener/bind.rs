//! Listening sockets: bound early, so that a port in use is told before the kernel half is touched.

use std::{io, net::SocketAddr, sync::Arc};

use longsplice_engine::intercept::make_transparent;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinHandle,
};

use super::{Service, accept};

/// How many connections may wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: u32 = 4096;

/// A socket that has its address and does not listen yet.
#[derive(Debug)]
pub struct Bound {
    socket: TcpSocket,
    address: SocketAddr,
}

/// Why an address could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}{}", remedy(.source, .address))]
pub struct BindError {
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

impl Bound {
    /// Takes the address; `intercepts`: it is to accept connections to other addresses, too.
    pub fn bind(address: SocketAddr, intercepts: bool) -> Result<Bound, BindError> {
        let bind = || {
            let socket = if address.is_ipv4() {
                TcpSocket::new_v4()
            } else {
                TcpSocket::new_v6()
            }?;
            socket.set_reuseaddr(true)?;
            if address.is_ipv6() {
                // `0.0.0.0` and `[::]` can be listened on at the same port, whatever net.ipv6.bindv6only says.
                socket2::SockRef::from(&socket).set_only_v6(true)?;
            }
            if intercepts {
                make_transparent(&socket)?;
            }
            socket.bind(address)?;
            let address = socket.local_addr()?;
            Ok(Bound { socket, address })
        };
        bind().map_err(|source| BindError { address, source })
    }

    /// The address it has, with the port that the kernel chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens, and serves until `stop` says so (or its sender is gone); then the socket is closed.
    pub async fn serve(
        self,
        service: Arc<Service>,
        stop: watch::Receiver<bool>,
    ) -> Result<JoinHandle<()>, BindError> {
        let address = self.address;
        let listener = self
            .socket
            .listen(BACKLOG)
            .map_err(|source| BindError { address, source })?;
        prepare(&listener, address, &service).await;
        tracing::info!(listener = service.settings().listener.name, %address, "listening on {address}");
        Ok(tokio::spawn(accept::accept(listener, service, stop)))
    }
}

/// Unprepared, its connections are still served; they may not fit for splicing.
async fn prepare(listener: &TcpListener, address: SocketAddr, service: &Service) {
    let Some(target) = service.likely_target(address).await else {
        return;
    };
    if let Err(error) = service.splicer().prepare_listener(listener, target) {
        tracing::warn!(
            listener = service.settings().listener.name, %address, %target, %error,
            "the listening socket could not be prepared for splicing"
        );
    }
}
