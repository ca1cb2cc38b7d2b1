//! Reads the head of a request, and decides what to do with it.

use std::{borrow::Cow, io, pin::pin, sync::Arc};

use longsplice_core::{
    http::{
        Body, Found, Limits, Persistence, RequestHead, Scan, Scanned,
        rewrite::{self, ToServer},
    },
    route::Facts,
};
use tokio::time::Instant;

use super::{
    admit::{admit, ends_here},
    answer::{OwnAnswer, Refusal},
    buffered_stream::BufferedStream,
    deadline::Late,
    lazy_stream::LazyStream,
    request::{Head, Request, Target},
    session::Session,
};
use crate::{
    access_log::End,
    client::Hello,
    config::ForwardedMode,
    listener::{Decided, Destination, KeptFacts},
    upstream::{KeyKind, Upstream},
};

/// Decision on a request.
pub(super) enum Decision {
    /// Forward it; `on_reload` acts on the last value.
    Forward(Request, Target, Box<Decided>),
    /// Answer it here; the connection may go on.
    Answer(Request, OwnAnswer),
    /// Refuse it, because it could not be parsed; the connection ends.
    Refuse(Refusal),
}

/// Reason why there is no head.
pub(super) enum Unread {
    /// The client is gone, or sent nothing.
    Ended(&'static str),
    /// The client sent an invalid head, and is told so.
    Refused(Refusal),
    /// The connection was cancelled within the head.
    Cancelled,
}

impl Session<'_> {
    /// Reads until a head is complete, and returns its position.
    pub(super) async fn read_head(
        &mut self,
        client: &mut BufferedStream<LazyStream>,
    ) -> Result<Scanned, Unread> {
        let mut scan = Scan::request();
        let mut deadline = None;
        loop {
            if !client.buffer.is_empty() {
                if !scan.has_begun() {
                    let newest = self.service.settings_for_next(&self.settings);
                    let settings = newest.as_ref().unwrap_or(&self.settings);
                    self.limits = limits(settings.listener.http.max_head);
                }
                let found = scan.find(client.buffer.data(), &self.limits);
                if scan.has_begun() {
                    self.began.get_or_insert_with(std::time::Instant::now);
                }
                match found {
                    Ok(Found::Http2) => return Err(Unread::Refused(Refusal::http2())),
                    Ok(Found::Head(_) | Found::NeedMore) => {}
                    Err(error) => return Err(Unread::Refused(error.into())),
                }
                if let Some(scanned) = scan.scanned() {
                    return Ok(scanned);
                }
            }
            let read = match self.requests > 0 && !scan.has_begun() {
                true => self.wait_for_request(client).await?,
                false => {
                    let limit = self.settings.listener.http.head_timeout;
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
                    self.deadline.by(deadline, client.read()).await
                }
            };
            match read {
                Ok(Ok(0)) => return Err(Unread::Ended("it ended")),
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Err(Unread::Ended("it was reset")),
                Err(Late) if scan.has_begun() && self.deadline.is_cancelled() => {
                    return Err(Unread::Cancelled);
                }
                Err(Late) if scan.has_begun() => return Err(Unread::Refused(Refusal::slow_head())),
                Err(Late) => return Err(Unread::Ended("it said nothing")),
            }
        }
    }

    /// Waits between two requests. A shutdown ends the wait.
    async fn wait_for_request(
        &mut self,
        client: &mut BufferedStream<LazyStream>,
    ) -> Result<Result<io::Result<usize>, Late>, Unread> {
        let limit = self.settings.listener.http.idle_timeout;
        let service = self.service;
        let read = pin!(async {
            tokio::select! {
                biased;
                read = client.read() => Some(read),
                () = service.stopping() => None,
            }
        });
        match self.deadline.within(limit, read).await {
            Ok(None) => Err(Unread::Ended("the daemon shuts down")),
            Ok(Some(read)) => Ok(Ok(read)),
            Err(late) => Ok(Err(late)),
        }
    }

