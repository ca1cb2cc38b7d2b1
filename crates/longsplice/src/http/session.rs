//! One client's connection, request after request.

use std::net::SocketAddr;

use longsplice_core::http::{Limits, Persistence};

use super::{
    clock::Clock,
    request::{Decision, Unread},
    wire::Wire,
};
use crate::{
    client::{Client, Hello, Stream},
    listener::{Open, Service, Settings},
};

/// What the requests of a connection share.
pub(super) struct Session<'a> {
    pub(super) settings: &'a Settings,
    pub(super) service: &'a Service,
    pub(super) open: &'a Open,
    pub(super) clock: Clock,
    pub(super) limits: Limits,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) hello: Option<Hello>,
    pub(super) https: bool,
    /// Requests so far, with the one that is served.
    pub(super) requests: u64,
}

/// Serves a client's requests until its connection ends.
pub async fn serve(client: Client, settings: &Settings, open: &Open) {
    let mut session = Session {
        settings,
        service: open.service(),
        open,
        clock: Clock::new(),
        limits: limits(settings.listener.http.max_head),
        peer: client.peer,
        local: client.local,
        https: !client.stream.is_plain(),
        hello: client.hello,
        requests: 0,
    };
    let mut wire = Wire::new(client.stream, client.early);
    while let Some(next) = session.serve_one(wire).await {
        wire = next;
    }
}

fn limits(max_head: usize) -> Limits {
    let default = Limits::default();
    Limits {
        head: max_head,
        line: default.line.max(max_head / 2),
        ..default
    }
}

impl Session<'_> {
    /// Serves the next request; the connection, if another one may follow.
    async fn serve_one(&mut self, mut client: Wire<Stream>) -> Option<Wire<Stream>> {
        let length = match self.read_head(&mut client).await {
            Ok(length) => length,
            Err(Unread::Ended(why)) => {
                tracing::trace!(peer = %self.peer, why, "no further request");
                return None;
            }
            Err(Unread::Refused(refusal)) => {
                self.requests += 1;
                self.refuse(client, &refusal).await;
                return None;
            }
        };
        self.requests += 1;
        match self.decide(&client, length) {
            Decision::Forward(request, destination) => self.exchange(client, request, destination).await,
            Decision::Answer(request, reply) => self.answer(client, &request, &reply).await,
            Decision::Refuse(refusal) => {
                self.refuse(client, &refusal).await;
                None
            }
        }
    }

    /// Whether the client may send another request after this one, as far as we are concerned.
    pub(super) fn persistence(&self) -> Persistence {
        let is_last = self.requests >= self.settings.listener.http.max_requests;
        match is_last || self.service.is_stopping() {
            true => Persistence::Close,
            false => Persistence::KeepAlive,
        }
    }
}
