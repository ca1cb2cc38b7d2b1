//! Holds the state that the requests of a client's connection share, and the notes on the current one.

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Instant};

use longsplice_core::http::{Limits, Persistence, RequestHead};
use longsplice_engine::{Pair, Side};
use longsplice_repair::options;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::{
    buffered_stream::BufferedStream,
    deadline::{Deadline, Late},
    lazy_stream::LazyStream,
    record::Told,
};
use crate::{
    access_log::End,
    client::Hello,
    listener::{Open, Service, Settings},
    rate_limiter::RateLimiter,
    upstream::{Owned, Private, Tenure},
};

/// State that the requests of a connection share.
pub(super) struct Session<'a> {
    /// Settings of the request that is served.
    pub(super) settings: Arc<Settings>,
    pub(super) service: &'a Service,
    pub(super) open: &'a Open,
    pub(super) deadline: Deadline<'a>,
    /// Limits of heads, by the settings that are in force when a head begins.
    pub(super) limits: Limits,
    /// Rate limit of the connection; it holds for all requests and servers together.
    pub(super) pace: RateLimiter,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// True if the client's connection is IPv4 on the wire.
    pub(super) ipv4: bool,
    pub(super) hello: Option<Hello>,
    pub(super) https: bool,
    /// Number of requests so far, including the one that is served.
    pub(super) requests: u64,
    /// Time at which the first byte of the next request was there.
    pub(super) began: Option<Instant>,
    pub(super) told: Option<Told>,
    /// True once a request had a server.
    pub(super) had_server: bool,
    /// Idle connections that end with this one.
    pub(super) owned: Owned,
    /// Connections to servers that the client has authenticated.
    pub(super) private: Private,
    /// Connections of a tunnel, after a 101.
    pub(super) tunnel: Option<Tunnel>,
}

/// Two connections that are no longer HTTP.
#[allow(clippy::large_enum_variant, reason = "made once, and taken apart at once")]
pub(super) enum Tunnel {
    Plain {
        pair: Pair,
        tenure: Tenure,
    },
    Tls {
        client: Box<TlsStream<TcpStream>>,
        server: TcpStream,
        tenure: Tenure,
    },
}

impl Session<'_> {
    /// Waits until the rate limit lets bytes of this side pass.
    pub(super) async fn paced(&mut self, side: Side) -> Result<(), Late> {
        self.deadline.unless_cancelled(pin!(self.pace.may(side))).await
    }

    /// Returns whether the proxy accepts another request after this one.
    pub(super) fn persistence(&self) -> Persistence {
        let is_last = self.requests >= self.settings.listener.http.max_requests;
        let goes_on = || self.service.settings_for_next(&self.settings).is_some();
        match is_last || self.service.is_stopping() || !goes_on() {
            true => Persistence::Close,
            false => Persistence::KeepAlive,
        }
    }

    /// Starts the notes on a request whose head was read, or starts them again.
    pub(super) fn tell(&mut self, head: Option<&RequestHead<'_>>) {
        let is_read = self.service.shared().access_log.is_on();
        let noted = self.told.take().map(|told| told.began());
        let began = self.began.take().or(noted);
        self.told = Some(Told::new(
            began.unwrap_or_else(Instant::now),
            self.peer,
            Arc::clone(&self.settings),
            self.hello.as_ref().and_then(|h| h.sni.clone()),
            head.filter(|_| is_read),
        ));
    }

    /// Ends the request: counts it, and writes its record.
    pub(super) fn over(&mut self, end: End) {
        if let Some(told) = self.told.take() {
            let end = self.open.to_end().unwrap_or(end);
            self.service.splicer().count_relayed_bytes(told.relayed());
            self.service.count(&told.tally(end));
            let log = &self.service.shared().access_log;
            if log.is_on() {
                let (record, began) = told.into_parts();
                log.write(record.ended(began, end));
            }
        }
        self.open.decide(None);
    }

    /// Ends the request, and closes the client's connection with a reset.
    pub(super) fn cut_off(&mut self, client: BufferedStream<LazyStream>, end: End) {
        self.over(end);
        reset(client);
    }

    /// Updates the notes on the request, if one is served.
    pub(super) fn note(&mut self, note: impl FnOnce(&mut Told)) {
        if let Some(told) = &mut self.told {
            note(told);
        }
    }
}

/// Sets whether a close resets the connection. An error means that the connection is gone.
pub(super) fn reset_on_close(client: &BufferedStream<LazyStream>, on: bool) {
    if let Some(socket) = client.stream.socket() {
        let _ = options::set_reset_on_close(socket, on);
    }
}

/// Closes with a reset, so that the client does not take an incomplete message for a complete one.
pub(super) fn reset(client: BufferedStream<LazyStream>) {
    reset_on_close(&client, true);
}
