//! What is told of a request once it is over.

use std::time::Instant;

use longsplice_core::{http::RequestHead, route::Route};
use longsplice_engine::{FlowId, Summary};

use super::session::Session;
use crate::access_log::{AccessRecord, End, Request, cut};

/// The record of the request that is served.
#[derive(Debug)]
pub(super) struct Told {
    record: AccessRecord,
    began: Instant,
}

impl Told {
    /// What a server sent begins here.
    pub(super) fn reply_began(&mut self, status: u16) {
        self.record.status = Some(status);
        self.record.first_byte = Some(self.began.elapsed());
    }

    /// We answer ourselves.
    pub(super) fn answered(&mut self, status: u16, bytes: usize) {
        self.record.status = Some(status);
        self.record.bytes_to_client += bytes as u64;
    }

    pub(super) fn sent_client(&mut self, bytes: u64) {
        self.record.bytes_to_client += bytes;
    }

    pub(super) fn sent_server(&mut self, bytes: u64) {
        self.record.bytes_to_server += bytes;
    }

    /// It was decided where it goes.
    pub(super) fn routed(&mut self, route: Option<&Route>, upstream: Option<&str>) {
        self.record.route = route.map(|r| r.name.clone());
        self.record.upstream = upstream.map(str::to_owned);
    }

    pub(super) fn at_server(&mut self, name: String) {
        self.record.server = Some(name);
    }

    /// The engine gave both connections back after so many bytes of the reply.
    pub(super) fn passed(&mut self, flow: FlowId, spliced: bool, bytes: u64) {
        self.record.flow = Some(flow);
        if spliced {
            self.record.spliced = true;
            self.record.bytes_spliced += bytes;
        }
    }

    /// The engine ended both connections.
    pub(super) fn closed(&mut self, summary: &Summary) {
        self.record.add(summary);
        if summary.spliced {
            self.record.bytes_spliced += summary.bytes_to_client + summary.bytes_to_server;
        }
    }

    /// The record as it stands, and its beginning.
    pub(super) fn into_parts(self) -> (AccessRecord, Instant) {
        (self.record, self.began)
    }
}

impl Session<'_> {
    /// A request has been read.
    pub(super) fn tell(&mut self, head: Option<&RequestHead<'_>>) {
        let mut record = AccessRecord::new(&self.settings.listener.name, self.peer);
        record.is_request = true;
        record.sni = self.hello.as_ref().and_then(|h| h.sni.clone());
        if self.service.shared().access_log.is_on() {
            record.request = head.map(describe);
        }
        self.told = Some(Told {
            record,
            began: Instant::now(),
        });
    }

    /// The request is over.
    pub(super) fn over(&mut self, end: End) {
        if let Some(Told { record, began }) = self.told.take() {
            let end = self.open.to_end().unwrap_or(end);
            self.service.finished(record.ended(began, end));
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
