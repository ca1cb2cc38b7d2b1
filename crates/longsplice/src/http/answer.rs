//! Sends the proxy's own answers, and closes connections after them.

use std::{borrow::Cow, time::SystemTime};

use longsplice_core::http::{Answer, AnswerTo, HeadError, Persistence, RequestKind};
use longsplice_engine::{LINGERING_CLOSE_TIMEOUT, lingering_close};
use tokio::{io::AsyncWriteExt, time::Instant};

use super::{
    buffered_stream::BufferedStream, lazy_stream::LazyStream, request::Request, server::AtServer,
    session::Session,
};
use crate::{
    access_log::End,
    upstream::{Failure, Unavailable},
};

/// Value of Retry-After if no server can take the request, in seconds.
const RETRY_AFTER_SECONDS: u32 = 1;

/// A reply by the proxy itself.
#[derive(Debug)]
pub(super) struct OwnAnswer {
    status: u16,
    /// End of the request, for the log.
    end: End,
    why: Cow<'static, str>,
    location: Option<String>,
    allow: Option<&'static str>,
    retry_after: Option<u32>,
}

/// Answer to a request that cannot be parsed. The connection ends: the position of the next request is unknown.
#[derive(Debug)]
pub(super) struct Refusal(OwnAnswer);

/// Reason why there is no reply.
#[derive(Debug)]
pub(super) enum Failed {
    /// An idle connection was dead: try another one.
    Stale,
    /// The server failed.
    Server(Failure, String),
    /// The body of the request is malformed: the client is told so.
    BadBody(String),
    /// The body did not come in time.
    SlowBody,
    /// The client is gone.
    Client,
}

impl OwnAnswer {
    pub(super) fn new(status: u16, end: End, why: impl Into<Cow<'static, str>>) -> OwnAnswer {
        OwnAnswer {
            status,
            end,
            why: why.into(),
            location: None,
            allow: None,
            retry_after: None,
        }
    }

    pub(super) fn redirect(location: String) -> OwnAnswer {
        OwnAnswer {
            location: Some(location),
            ..OwnAnswer::new(
                308,
                End::Refused,
                "what you asked for is at the address in Location",
            )
        }
    }

    /// Answers a request that must not be forwarded any further.
    pub(super) fn last_hop(status: u16) -> OwnAnswer {
        OwnAnswer {
            allow: Some("OPTIONS"),
            ..OwnAnswer::new(
                status,
                End::Refused,
                "Max-Forwards ended at the switch, which traces nothing itself",
            )
        }
    }

    /// Answers with the status of a route.
    pub(super) fn configured(status: u16) -> OwnAnswer {
        OwnAnswer::new(
            status,
            End::Refused,
            "the switch is configured to answer this request so",
        )
    }

    /// Answers that no server is available. The attempts are logged only, and not shown to the client.
    pub(super) fn unavailable(error: &Unavailable) -> OwnAnswer {
        match error.status() {
            503 => OwnAnswer {
                retry_after: Some(RETRY_AFTER_SECONDS),
                ..OwnAnswer::new(
                    503,
                    End::Unavailable,
                    "no server can take the request now: try again later",
                )
            },
            status => OwnAnswer::new(
                status,
                End::Unavailable,
                "no server could be reached: try again later",
            ),
        }
    }

    /// Answers that the server closed its connection.
    pub(super) fn no_reply() -> OwnAnswer {
        let why = "the server closed the connection without a reply";
        OwnAnswer::new(502, End::ServerClosed, why)
    }

    fn bytes(&self, kind: RequestKind, persistence: Persistence) -> Vec<u8> {
        let answer = Answer {
            location: self.location.as_deref(),
            allow: self.allow,
            retry_after: self.retry_after,
            ..Answer::new(self.status, &self.why)
        };
        answer.to_bytes(&AnswerTo {
            is_head: kind.is_head,
            persistence,
            version: kind.version,
            now: SystemTime::now(),
        })
    }
}

impl Refusal {
    pub(super) fn slow_head() -> Refusal {
        Refusal(OwnAnswer::new(
            408,
            End::ClientTimeout,
            "the head of the request did not come in time",
        ))
    }

    /// Refuses HTTP/2 with prior knowledge (RFC 9113 section 3.3).
    pub(super) fn http2() -> Refusal {
        let why = "HTTP/2 without TLS and ALPN is not spoken here: use HTTP/1.1";
        Refusal(OwnAnswer::new(505, End::BadRequest, why))
    }
}

impl From<HeadError> for Refusal {
    fn from(error: HeadError) -> Refusal {
        Refusal(OwnAnswer::new(error.status(), End::BadRequest, error.to_string()))
    }
}

