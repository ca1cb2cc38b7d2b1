//! Records a request for the metrics and the access log.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use longsplice_core::http::RequestHead;
use longsplice_engine::{Returned, Summary, reason::RelayReason};

use crate::{
    access_log::{AccessRecord, End, Request, Traffic, cut},
    listener::{Destination, Settings, Tally},
    upstream::Server,
};

/// Notes on the request that is served. Names are copied at its end, and only if the access log is on.
#[derive(Debug)]
pub(super) struct Told {
    began: Instant,
    client: SocketAddr,
    /// Settings under which the request was decided.
    settings: Arc<Settings>,
    sni: Option<String>,
    /// Set only if the access log is on.
    request: Option<Box<Request>>,
    /// Index of its route, once it was decided; the inner `None` means that no route matched.
    routed: Option<Option<usize>>,
    server: Option<Arc<Server>>,
    status: Option<u16>,
    first_byte: Option<Duration>,
    /// Payload of the request and its reply.
    traffic: Traffic,
    /// Bytes of it that the session did not relay: answers of the proxy itself, and what the engine carried and counts.
    apart: u64,
}

impl Told {
    /// Starts the notes on a request that began at this time; `head` is set if the access log is on and the head was
    /// read.
    pub(super) fn new(
        began: Instant,
        client: SocketAddr,
        settings: Arc<Settings>,
        sni: Option<String>,
        head: Option<&RequestHead<'_>>,
    ) -> Told {
        Told {
            began,
            client,
            settings,
            sni,
            request: head.map(|head| Box::new(describe(head))),
            routed: None,
            server: None,
            status: None,
            first_byte: None,
            traffic: Traffic::default(),
            apart: 0,
        }
    }

    /// Returns the time at which the request began.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Notes the beginning of a server's reply; `why_not` is known if no reply on this connection is spliced.
    pub(super) fn reply_began(&mut self, status: u16, why_not: Option<RelayReason>) {
        self.status = Some(status);
        self.traffic.relay_reason = why_not;
        self.first_byte = Some(self.began.elapsed());
    }

    /// Notes an answer by the proxy itself.
    pub(super) fn answered(&mut self, status: u16, bytes: usize) {
        self.status = Some(status);
        self.sent_client(bytes as u64);
        self.apart += bytes as u64;
    }

    pub(super) fn sent_client(&mut self, bytes: u64) {
        self.traffic.bytes_to_client += bytes;
    }

    pub(super) fn sent_server(&mut self, bytes: u64) {
        self.traffic.bytes_to_server += bytes;
    }

    /// Notes the decision: the index of the route, or none.
    pub(super) fn routed(&mut self, route: Option<usize>) {
        self.routed = Some(route);
    }

    pub(super) fn at_server(&mut self, server: &Arc<Server>) {
        self.server = Some(Arc::clone(server));
    }

    /// Notes that the engine gave both connections back. The bytes that passed are noted with those of the reply.
    pub(super) fn returned(&mut self, returned: &Returned) {
        self.apart += returned.passed.server;
        self.traffic.flow = Some(returned.id);
        if returned.spliced {
            self.traffic.spliced = true;
            self.traffic.bytes_spliced += returned.bytes_spliced;
        }
        self.traffic.relay_reason = returned.relay_reason.filter(|_| !self.traffic.spliced);
    }

    /// Notes that the engine closed both connections.
    pub(super) fn closed(&mut self, summary: &Summary) {
        self.apart += summary.bytes_to_client + summary.bytes_to_server;
        self.traffic.add(summary);
    }

    /// Returns the number of bytes that the session has relayed.
    pub(super) fn relayed(&self) -> u64 {
        let all = self.traffic.bytes_to_client + self.traffic.bytes_to_server;
        all.saturating_sub(self.apart)
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

    /// Returns the values that are counted for the request.
    pub(super) fn tally(&self, end: End) -> Tally<'_> {
        Tally {
            is_request: true,
            route: self.route(),
            status: self.status,
            traffic: self.traffic,
            duration: self.began.elapsed(),
            first_byte: self.first_byte,
            end,
        }
    }

    /// Returns the record so far, and the time of its beginning.
    pub(super) fn into_parts(self) -> (AccessRecord, Instant) {
        let record = AccessRecord {
            time: SystemTime::now() - self.began.elapsed(),
            is_request: true,
            route: self.route().map(str::to_owned),
            upstream: self.upstream().map(str::to_owned),
            server: self.server.as_ref().map(|server| server.name().to_owned()),
            request: self.request.map(|request| *request),
            status: self.status,
            traffic: self.traffic,
            first_byte: self.first_byte,
            sni: self.sni,
            ..AccessRecord::new(&self.settings.listener.name, self.client)
        };
        (record, self.began)
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
