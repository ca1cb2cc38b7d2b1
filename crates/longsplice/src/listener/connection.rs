//! Serves a connection, from accept to its protocol.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use tokio::sync::OwnedSemaphorePermit;

use super::{Open, Service, Settings, forward, slots::Slot};
use crate::{
    access_log::{AccessRecord, End},
    client::{Client, RejectReason},
    config::Protocol,
    congestion,
    http::{self, LazyStream},
    proxy_header, tls,
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
    service.refuse(client, record.ended(Instant::now(), End::Refused), reason);
}

async fn serve(stream: TcpStream, peer: SocketAddr, open: Open) {
    let began = Instant::now();
    let service = Arc::clone(open.service());
    let settings = service.settings();
    let listener = &settings.listener;
    // Go on without it: a warning tells of a name that the kernel refuses.
    let _ = congestion::set(&stream, listener.congestion.as_deref());
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
    let refused = |end: End, reason: &str| {
        let record = AccessRecord::new(&listener.name, peer).ended(began, end);
        service.note_refused(record, reason);
    };
    let read = tokio::select! {
        // Poll the connection first: a plain one needs no wait.
        biased;
        read = accepted(stream, peer, &settings) => read,
        why = open.cancelled() => return refused(why, "it was to end before its protocol was read"),
    };
    let client = match read {
        Ok(client) => client,
        Err(RejectReason::Gone(error)) => return gone(&listener.name, peer, &error),
        Err(reason) => return refused(End::BadRequest, &reason.to_string()),
    };
    // Decide by the settings in force: what was read may have taken long.
    let settings = service.settings_after(settings);
    match settings.listener.protocol {
        Protocol::Tcp | Protocol::Tls => Box::pin(forward::forward(client, settings, open, began)).await,
        Protocol::Http => Box::pin(http::serve(client.map(LazyStream::Known), &settings, open)).await,
    }
}

/// Returns a connection of which nothing is read before its protocol.
fn fresh(stream: TcpStream, peer: SocketAddr) -> io::Result<Client<LazyStream>> {
    let local = stream.local_addr()?;
    Ok(Client::between(LazyStream::Fresh(stream), peer, local))
}

/// Reads what precedes the protocol: a PROXY header, if the peer sends one, and a ClientHello, if the listener asks for
/// it. If the listener terminates TLS, performs the handshake. Takes no longer than [`proxy_header::TIMEOUT`] and
/// [`tls::TIMEOUT`] together. Fails closed, with the reason: a connection that cannot be read is never forwarded. If
/// the future is dropped, the connection is closed: nothing was forwarded yet.
async fn accepted(stream: TcpStream, peer: SocketAddr, settings: &Settings) -> Result<Client, RejectReason> {
    let stream = tokio::net::TcpStream::from_std(stream).map_err(RejectReason::Gone)?;
    let listener = &settings.listener;
    let mut client = Client::new(stream, peer).map_err(RejectReason::Gone)?;
    let ip = client.peer.ip();
    if listener.accept_proxy.iter().any(|network| network.contains(ip)) {
        client = Box::pin(proxy_header::read(client, listener.protocol)).await?;
    }
    // Box the futures separately: a plain connection needs no room for them.
    match (&settings.terminator, listener.protocol) {
        (Some(terminator), protocol) => {
            // Let an HTTP connection close with a FIN, as a plain one: what was written of a reply is to arrive.
            let resets = protocol != Protocol::Http;
            Box::pin(terminator.accept(client, resets)).await
        }
        (None, Protocol::Tls) => Box::pin(tls::peek(client)).await,
        (None, Protocol::Tcp | Protocol::Http) => Ok(client),
    }
}

fn gone(listener: &str, peer: SocketAddr, error: &io::Error) {
    tracing::debug!(listener, %peer, %error, "it ended before it was served");
}