impl Session<'_> {
    /// Answers a request whose head was read, and skips the request. Returns the connection if another request may
    /// follow.
    pub(super) async fn answer(
        &mut self,
        mut client: BufferedStream<LazyStream>,
        request: &Request,
        answer: &OwnAnswer,
    ) -> Option<BufferedStream<LazyStream>> {
        let whole = request.whole.filter(|_| {
            request.persistence == Persistence::KeepAlive && self.persistence() == Persistence::KeepAlive
        });
        let persistence = match whole {
            Some(_) => Persistence::KeepAlive,
            None => Persistence::Close,
        };
        let bytes = answer.bytes(request.kind, persistence);
        let limit = self.settings.listener.http.body_timeout;
        let written = self.deadline.write_both(limit, &mut client, &bytes, &[]).await;
        self.note(|told| told.answered(answer.status, bytes.len()));
        self.over(answer.end);
        if !matches!(written, Ok(Ok(()))) {
            return None;
        }
        let Some(whole) = whole else {
            self.close_lingering(client).await;
            return None;
        };
        client.buffer.consume(whole);
        Some(client)
    }

    /// Tells the client why its request failed.
    pub(super) async fn failed(
        &mut self,
        client: BufferedStream<LazyStream>,
        request: &Request,
        at: AtServer,
        failed: Failed,
    ) -> Option<BufferedStream<LazyStream>> {
        self.note(|told| told.sent_server(at.upload.passed()));
        let answer = match failed {
            _ if self.deadline.is_cancelled() => {
                self.cut_off(client, End::Reset);
                return None;
            }
            Failed::Client | Failed::Stale => {
                self.cut_off(client, End::ClientClosed);
                return None;
            }
            Failed::BadBody(why) => OwnAnswer::new(400, End::BadRequest, why),
            Failed::SlowBody => OwnAnswer::new(
                408,
                End::ClientTimeout,
                "the body of the request did not come in time",
            ),
            Failed::Server(how, why) => {
                at.tenure.failed(how);
                let server = at.tenure.to_string();
                tracing::info!(listener = self.settings.listener.name, peer = %self.peer, server, why, "no reply");
                match how {
                    Failure::Timeout | Failure::Withheld => {
                        OwnAnswer::new(504, End::ServerTimeout, "the server did not reply in time")
                    }
                    Failure::Malformed => {
                        OwnAnswer::new(502, End::BadReply, "what the server sent is no valid reply")
                    }
                    Failure::Unfit => {
                        let why = "the head of the server's reply is malformed or too long, or does not fit the request";
                        OwnAnswer::new(502, End::BadReply, why)
                    }
                    Failure::Connect | Failure::ConnectAsClient | Failure::Closed | Failure::Unfinished => {
                        OwnAnswer::no_reply()
                    }
                }
            }
        };
        // Release the server before the answer: it need not wait for it.
        drop(at);
        self.answer(client, request, &answer).await
    }

    /// Answers a request that cannot be parsed, and closes.
    pub(super) async fn refuse(&mut self, mut client: BufferedStream<LazyStream>, refusal: &Refusal) {
        // Recognize HEAD even in an invalid request: a reply to HEAD has no body (RFC 9110 section 9.3.2).
        let begun = client.buffer.data().trim_ascii_start();
        let kind = RequestKind {
            is_head: begun.starts_with(b"HEAD "),
            ..RequestKind::USUAL
        };
        let bytes = refusal.0.bytes(kind, Persistence::Close);
        let limit = self.settings.listener.http.body_timeout;
        let written = self.deadline.write_both(limit, &mut client, &bytes, &[]).await;
        self.note(|told| told.answered(refusal.0.status, bytes.len()));
        self.over(refusal.0.end);
        if let Ok(Ok(())) = written {
            self.close_lingering(client).await;
        }
    }

    /// Closes between two requests. A client over TLS gets a close_notify: without one, an end may be the work of an attacker
    /// (RFC 8446 section 6.1).
    pub(super) async fn close(&mut self, mut client: BufferedStream<LazyStream>) {
        if client.stream.is_plain() {
            return;
        }
        let deadline = Instant::now() + LINGERING_CLOSE_TIMEOUT;
        // Ignore the result: the connection is closed either way.
        let _ = self
            .deadline
            .by(deadline, Box::pin(client.stream.shutdown()))
            .await;
    }

    /// Closes so that the written bytes arrive, even if the client still sends.
    pub(super) async fn close_lingering(&mut self, mut client: BufferedStream<LazyStream>) {
        client.buffer.consume(usize::MAX);
        client.buffer.rest();
        let deadline = Instant::now() + LINGERING_CLOSE_TIMEOUT;
        // Ignore the result: the connection is closed either way.
        let _ = self
            .deadline
            .by(deadline, Box::pin(lingering_close(&mut client.stream)))
            .await;
    }
}
