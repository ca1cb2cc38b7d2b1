//! Sends a request to a server, and reads the head of the reply.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    task::{Poll, ready},
};

use longsplice_core::http::{HeadError, Limits, Persistence, Scan, Scanned, Version};
use longsplice_engine::Side;
use longsplice_repair::options::set_reset_on_close;
use tokio::time::Instant;

use super::{
    answer::{Failed, OwnAnswer},
    body::Broken,
    buffered_stream::BufferedStream,
    deadline::Late,
    lazy_stream::LazyStream,
    reply::Reply,
    request::{Request, Target},
    server::{AtServer, UNHEARD},
    session::Session,
};
use crate::{access_log::End, upstream::Failure};

/// Status of the interim reply that asks for a body (RFC 9110 section 15.2.1).
const CONTINUE: u16 = 100;
/// Limit of interim replies before a server's reply (RFC 9110 section 15.2).
const MOST_INTERIM: u32 = 64;
/// Limits the time until the reply, in multiples of `reply_timeout`: each interim reply restarts that timeout.
const MOST_WAITS: u32 = 10;

/// Result of one wait for the reply.
enum Step {
    /// More bytes of the reply were read.
    Read,
    /// The server's stream ended, for this reason.
    Ended(String),
    /// A piece of the body was forwarded.
    Passed,
}

