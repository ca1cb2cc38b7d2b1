//! One connection, from accept to its end.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use longsplice_engine::{Ended, Pair, Returned, Splicer, Summary, Trap, Until, policy::SplicePolicy};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::OwnedSemaphorePermit};

use super::Service;
use crate::upstream;

/// How much is read of what was trapped before the pair is spliced again; bytes.
const TRAPPED: usize = 64 << 10;

/// Counts the connection as open for as long as this process holds it.
struct Held {
    service: Arc<Service>,
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Drop for Held {
    fn drop(&mut self) {
        self.service.open.fetch_sub(1, Ordering::Relaxed);
        self.service.resources.freed.notify_one();
    }
}

/// Serves the connection in a task of its own, which gives the permits back at its end.
pub(super) fn spawn(
    client: TcpStream,
    peer: SocketAddr,
    service: Arc<Service>,
    permits: [Option<OwnedSemaphorePermit>; 2],
) {
    service.open.fetch_add(1, Ordering::Relaxed);
    let held = Held {
        service,
        _permits: permits,
    };
    tokio::spawn(async move { serve(client, peer, &held.service).await });
}

/// Resets the connection: its client learns at once that nobody serves it.
pub(super) fn refuse(client: TcpStream, peer: SocketAddr, service: &Service, reason: &str) {
    service.refused.fetch_add(1, Ordering::Relaxed);
    tracing::info!(listener = service.config.name, %peer, reason, "connection refused");
    // If this fails, the client sees an orderly end instead, which still is one.
    let _ = client.set_zero_linger();
}

async fn serve(client: TcpStream, peer: SocketAddr, service: &Service) {
    let config = &service.config;
    let name = config.name.as_str();
    if let Err(error) = service.splicer.prepare_client(&client) {
        tracing::debug!(listener = name, %peer, %error, "the connection could not be prepared");
    }
    let server = match upstream::connect(&service.splicer, &client, &config.to, config.connect_timeout).await
    {
        Ok(server) => server,
        Err(refused) => return refuse(client, peer, service, &refused.to_string()),
    };
    let pair = Pair::new(client, server)
        .with_splice(config.splice)
        .with_detach(config.detach);
    carry(pair, config.unsplice, &service.splicer, name, peer).await;
}

/// Forwards a pair to its end, however often it comes back.
pub(crate) async fn carry(mut pair: Pair, until: Until, splicer: &Splicer, name: &str, peer: SocketAddr) {
    loop {
        match splicer.splice(pair, until).await {
            Ok(Ended::Closed(summary)) => return log_end(name, peer, &summary),
            Ok(Ended::Detached(id)) => {
                return tracing::debug!(listener = name, %peer, flow = %id, "detached: it runs on in the kernel");
            }
            Ok(Ended::Returned(returned)) => {
                tracing::debug!(listener = name, %peer, flow = %returned.id, why = returned.why.as_str(), "unspliced");
                let why = returned.why;
                let asked = why == Trap::Asked;
                pair = Pair::from(returned);
                if let Err(error) = hand_on(&mut pair, why).await {
                    return tracing::debug!(listener = name, %peer, %error, "connection broken: both ends are reset");
                }
                // Who wants it back wants it to stay, until it is asked to be spliced.
                if asked {
                    pair.splice = SplicePolicy::Never;
                }
            }
            Err(error) => return tracing::warn!(listener = name, %peer, %error, "the connection was cut off"),
        }
    }
}

/// Reads what was trapped, and writes it on: where there is a protocol, this is what its handler does.
async fn hand_on(pair: &mut Pair, why: Trap) -> io::Result<()> {
    let (from, to) = match why {
        Trap::Client => (&mut pair.client, &mut pair.server),
        Trap::Server => (&mut pair.server, &mut pair.client),
        _ => return Ok(()),
    };
    let mut trapped = vec![0; TRAPPED];
    match from.try_read(&mut trapped) {
        Ok(n) => to.write_all(&trapped[..n]).await,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(e) => {
            // The end that is well hears of it.
            let _ = to.set_zero_linger();
            Err(e)
        }
    }
}

/// Forwards a flow that nobody had waited for; it stays relayed until it is asked to be spliced.
pub(crate) async fn carry_reclaimed(returned: Returned, splicer: &Splicer) {
    match returned.client.peer_addr() {
        Ok(peer) => carry(returned.into(), Until::closed(), splicer, "reclaimed", peer).await,
        // It has ended already, and the sockets with it.
        Err(error) => tracing::debug!(flow = %returned.id, %error, "reclaimed too late"),
    }
}

fn log_end(listener: &str, peer: SocketAddr, summary: &Summary) {
    tracing::debug!(
        listener, %peer,
        flow = %summary.id,
        to_server = summary.bytes_to_server,
        to_client = summary.bytes_to_client,
        spliced = summary.spliced,
        relay_reason = summary.relay_reason.map(|r| r.as_str()),
        reset = summary.reset,
        "connection ended"
    );
}