    /// Decides on the request whose head is at the front of the buffer.
    pub(super) fn decide(&mut self, client: &BufferedStream<LazyStream>, scanned: Scanned) -> Decision {
        let length = scanned.length();
        let bytes = client.buffer.data().get(..length).unwrap_or_default();
        let mut head = match RequestHead::read(bytes, scanned, &self.limits) {
            Ok(head) => head,
            Err(error) => {
                self.tell(None);
                return Decision::Refuse(error.into());
            }
        };
        self.tell(Some(&head));
        let settings = Arc::clone(&self.settings);
        let other_paths = match admit(&settings.listener.http, &mut head) {
            Ok(paths) => paths,
            Err(why) => {
                let request = self.request(&head, length, client.buffer.len());
                return Decision::Answer(request, OwnAnswer::new(400, End::BadRequest, why.to_string()));
            }
        };
        let facts = Facts {
            other_paths: &other_paths,
            ..Hello::told(self.hello.as_ref(), Facts::of_request(self.peer.ip(), &head))
        };
        let (taken, destination) = settings.decide(&facts);
        let target = match destination {
            Destination::Upstream(upstream) => Ok(target(&head, upstream)),
            Destination::Original => Ok(Target::Original),
            Destination::Status(status) => Err(OwnAnswer::configured(status)),
            Destination::Redirect(to) => Err(OwnAnswer::redirect(to.location(&head.target()))),
        };
        let route = taken.map(|(number, _)| number);
        // Record the decision under any `on_reload`: the one of the next configuration will count.
        let decided = || Decided {
            generation: settings.generation,
            listener: Arc::clone(&settings.listener),
            route,
            server: None,
            facts: Decided::wants_facts(&settings)
                .then(|| {
                    let fields = head.fields().iter().map(|f| (f.name, f.value));
                    KeptFacts::keep(&facts, fields)
                })
                .flatten(),
        };
        let request = self.request(&head, length, client.buffer.len());
        let decision = match (target, ends_here(&head)) {
            (Ok(_), Some(status)) => Decision::Answer(request, OwnAnswer::last_hop(status)),
            (Ok(target), None) => Decision::Forward(request, target, Box::new(decided())),
            (Err(answer), _) => Decision::Answer(request, answer),
        };
        self.note(|told| told.routed(route));
        decision
    }

    fn forwarded(&self) -> Option<rewrite::Forwarded> {
        let http = &self.settings.listener.http;
        let (fields, replaces) = (http.forwarded, http.forwarded_mode == ForwardedMode::Replace);
        (replaces || !fields.is_empty()).then_some(rewrite::Forwarded {
            fields,
            replaces,
            client: self.peer.ip(),
            https: self.https,
        })
    }

    fn request(&self, head: &RequestHead<'_>, length: usize, buffered: usize) -> Request {
        let to = ToServer {
            persistence: Persistence::KeepAlive,
            forwarded: self.forwarded(),
            via: self.settings.listener.http.via.as_deref(),
        };
        let outgoing = match rewrite::request(head, &to) {
            Cow::Borrowed(same) => Head::Same(length - same.len()..length),
            Cow::Owned(new) => Head::New(new),
        };
        Request {
            kind: head.kind(),
            body: head.body(),
            persistence: head.persistence(),
            is_idempotent: is_idempotent(head.method()),
            expects_continue: head.expects_continue(),
            authenticates: head.authenticates_connection(),
            length,
            whole: match head.body() {
                Body::None => Some(length),
                Body::Length(n) => usize::try_from(n)
                    .ok()
                    .map(|n| length.saturating_add(n))
                    .filter(|n| *n <= buffered),
                Body::Chunked | Body::UntilClose => None,
            },
            head: outgoing,
        }
    }
}

/// Returns the limits of a head of at most so many bytes.
fn limits(max_head: usize) -> Limits {
    let default = Limits::default();
    Limits {
        head: max_head,
        line: default.line.max(max_head / 2),
        ..default
    }
}

/// Returns the destination of a request for this upstream.
fn target(head: &RequestHead<'_>, upstream: &Arc<Upstream>) -> Target {
    let sticky = upstream.sticky().and_then(|name| head.cookie(name));
    Target::Upstream {
        upstream: Arc::clone(upstream),
        key: key(head, upstream.key()),
        sticky: sticky
            .and_then(|v| std::str::from_utf8(v).ok())
            .map(str::to_owned),
    }
}

/// Returns whether a method is known to be idempotent (RFC 9110 section 9.2.2). Other idempotent methods count as not
/// idempotent.
fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// Returns the bytes that an upstream hashes, unless it hashes the client's address.
fn key(head: &RequestHead<'_>, kind: &KeyKind) -> Option<Vec<u8>> {
    match kind {
        KeyKind::None | KeyKind::Client => None,
        KeyKind::Header(name) => head.fields().first(name).map(<[u8]>::to_vec),
        KeyKind::Cookie(name) => head.cookie(name).map(<[u8]>::to_vec),
    }
}
