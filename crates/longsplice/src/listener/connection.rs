//! One connection, from accept to its protocol.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use longsplice_repair::options;
use tokio::sync::OwnedSemaphorePermit;

use super::{Open, Service, Settings, forward, slots::Slot};
use crate::{
    access_log::{AccessRecord, End},
    client::{Client, Unfit},
    config::Protocol,
    http::{self, Front},
};

/// What a connection's task may take in memory, in bytes. Each has one, idle ones too: what is large and rare is boxed.
const TASK: usize = 1 << 10;

/// Serves the connection in a task of its own, which gives its places back at its end.
pub(super) fn spawn(
    client: TcpStream,
    peer: SocketAddr,
    service: Arc<Service>,
    slot: Slot,
    descriptors: Option<OwnedSemaphorePermit>,
) {
    service.counts().accepted.fetch_add(1, Ordering::Relaxed);
    let open = Open::new(service, slot, descriptors);
    let task = serve(client, peer, open);
    debug_assert!(size_of_val(&task) <= TASK, "{} bytes", size_of_val(&task));
    tokio::spawn(task);
}

/// Resets a connection that there is no place for.
pub(super) fn refuse_full(client: TcpStream, peer: SocketAddr, service: &Service) {
    service.counts().accepted.fetch_add(1, Ordering::Relaxed);
    let record = AccessRecord::new(&service.settings().listener.name, peer);
    refuse(
        client,
        service,
        record.ended(Instant::now(), End::Refused),
        "max_connections",
    );
}

/// Resets the connection: its client learns at once that nobody serves it.
pub(super) fn refuse(client: impl AsFd, service: &Service, record: AccessRecord, reason: &str) {
    // If this fails, the client sees an orderly end instead, which still is one.
    let _ = options::set_reset_on_close(&client, true);
    drop(client);
    refused(service, record, reason);
}

/// Counts a connection that was refused, and says why.
fn refused(service: &Service, record: AccessRecord, reason: &str) {
    service.refused.fetch_add(1, Ordering::Relaxed);
    tracing::info!(listener = record.listener, peer = %record.client, reason, "connection refused");
    service.finished(record);
}

async fn serve(stream: TcpStream, peer: SocketAddr, open: Open) {
    let began = Instant::now();
    let service = Arc::clone(open.service());
    let settings = service.settings();
    let listener = &settings.listener;
    let is_http = listener.protocol == Protocol::Http;
    if is_http {
        // Its messages say where they end: a socket that closes in order makes none look whole.
        service.splicer().note_accepted();
    } else if let Err(error) = service.splicer().prepare_client(&stream) {
        tracing::debug!(listener = listener.name, %peer, %error, "the connection could not be prepared");
    }
    // Each on its own: a task is moved when it is spawned, and takes what the largest of its steps takes.
    if is_http && settings.terminator.is_none() && listener.accept_proxy.is_empty() {
        return match fresh(stream, peer) {
            Ok(client) => Box::pin(http::serve(client, &settings, open)).await,
            Err(error) => gone(&listener.name, peer, &error),
        };
    }
    let client = match accepted(stream, peer, &settings).await {
        Ok(client) => client,
        Err(Unfit::Gone(error)) => return gone(&listener.name, peer, &error),
        Err(reason) => {
            let record = AccessRecord::new(&listener.name, peer).ended(began, End::BadRequest);
            return refused(&service, record, &reason.to_string());
        }
    };
    match listener.protocol {
        Protocol::Tcp | Protocol::Tls => Box::pin(forward::forward(client, &settings, open, began)).await,
        Protocol::Http => Box::pin(http::serve(client.map(Front::Known), &settings, open)).await,
    }
}

/// A connection of which nothing is read before its protocol.
fn fresh(stream: TcpStream, peer: SocketAddr) -> io::Result<Client<Front>> {
    let local = stream.local_addr()?;
    Ok(Client::between(Front::Fresh(stream), peer, local))
}

/// A connection once all before its protocol was read.
async fn accepted(stream: TcpStream, peer: SocketAddr, settings: &Settings) -> Result<Client, Unfit> {
    let stream = tokio::net::TcpStream::from_std(stream).map_err(Unfit::Gone)?;
    Client::accept(stream, peer, settings).await
}

fn gone(listener: &str, peer: SocketAddr, error: &io::Error) {
    tracing::debug!(listener, %peer, %error, "it ended before it was served");
}
