//! Connects leg B: chooses the source address, and sends a PROXY header if one is configured.

use std::{io, net::SocketAddr, os::fd::BorrowedFd, time::Duration};

use longsplice_engine::Splicer;
use tokio::{io::AsyncWriteExt, net::TcpStream, time};

use super::lease::Ask;
use crate::config::SourceAddress;

/// Settings for the connection of leg B.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connector<'a> {
    /// The engine.
    pub(super) splicer: &'a Splicer,
    /// Leg A.
    pub(super) client: BorrowedFd<'a>,
    /// Selects the source address that the target sees.
    pub(super) source: SourceAddress,
    /// Longest time for connecting to one address.
    pub(super) timeout: Duration,
}

impl<'a> Connector<'a> {
    pub(super) fn new(splicer: &'a Splicer, ask: &Ask<'a>, timeout: Duration) -> Connector<'a> {
        Connector {
            splicer,
            client: ask.client,
            source: ask.source,
            timeout,
        }
    }

    /// Connects, then sends the header, if any.
    ///
    /// # Errors
    /// Errors of the system; `TimedOut`.
    pub(super) async fn introduce(&self, target: SocketAddr, header: Option<&[u8]>) -> io::Result<TcpStream> {
        let mut stream = self.connect_to(target).await?;
        if let Some(header) = header {
            time::timeout(self.timeout, stream.write_all(header)).await??;
        }
        Ok(stream)
    }

    /// Connects to this address.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) async fn connect_to(&self, target: SocketAddr) -> io::Result<TcpStream> {
        let Connector {
            splicer,
            client,
            timeout,
            ..
        } = *self;
        match self.source {
            SourceAddress::Forwarder => splicer.connect(target, client, timeout).await,
            SourceAddress::Client => splicer.connect_as_client(target, client, timeout).await,
            SourceAddress::ClientAndPort => splicer.connect_as_client_and_port(target, client, timeout).await,
        }
    }
}

/// Sorts the addresses of the client's family first: only legs of one family can be spliced. The resolver's order stays
/// within each family.
pub fn same_family_first(mut addresses: Vec<SocketAddr>, ipv4: bool) -> Vec<SocketAddr> {
    addresses.sort_by_key(|a| a.is_ipv4() != ipv4);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_clients_family_come_first_in_their_order() {
        let all: Vec<SocketAddr> = ["[::1]:1", "127.0.0.1:1", "[::2]:1", "127.0.0.2:1"]
            .iter()
            .map(|a| a.parse().unwrap())
            .collect();
        let order = |ipv4| {
            same_family_first(all.clone(), ipv4)
                .iter()
                .map(|a| a.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(order(true), ["127.0.0.1:1", "127.0.0.2:1", "[::1]:1", "[::2]:1"]);
        assert_eq!(order(false), ["[::1]:1", "[::2]:1", "127.0.0.1:1", "127.0.0.2:1"]);
    }
}
