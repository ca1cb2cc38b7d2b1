//! One connection, from accept to its end.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use longsplice_engine::{
    Ended, Pair, Returned, Side, Splicer, Summary, Trap, Until, policy::SplicePolicy, reason::RelayReason,
};
use longsplice_repair::unread;
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::OwnedSemaphorePermit};

use super::{Service, Settings};
use crate::{
    client::{Client, Stream, Unfit},
    config::Protocol,
    http, tls,
};

/// Counts the connection as open for as long as this process holds it, or waits for its return.
struct Held {
    service: Arc<Service>,
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Held {
    fn new(service: Arc<Service>, permits: [Option<OwnedSemaphorePermit>; 2]) -> Held {
        service.open.fetch_add(1, Ordering::Relaxed);
        Held {
            service,
            _permits: permits,
        }
    }
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
    let held = Held::new(service, permits);
    tokio::spawn(async move { serve(client, peer, &held.service).await });
}

/// Resets the connection: its client learns at once that nobody serves it.
pub(super) fn refuse(client: TcpStream, peer: SocketAddr, service: &Service, reason: &str) {
    service.refused.fetch_add(1, Ordering::Relaxed);
    tracing::info!(listener = service.settings().listener.name, %peer, reason, "connection refused");
    // If this fails, the client sees an orderly end instead, which still is one.
    let _ = client.set_zero_linger();
}

async fn serve(stream: TcpStream, peer: SocketAddr, service: &Service) {
    let settings = service.settings();
    let name = settings.listener.name.as_str();
    if let Err(error) = service.splicer.prepare_client(&stream) {
        tracing::debug!(listener = name, %peer, %error, "the connection could not be prepared");
    }
    let client = match Client::accept(stream, peer, &settings).await {
        Ok(client) => client,
        Err(Unfit::Gone(error)) => {
            return tracing::debug!(listener = name, %peer, %error, "it ended before it was served");
        }
        Err(reason) => {
            service.refused.fetch_add(1, Ordering::Relaxed);
            return tracing::info!(listener = name, %peer, %reason, "connection refused");
        }
    };
    match settings.listener.protocol {
        Protocol::Tcp | Protocol::Tls => forward(client, &settings, service).await,
        Protocol::Http => http::serve(client, &settings, service).await,
    }
}

/// Forwards a connection of which nothing more has to be read.
async fn forward(client: Client, settings: &Settings, service: &Service) {
    let config = &settings.listener;
    let (name, peer) = (config.name.as_str(), client.peer);
    let upstream = settings.upstreams.of_listener(config);
    let lease = match settings.lease(upstream, &client, &service.splicer).await {
        Ok(lease) => lease,
        Err(error) => {
            return refuse(client.stream.into_socket(), peer, service, &error.to_string());
        }
    };
    let socket = match client.stream {
        Stream::Plain(socket) => socket,
        Stream::Tls(stream) => {
            let passed = tls::relay(stream, lease.stream, &client.early).await;
            service.splicer.count_relayed(RelayReason::Tls, passed.bytes());
            return log_relayed(name, peer, &passed);
        }
    };
    let mut server = lease.stream;
    if let Err(error) = server.write_all(&client.early).await {
        return tracing::debug!(listener = name, %peer, %error, "the server is gone");
    }
    let pair = Pair::new(socket, server)
        .with_splice(config.splice)
        .with_detach(config.detach)
        .with_rate_limit(config.rate_limit);
    carry(pair, config.unsplice, &service.splicer, name, peer).await;
}

/// Forwards a pair to its end, however often it comes back.
async fn carry(mut pair: Pair, mut conditions: Until, splicer: &Splicer, name: &str, peer: SocketAddr) {
    let mut until = conditions;
    loop {
        let returned = match splicer.splice(pair, until).await {
            Ok(Ended::Closed(summary)) => return log_end(name, peer, &summary),
            Ok(Ended::Detached(id)) => {
                return tracing::debug!(listener = name, %peer, flow = %id, "detached: it runs on in the kernel");
            }
            Ok(Ended::Returned(returned)) => returned,
            Err(error) => return tracing::warn!(listener = name, %peer, %error, "the connection was cut off"),
        };
        let why = returned.why;
        if returned.spliced {
            tracing::debug!(listener = name, %peer, flow = %returned.id, why = why.as_str(), "unspliced");
        }
        until = until_passed(&returned, conditions);
        pair = Pair::from(returned);
        if why == Trap::Asked {
            // Who wants it back wants it to stay, until it is asked to be spliced.
            pair.splice = SplicePolicy::Never;
            conditions = Until::closed();
            until = conditions;
        }
    }
}

/// What was trapped has to pass before the condition counts again: where there is a protocol, its handler reads it.
fn until_passed(returned: &Returned, conditions: Until) -> Until {
    let (side, from) = match returned.why {
        Trap::Client => (Side::Client, &returned.client),
        Trap::Server => (Side::Server, &returned.server),
        _ => return conditions,
    };
    if !conditions.is_data(side) {
        return conditions;
    }
    conditions.with_data_beyond(side, unread(from).map_or(1, |n| u64::from(n.max(1))))
}

/// Forwards a flow that nobody had waited for; it stays relayed until it is asked to be spliced. It counts as a connection of
/// the listener that has its address, whose limits do not refuse what is there already.
pub(crate) fn spawn_reclaimed(
    returned: Returned,
    splicer: Splicer,
    listeners: &[(Arc<Service>, Vec<SocketAddr>)],
) {
    let (Ok(peer), Ok(local)) = (returned.client.peer_addr(), returned.client.local_addr()) else {
        return tracing::debug!(flow = %returned.id, "it was reset while it came back");
    };
    let covers = |bound: &SocketAddr| {
        bound.port() == local.port() && (bound.ip() == local.ip() || bound.ip().is_unspecified())
    };
    let of_it = listeners.iter().find(|(_, bound)| bound.iter().any(covers));
    let held = of_it.map(|(service, _)| {
        let slot = service
            .slots
            .clone()
            .and_then(|slots| slots.try_acquire_owned().ok());
        Held::new(Arc::clone(service), [slot, service.resources.try_pair()])
    });
    tokio::spawn(async move {
        let settings = held.as_ref().map(|h| h.service.settings());
        let name = settings.as_ref().map_or("none", |s| s.listener.name.as_str());
        tracing::debug!(listener = name, %peer, flow = %returned.id, "taken back from the kernel");
        carry(returned.into(), Until::closed(), &splicer, name, peer).await;
    });
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

fn log_relayed(listener: &str, peer: SocketAddr, passed: &tls::Passed) {
    tracing::debug!(
        listener, %peer,
        to_server = passed.to_server,
        to_client = passed.to_client,
        relay_reason = RelayReason::Tls.as_str(),
        reset = passed.end.is_err(),
        error = passed.end.as_ref().err().map(tracing::field::display),
        "connection ended"
    );
}
