//! Leg B: the first address of the first target that answers.

use std::{io, net::SocketAddr, time::Duration};

use longsplice_engine::Splicer;
use tokio::{net::TcpStream, time};

use super::lease::Ask;
use crate::{address::Target, config::SourceAddress};

/// How leg B of a connection is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connector<'a> {
    /// The engine.
    pub(super) splicer: &'a Splicer,
    /// Leg A.
    pub(super) client: &'a TcpStream,
    /// Whose address the target sees.
    pub(super) source: SourceAddress,
    /// How long each address may take.
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

    /// Connects to the first address that answers in time; names are looked up anew.
    ///
    /// # Errors
    /// What each of them answered.
    pub(super) async fn connect(&self, targets: &[Target]) -> Result<TcpStream, Vec<(String, io::Error)>> {
        // An IPv4 client may arrive over an IPv6 socket.
        let peer = self.client.peer_addr();
        let ipv4 = peer.is_ok_and(|peer| peer.ip().to_canonical().is_ipv4());
        let mut attempts = Vec::new();
        for target in targets {
            let addresses = match time::timeout(self.timeout, target.resolve()).await {
                Ok(Ok(addresses)) => same_family_first(addresses, ipv4),
                Ok(Err(error)) => {
                    attempts.push((target.to_string(), error));
                    continue;
                }
                Err(late) => {
                    attempts.push((target.to_string(), late.into()));
                    continue;
                }
            };
            for address in addresses {
                match self.connect_to(address).await {
                    Ok(server) => return Ok(server),
                    Err(error) => attempts.push((name_attempt(target, address), error)),
                }
            }
        }
        Err(attempts)
    }

    /// Connects to this address.
    ///
    /// # Errors
    /// Those of the system.
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

/// Only legs of one family can be spliced; among themselves the addresses keep the resolver's order.
pub fn same_family_first(mut addresses: Vec<SocketAddr>, ipv4: bool) -> Vec<SocketAddr> {
    addresses.sort_by_key(|a| a.is_ipv4() != ipv4);
    addresses
}

fn name_attempt(target: &Target, address: SocketAddr) -> String {
    match target.literal() {
        Some(_) => address.to_string(),
        None => format!("{target} ({address})"),
    }
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

    #[tokio::test]
    async fn every_refusal_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (closed, name) = {
            let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            (gone.local_addr().unwrap(), "no-such-host.invalid:80")
        };
        let splicer = Splicer::relay_only(
            Default::default(),
            longsplice_engine::OpenError::Unsupported("a test".into()),
        );
        let targets = [closed.to_string().parse().unwrap(), name.parse().unwrap()];
        let connector = Connector {
            splicer: &splicer,
            client: &client,
            source: SourceAddress::Forwarder,
            timeout: Duration::from_secs(2),
        };
        let e = connector.connect(&targets).await.unwrap_err();
        let e = super::super::Unavailable::Refused(e).to_string();
        assert!(e.contains(&format!("{closed}: Connection refused")), "{e}");
        assert!(e.contains("no-such-host.invalid:80: "), "{e}");
    }
}