impl Session<'_> {
    /// Sends a request to a server, and its reply to the client. Returns the client's connection if another request may
    /// follow.
    pub(super) async fn exchange(
        &mut self,
        mut client: BufferedStream<LazyStream>,
        mut request: Request,
        to: Target,
    ) -> Option<BufferedStream<LazyStream>> {
        let mut reuse = true;
        let mut tried = Vec::new();
        // True once a server has closed without a reply.
        let mut closed = false;
        loop {
            // Wait for the rate limit before the lease: no wait may come between the check of an idle connection and
            // the request.
            if self.paced(Side::Client).await.is_err() {
                self.cut_off(client, End::Reset);
                return None;
            }
            let mut lease = match self.lease(&client, &to, reuse, &tried).await {
                Ok(Ok(lease)) => lease,
                Err(end) => {
                    self.cut_off(client, end);
                    return None;
                }
                Ok(Err(_)) if closed => {
                    return self.answer(client, &request, &OwnAnswer::no_reply()).await;
                }
                Ok(Err(error)) => {
                    tracing::info!(listener = self.settings.listener.name, peer = %self.peer, %error, "no server");
                    return self
                        .answer(client, &request, &OwnAnswer::unavailable(&error))
                        .await;
                }
            };
            tried = std::mem::take(&mut lease.tried);
            let mut at = AtServer::new(lease, &request);
            if !self.tell_server(&at) {
                self.cut_off(client, End::Reload);
                return None;
            }
            let failed = match self.ask(&mut client, &mut request, &to, &mut at).await {
                Ok(reply) => return self.reply(client, &request, at, reply).await,
                Err(Failed::Stale) => {
                    reuse = false;
                    continue;
                }
                Err(Failed::Server(Failure::Closed, why))
                    if may_ask_another(&request, &at, &to, tried.len()) =>
                {
                    let server = at.tenure.to_string();
                    tracing::info!(
                        listener = self.settings.listener.name,
                        server,
                        why,
                        "no reply: another one is asked"
                    );
                    at.tenure.failed(Failure::Closed);
                    tried.push(at.tenure.server().id());
                    (closed, reuse) = (true, false);
                    continue;
                }
                Err(failed) => failed,
            };
            return Box::pin(self.failed(client, &request, at, failed)).await;
        }
    }

    /// Sends the request, and reads the head of its reply.
    async fn ask(
        &mut self,
        client: &mut BufferedStream<LazyStream>,
        request: &mut Request,
        to: &Target,
        at: &mut AtServer,
    ) -> Result<Reply, Failed> {
        self.send(client, request, at).await?;
        let mut scan = Scan::reply();
        let mut deadline = self.deadline(at);
        let (mut interim, mut waiting_since) = (0, None);
        loop {
            let before = at.upload.passed();
            let patience = match client.stream.is_fresh() {
                true => deadline.min(Instant::now() + UNHEARD),
                false => deadline,
            };
            let at_its_end = self.settings.listener.abort_on_close;
            let step = self
                .deadline
                .by(patience, pin!(wait(client, at, at_its_end)))
                .await;
            match step {
                Err(Late) if patience < deadline && !self.deadline.is_cancelled() => {
                    client.stream.make_known().map_err(|_| Failed::Client)?;
                    continue;
                }
                Ok(Ok(Step::Read)) => {}
                Ok(Ok(Step::Passed)) => {
                    at.sent_at = Instant::now();
                    self.pace.charge(Side::Client, at.upload.passed() - before);
                    self.paced(Side::Client).await.map_err(|Late| Failed::SlowBody)?;
                    deadline = self.deadline(at);
                    continue;
                }
                Ok(Ok(Step::Ended(why))) => return Err(ended(request, at, why)),
                Ok(Err(failed)) => return Err(failed),
                Err(Late) => return Err(late(at)),
            }
            while let Some(scanned) =
                found(&mut scan, at.wire.buffer.data(), &self.limits).map_err(bad_head)?
            {
                let reply = self.understand(scanned, request, to, at).map_err(bad_head)?;
                at.is_private |= reply.authenticates;
                if !reply.is_interim {
                    return match is_of_an_idle_connection(&reply, request, at) {
                        true => Err(Failed::Stale),
                        false => Ok(reply),
                    };
                }
                interim += 1;
                if interim > MOST_INTERIM {
                    let why = format!("more than {MOST_INTERIM} interim replies came before the reply");
                    return Err(Failed::Server(Failure::Malformed, why));
                }
                self.pass_interim(client, request, at, &reply).await?;
                scan = Scan::reply();
                deadline = self.deadline(at);
                if at.is_servers_turn() {
                    let since = *waiting_since.get_or_insert_with(Instant::now);
                    deadline = deadline.min(since + MOST_WAITS * self.settings.listener.http.reply_timeout);
                }
            }
        }
    }

    /// Sends the head and the available part of the body. If the body is complete, the client's buffer keeps both for
    /// another server.
    async fn send(
        &mut self,
        client: &mut BufferedStream<LazyStream>,
        request: &mut Request,
        at: &mut AtServer,
    ) -> Result<(), Failed> {
        let looked = at.upload.look(&mut client.buffer, request.length);
        let ready = looked.map_err(|e| Failed::BadBody(e.to_string()))?;
        let bytes = client.buffer.data();
        let (first, second) = request.head.and_body(bytes, request.length, ready);
        let written = first.len() + second.len();
        self.note(|told| told.sent_server((written - ready) as u64));
        self.pace.charge(Side::Client, written as u64);
        let limit = self.settings.listener.http.body_timeout;
        match self.deadline.write_both(limit, &mut at.wire, first, second).await {
            Ok(Ok(())) => {
                at.upload.wrote_ready();
                at.sent_at = Instant::now();
                if !at.reused {
                    // Close with a FIN from here on: the framing of the request shows whether it is complete.
                    let _ = set_reset_on_close(&at.wire.stream, false);
                }
            }
            Ok(Err(e)) if at.reused && (request.is_idempotent || e.written == 0) => {
                return Err(Failed::Stale);
            }
            // The server may have replied before it closed.
            Ok(Err(_)) => at.refuses = true,
            Err(Late) => return Err(not_taken()),
        }
        at.kept = request.length + ready;
        if !at.upload.has_ended() {
            // The rest comes in pieces. Without TCP_NODELAY they are only slower.
            let _ = at.wire.stream.set_nodelay(true);
            client.buffer.consume(std::mem::take(&mut at.kept));
            request.whole = None;
        }
        client.buffer.rest();
        Ok(())
    }

    /// Passes a 1xx reply on (RFC 9110 section 15.2), except to a client of HTTP/1.0, which would not understand it.
    async fn pass_interim(
        &mut self,
        client: &mut BufferedStream<LazyStream>,
        request: &Request,
        at: &mut AtServer,
        reply: &Reply,
    ) -> Result<(), Failed> {
        if request.kind.version == Version::Http11 {
            let head = reply.bytes(at.wire.buffer.data());
            let limit = self.settings.listener.http.body_timeout;
            let written = self.deadline.write_both(limit, client, head, &[]).await;
            self.note(|told| told.sent_client(head.len() as u64));
            if !matches!(written, Ok(Ok(()))) {
                return Err(Failed::Client);
            }
        }
        at.wire.buffer.consume(reply.length);
        at.expects_continue &= reply.status != CONTINUE;
        Ok(())
    }

    /// Returns the deadline for the start of the reply, or for the next piece of the request.
    fn deadline(&self, at: &AtServer) -> Instant {
        let http = &self.settings.listener.http;
        Instant::now()
            + match at.is_servers_turn() {
                true => http.reply_timeout,
                false => http.body_timeout,
            }
    }
}

