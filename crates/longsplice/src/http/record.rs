//! What is told of a request once it is over.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use longsplice_core::http::RequestHead;
use longsplice_engine::{FlowId, Summary, reason::RelayReason};

use super::session::Session;
use crate::{
    access_log::{AccessRecord, End, Request, cut},
    listener::{Destination, Settings, Tally},
    upstream::Server,
};

/// What is noted of the request that is served. It becomes a record only where somebody reads the log: names are copied then.
#[derive(Debug)]
pub(super) struct Told {
    began: Instant,
    client: SocketAddr,
    /// Under which it was decided.
    settings: Arc<Settings>,
    sni: Option<String>,
    /// Where somebody reads the log.
    request: Option<Box<Request>>,
    /// The number of its route, once it was decided where it goes.
    routed: Option<Option<usize>>,
    server: Option<Arc<Server>>,
    status: Option<u16>,
    first_byte: Option<Duration>,
    bytes_to_client: u64,
    bytes_to_server: u64,
    flow: Option<FlowId>,
    spliced: bool,
    bytes_spliced: u64,
    relay_reason: Option<RelayReason>,
}

impl Told {
    /// What a server sent begins here.
    pub(super) fn reply_began(&mut self, status: u16) {
        self.status = Some(status);
        self.first_byte = Some(self.began.elapsed());
    }

    /// We answer ourselves.
    pub(super) fn answered(&mut self, status: u16, bytes: usize) {
        self.status = Some(status);
        self.bytes_to_client += bytes as u64;
    }

    pub(super) fn sent_client(&mut self, bytes: u64) {
        self.bytes_to_client += bytes;
    }

    pub(super) fn sent_server(&mut self, bytes: u64) {
        self.bytes_to_server += bytes;
    }

    /// It was decided where it goes: by the route of this number, or by none.
    pub(super) fn routed(&mut self, route: Option<usize>) {
        self.routed = Some(route);
    }

    pub(super) fn at_server(&mut self, server: &Arc<Server>) {
        self.server = Some(Arc::clone(server));
    }

    /// The engine gave both connections back after so many bytes of the reply.
    pub(super) fn passed(&mut self, flow: FlowId, spliced: bool, bytes: u64) {
        self.flow = Some(flow);
        if spliced {
            self.spliced = true;
            self.bytes_spliced += bytes;
        }
    }

    /// The engine ended both connections.
    pub(super) fn closed(&mut self, summary: &Summary) {
        self.flow = Some(summary.id);
        self.bytes_to_server += summary.bytes_to_server;
        self.bytes_to_client += summary.bytes_to_client;
        self.bytes_spliced += summary.bytes_spliced;
        self.spliced |= summary.spliced;
        self.relay_reason = summary.relay_reason;
    }

    fn route(&self) -> Option<&str> {
        let route = self.settings.listener.routes.routes().get(self.routed??)?;
        Some(&route.name)
    }

    fn upstream(&self) -> Option<&str> {
        let routes = self.settings.listener.routes.routes();
        let route = self.routed?.and_then(|number| routes.get(number));
        match self.settings.destination(route) {
            Destination::Upstream(upstream) => Some(upstream.name()),
            _ => None,
        }
    }

    /// What is counted of it, if it is over now.
    fn tally(&self, duration: Duration, end: End) -> Tally<'_> {
        Tally {
            is_request: true,
            route: self.route(),
            status: self.status,
            bytes_to_client: self.bytes_to_client,
            bytes_to_server: self.bytes_to_server,
            bytes_spliced: self.bytes_spliced,
            duration,
            first_byte: self.first_byte,
            end,
        }
    }

    /// The record as it stands, and its beginning.
    pub(super) fn into_parts(self) -> (AccessRecord, Instant) {
        let record = AccessRecord {
            time: SystemTime::now() - self.began.elapsed(),
            is_request: true,
            route: self.route().map(str::to_owned),
            upstream: self.upstream().map(str::to_owned),
            server: self.server.as_ref().map(|server| server.name().to_owned()),
            flow: self.flow,
            request: self.request.map(|request| *request),
            status: self.status,
            bytes_to_client: self.bytes_to_client,
            bytes_to_server: self.bytes_to_server,
            first_byte: self.first_byte,
            spliced: self.spliced,
            bytes_spliced: self.bytes_spliced,
            relay_reason: self.relay_reason,
            sni: self.sni,
            ..AccessRecord::new(&self.settings.listener.name, self.client)
        };
        (record, self.began)
    }
}

impl Session<'_> {
    /// A request has been read.
    pub(super) fn tell(&mut self, head: Option<&RequestHead<'_>>) {
        let is_read = self.service.shared().access_log.is_on();
        self.told = Some(Told {
            began: Instant::now(),
            client: self.peer,
            settings: Arc::clone(&self.settings),
            sni: self.hello.as_ref().and_then(|h| h.sni.clone()),
            request: head.filter(|_| is_read).map(|head| Box::new(describe(head))),
            routed: None,
            server: None,
            status: None,
            first_byte: None,
            bytes_to_client: 0,
            bytes_to_server: 0,
            flow: None,
            spliced: false,
            bytes_spliced: 0,
            relay_reason: None,
        });
    }

    /// The request is over.
    pub(super) fn over(&mut self, end: End) {
        if let Some(told) = self.told.take() {
            let end = self.open.to_end().unwrap_or(end);
            self.service.count(&told.tally(told.began.elapsed(), end));
            let log = &self.service.shared().access_log;
            if log.is_on() {
                let (record, began) = told.into_parts();
                log.write(record.ended(began, end));
            }
        }
        if self.decided.take().is_some() {
            self.open.decide(None);
        }
    }

    /// What is told of the request, if one is served.
    pub(super) fn note(&mut self, note: impl FnOnce(&mut Told)) {
        if let Some(told) = &mut self.told {
            note(told);
        }
    }
}

fn describe(head: &RequestHead<'_>) -> Request {
    let field = |name| {
        let value = head.fields().first(name)?;
        Some(cut(&String::from_utf8_lossy(value)).to_owned())
    };
    Request {
        method: cut(head.method()).to_owned(),
        target: cut(head.raw_target()).to_owned(),
        host: head.authority().map(|a| cut(a.as_str()).to_owned()),
        version: head.version().as_str(),
        referer: field("referer"),
        user_agent: field("user-agent"),
    }
}
