//! Connects leg B in the name of the client.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use tokio::net::TcpStream;

use super::Splicer;
use crate::{flow::assess, transparent::identity};

impl Splicer {
    /// Connects like [`Splicer::connect`], but from the client's own address, which needs CAP_NET_ADMIN: the target sees
    /// the client. Its answers must come in over this host, on an interface with a rule that makes them follow their
    /// connection ([`Action::Follow`](crate::services::rules::Action::Follow)).
    ///
    /// # Errors
    /// Returns those of [`Splicer::connect`]; `InvalidInput` if client and target are of two families.
    pub async fn connect_as_client(
        &self,
        target: SocketAddr,
        client: impl AsFd,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let client = client.as_fd();
        let from = client_address(target, client)?;
        self.connect_from(Some(from), target, client, timeout).await
    }

    /// Connects with the client's port and its initial sequence number, too, so that the client's stream has the same
    /// numbers on both legs (papers' section III-F; docs/decisions/0016). If that port is in use toward the target, takes
    /// another one, like [`Splicer::connect_as_client`].
    ///
    /// The connection tracker of this host takes both legs for one connection: there must be none, or the client's socket is one of
    /// an accelerator, whose mark the server's gets, too ([`Notrack`](crate::notrack::Notrack)).
    ///
    /// # Errors
    /// Returns those of [`Splicer::connect_as_client`].
    pub async fn connect_as_client_and_port(
        &self,
        target: SocketAddr,
        client: impl AsFd,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let client = client.as_fd();
        let from = client_address(target, client)?;
        let target = longsplice_repair::canonical(target);
        if let Some(plane) = self.context.plane().filter(|_| assess::is_global(target)) {
            let info = longsplice_repair::tcp_info(client).ok();
            let request = self.request(plane, client, info.as_ref()).await;
            let own = identity::connect(plane, client, target, request);
            if let Some(done) = tokio::time::timeout(timeout, own).await? {
                return done.inspect(|server| {
                    self.note_agreement(plane, client, info.as_ref(), &request, target, server)
                });
            }
        }
        self.connect_from(Some(from), target, client, timeout).await
    }
}

/// Returns the address from which to connect in the name of a client.
fn client_address(target: SocketAddr, client: BorrowedFd<'_>) -> io::Result<IpAddr> {
    let from = assess::addresses(client)?.peer.ip();
    if from.is_ipv4() == longsplice_repair::canonical(target).is_ipv4() {
        return Ok(from);
    }
    let what = format!("{target} cannot be reached from the client's address {from}: the families differ");
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}