/// Returns whether a reply is a 408 with which a server closes a connection that was idle too long (RFC 9110 section
/// 15.5.9). It does not answer this request.
fn is_of_an_idle_connection(reply: &Reply, request: &Request, at: &AtServer) -> bool {
    reply.status == 408
        && reply.server == Persistence::Close
        && at.reused
        && request.is_idempotent
        && at.kept > 0
}

/// Returns the failure of a request that neither the server's reply nor a piece of its body came for in time.
fn late(at: &AtServer) -> Failed {
    match at.is_servers_turn() {
        true if at.awaits_continue() => Failed::Server(
            Failure::Withheld,
            "it did not ask for the body in time".to_owned(),
        ),
        true => Failed::Server(Failure::Timeout, "it did not reply in time".to_owned()),
        false if at.upload.waits_for_recipient() => not_taken(),
        false => Failed::SlowBody,
    }
}

/// Returns the failure of a server that takes no more bytes of the request.
fn not_taken() -> Failed {
    Failed::Server(Failure::Timeout, "it does not take the request".to_owned())
}

/// Returns the failure for a server's connection that ended before its reply. A client must not be able to put a server
/// out: a server may close because the rest of a body does not come.
fn ended(request: &Request, at: &AtServer, why: String) -> Failed {
    match at.reused && may_send_again(request, at) {
        true => Failed::Stale,
        false if !at.upload.has_ended() => Failed::Server(Failure::Unfinished, why),
        false => Failed::Server(Failure::Closed, why),
    }
}

/// Returns whether a request may be sent again: it is idempotent, no byte of a reply came, and the client's buffer
/// still has all of it.
fn may_send_again(request: &Request, at: &AtServer) -> bool {
    request.is_idempotent && at.kept > 0 && at.wire.buffer.is_empty()
}

/// Returns whether another server is asked behind this one, before which `tried` others were tried.
fn may_ask_another(request: &Request, at: &AtServer, to: &Target, tried: usize) -> bool {
    let retries = match to {
        Target::Upstream { upstream, .. } => upstream.retries(),
        Target::Original => 0,
    };
    tried < retries as usize && may_send_again(request, at)
}

fn found(scan: &mut Scan, bytes: &[u8], limits: &Limits) -> Result<Option<Scanned>, HeadError> {
    scan.find(bytes, limits)?;
    Ok(scan.scanned())
}

/// Returns the failure of a server whose reply has such a head. A client must not be able to put a server out: a server may
/// repeat in its fields what it was sent, or answer in the same way whatever was asked for.
fn bad_head(error: HeadError) -> Failed {
    let how = match error {
        HeadError::StartLine | HeadError::Version => Failure::Malformed,
        _ => Failure::Unfit,
    };
    Failed::Server(how, error.to_string())
}

/// Waits for the reply, and forwards the request's body meanwhile. With `at_its_end`, a client's FIN means that it
/// wants no reply.
async fn wait(
    client: &mut BufferedStream<LazyStream>,
    at: &mut AtServer,
    at_its_end: bool,
) -> Result<Step, Failed> {
    if at.is_sent() {
        return tokio::select! {
            biased;
            read = at.wire.read() => Ok(Step::read(read)),
            () = client.stream.gone(at_its_end) => Err(Failed::Client),
        };
    }
    poll_fn(|cx| {
        if let Poll::Ready(read) = at.wire.poll_read(cx) {
            return Poll::Ready(Ok(Step::read(read)));
        }
        Poll::Ready(match ready!(at.upload.poll_pass(cx, client, &mut at.wire)) {
            Ok(()) => Ok(Step::Passed),
            Err(Broken::To(_)) => {
                at.refuses = true;
                Ok(Step::Passed)
            }
            Err(Broken::Malformed(error)) => Err(Failed::BadBody(error.to_string())),
            Err(Broken::From(_) | Broken::CutShort) => Err(Failed::Client),
        })
    })
    .await
}

impl Step {
    fn read(read: io::Result<usize>) -> Step {
        match read {
            Ok(0) => Step::Ended("it closed the connection".to_owned()),
            Ok(_) => Step::Read,
            Err(error) => Step::Ended(error.to_string()),
        }
    }
}
