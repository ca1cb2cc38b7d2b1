//! Serves a connection, from accept to its protocol.

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

/// Limit of the memory of a connection's task, in bytes. Idle connections have one, too: box large, rarely used state.
const TASK: usize = 1 << 10;

/// Serves the connection in a task of its own, which releases its permits at its end.
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

/// Resets a connection for which no permit or memory is available.
pub(super) fn refuse_unserved(client: TcpStream, peer: SocketAddr, service: &Service, reason: &str) {
    service.counts().accepted.fetch_add(1, Ordering::Relaxed);
    let record = AccessRecord::new(&service.settings().listener.name, peer);
    refuse(
        client,
        service,
        record.ended(Instant::now(), End::Refused),
        reason,
    );
}

/// Resets the connection: its client learns at once that it is not served.
pub(super) fn refuse(client: impl AsFd, service: &Service, record: AccessRecord, reason: &str) {
    // Ignore an error: the client then sees a FIN, which ends the connection, too.
    let _ = options::set_reset_on_close(&client, true);
    drop(client);
    refused(service, record, reason);
}

/// Counts a refused connection, and logs the reason.
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
        // Leave the socket as it is: HTTP messages tell their own length, so a client recognizes an incomplete one even
        // after an orderly close.
        service.splicer().note_accepted();
    } else if let Err(error) = service.splicer().prepare_client(&stream) {
        tracing::debug!(listener = listener.name, %peer, %error, "the connection could not be prepared");
    }
    // Box the futures separately: a task is moved when it is spawned, and takes as much memory as its largest step.
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

/// Returns a connection of which nothing is read before its protocol.
fn fresh(stream: TcpStream, peer: SocketAddr) -> io::Result<Client<Front>> {
    let local = stream.local_addr()?;
    Ok(Client::between(Front::Fresh(stream), peer, local))
}

/// Returns a connection after everything in front of its protocol was read.
async fn accepted(stream: TcpStream, peer: SocketAddr, settings: &Settings) -> Result<Client, Unfit> {
    let stream = tokio::net::TcpStream::from_std(stream).map_err(Unfit::Gone)?;
    Client::accept(stream, peer, settings).await
}

fn gone(listener: &str, peer: SocketAddr, error: &io::Error) {
    tracing::debug!(listener, %peer, %error, "it ended before it was served");
}
