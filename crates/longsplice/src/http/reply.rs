//! Reads the head of a reply, and passes the reply on with its body.

use std::{
    borrow::Cow,
    future::poll_fn,
    task::{Poll, ready},
    time::SystemTime,
};

use longsplice_core::http::{
    Body, HeadError, Persistence, ReplyHead, Scanned,
    rewrite::{self, SetCookie, ToClient},
};
use longsplice_engine::Side;
use longsplice_repair::{unacknowledged, unread};

use super::{
    answer::Failed,
    body::{Broken, Passage},
    buffered_stream::BufferedStream,
    deadline::Late,
    lazy_stream::LazyStream,
    request::{Head, Request, Target},
    server::AtServer,
    session::{Session, reset_on_close},
    splice::Delivery,
};
use crate::{access_log::End, upstream::Failure};

/// Properties of a reply, known once its head is read.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Body,
    pub(super) is_interim: bool,
    /// True if the connections are no longer HTTP after its head.
    pub(super) switches: bool,
    /// True if its challenge authenticates the server's connection.
    pub(super) authenticates: bool,
    /// Tells whether the server's connection serves another request.
    pub(super) server: Persistence,
    /// Tells whether the client's connection serves another request.
    pub(super) client: Persistence,
    /// Length of the head in the server's buffer, in bytes.
    pub(super) length: usize,
    head: Head,
}

impl Reply {
    /// Returns the head to be sent; `buffer` is the server's, which still begins with the original head.
    pub(super) fn bytes<'b>(&'b self, buffer: &'b [u8]) -> &'b [u8] {
        self.head.bytes(buffer)
    }
}

impl Session<'_> {
    /// Reads the head at the front of the server's buffer.
    pub(super) fn understand(
        &self,
        scanned: Scanned,
        request: &Request,
        to: &Target,
        at: &AtServer,
    ) -> Result<Reply, HeadError> {
        let length = scanned.length();
        let bytes = at.wire.buffer.data().get(..length).unwrap_or_default();
        let head = ReplyHead::read(bytes, scanned, request.kind, &self.limits)?;
        let is_whole = at.upload.is_done();
        let goes_on = is_whole
            && request.persistence == Persistence::KeepAlive
            && self.persistence() == Persistence::KeepAlive
            && head.body() != Body::UntilClose;
        let client = if goes_on {
            Persistence::KeepAlive
        } else {
            Persistence::Close
        };
        let to_client = ToClient {
            persistence: client,
            version: request.kind.version,
            set_cookie: self.cookie(to, at),
            date: self.settings.listener.http.date.then(SystemTime::now),
            via: self.settings.listener.http.via.as_deref(),
        };
        let outgoing = match rewrite::reply(&head, &to_client) {
            Cow::Borrowed(same) => Head::Same(length - same.len()..length),
            Cow::Owned(new) => Head::New(new),
        };
        Ok(Reply {
            status: head.status(),
            body: head.body(),
            is_interim: head.is_interim(),
            switches: head.switches(),
            authenticates: head.authenticates_connection(),
            server: if is_whole {
                head.persistence()
            } else {
                Persistence::Close
            },
            client,
            length,
            head: outgoing,
        })
    }

    /// Returns the cookie that leads the client back to this server, if the client does not have it.
    fn cookie<'a>(&self, to: &'a Target, at: &'a AtServer) -> Option<SetCookie<'a>> {
        let Target::Upstream { upstream, sticky, .. } = to else {
            return None;
        };
        let value = at
            .tenure
            .cookie()
            .filter(|value| sticky.as_deref() != Some(value))?;
        Some(SetCookie {
            name: upstream.sticky()?,
            value,
            secure: self.https,
        })
    }

    /// Passes a reply on. Returns the client's connection if another request may follow.
    pub(super) async fn reply(
        &mut self,
        mut client: BufferedStream<LazyStream>,
        request: &Request,
        mut at: AtServer,
        reply: Reply,
    ) -> Option<BufferedStream<LazyStream>> {
        let why_not = self.why_never(&client);
        self.note(|told| told.reply_began(reply.status, why_not));
        let after = at.sent_at.elapsed();
        if reply.switches {
            at.tenure.answered(reply.status, after);
            client.buffer.consume(at.kept);
            let head = reply.bytes(at.wire.buffer.data()).to_vec();
            Box::pin(self.tunnel(client, at, &head, reply.length)).await;
            return None;
        }
        let mut download = Passage::new(reply.body);
        let ready = match download.look(&mut at.wire.buffer, reply.length) {
            Ok(ready) => ready,
            Err(error) => {
                let failed = Failed::Server(Failure::Malformed, error.to_string());
                return Box::pin(self.failed(client, request, at, failed)).await;
            }
        };
        // Count it as a reply only now: a server whose chunks are nonsense has failed.
        at.tenure.answered(reply.status, after);
        // Drop the request: from here on, no other answer to it is possible.
        client.buffer.consume(std::mem::take(&mut at.kept));
        let is_long = !download.has_ended();
        if is_long {
            // Reset from here on: if the process dies, the client sees that the reply is incomplete. A short reply goes
            // at once, or not at all.
            reset_on_close(&client, true);
            self.choose_window(&client, &at.wire.stream);
        }
        let (first, second) = reply.head.and_body(at.wire.buffer.data(), reply.length, ready);
        let written = first.len() + second.len();
        let limit = self.settings.listener.http.body_timeout;
        let begun = match self.paced(Side::Server).await {
            Ok(()) => self.deadline.write_both(limit, &mut client, first, second).await,
            Err(late) => Err(late),
        };
        self.pace.charge(Side::Server, written as u64);
        self.note(|told| {
            told.sent_client((written - ready) as u64);
            told.sent_server(at.upload.passed());
        });
        let delivery = match begun {
            Ok(Ok(())) => {
                at.wire.buffer.consume(reply.length + ready);
                download.wrote_ready();
                match self.carry_both(&mut client, &mut at, &mut download).await {
                    None => self.carry(client, at, download).await,
                    Some(end) => {
                        self.note(|told| told.sent_client(download.passed()));
                        Delivery::Cut(client, end)
                    }
                }
            }
            Ok(Err(_)) => Delivery::Cut(client, End::ClientClosed),
            Err(Late) => Delivery::Cut(client, End::ClientTimeout),
        };
        if let (true, Delivery::Whole(client, _)) = (is_long, &delivery) {
            reset_on_close(client, false);
        }
        self.conclude(delivery, request, &reply).await
    }

    /// Passes a reply on while the body of its request still comes. Returns the end of the request if it breaks off.
    async fn carry_both(
        &mut self,
        client: &mut BufferedStream<LazyStream>,
        at: &mut AtServer,
        download: &mut Passage,
    ) -> Option<End> {
        let limit = self.settings.listener.http.body_timeout;
        let before = at.upload.passed();
        let end = loop {
            if at.is_sent() || download.is_done() {
                break None;
            }
            let passed = [at.upload.passed(), download.passed()];
            let mut held_back = false;
            let step = poll_fn(|cx| {
                // Each direction waits for its own rate alone.
                let mut may = |side| self.pace.poll_may(side, cx).is_ready();
                let (may_upload, may_download) = (may(Side::Client), may(Side::Server));
                held_back = !may_upload || !may_download;
                if may_download && let Poll::Ready(passed) = download.poll_pass(cx, &mut at.wire, client) {
                    return Poll::Ready(passed.map_err(|broken| broken.end()));
                }
                if !may_upload {
                    return Poll::Pending;
                }
                Poll::Ready(match ready!(at.upload.poll_pass(cx, client, &mut at.wire)) {
                    Ok(()) => Ok(()),
                    Err(Broken::From(_)) => Err(End::ClientClosed),
                    // Go on: the reply is of use without the rest of the request. A client may stop at an early reply,
                    // close its half and read on (RFC 9112 section 9.3).
                    Err(Broken::To(_)) => {
                        at.refuses = true;
                        Ok(())
                    }
                    Err(Broken::CutShort) => {
                        at.break_off(End::ClientClosed);
                        Ok(())
                    }
                    Err(Broken::Malformed(_)) => {
                        at.break_off(End::BadRequest);
                        Ok(())
                    }
                })
            });
            match self.deadline.within(limit, step).await {
                Ok(Ok(())) => {
                    self.pace.charge(Side::Client, at.upload.passed() - passed[0]);
                    self.pace.charge(Side::Server, download.passed() - passed[1]);
                }
                Ok(Err(end)) => break Some(end),
                // No end is late while a rate holds one of them back.
                Err(Late) if held_back && !self.deadline.is_cancelled() => {}
                Err(Late) => break Some(download.late()),
            }
        };
        self.note(|told| told.sent_server(at.upload.passed() - before));
        end
    }

    /// Gives the server's connection back, keeps it for this client, or closes it. Returns the client's if another request
    /// may follow.
    async fn conclude(
        &mut self,
        delivery: Delivery,
        request: &Request,
        reply: &Reply,
    ) -> Option<BufferedStream<LazyStream>> {
        let (client, at) = match delivery {
            Delivery::Whole(client, at) => (client, at),
            Delivery::Cut(client, end) => {
                self.cut_off(client, end);
                return None;
            }
            Delivery::Over(end) => {
                self.over(end);
                return None;
            }
        };
        self.over(End::Complete);
        let is_sent = at.upload.is_done();
        // Note the tie: bytes that bypassed the client's socket are not in its queue.
        let is_tied = at.tie.is_some();
        // Do not reuse a connection with bytes behind the reply: they answer no request.
        let goes_on = reply.server == Persistence::KeepAlive && at.wire.buffer.is_empty() && !at.half_closed;
        match (goes_on, at.is_private, reply.client) {
            (true, false, _) => at.tenure.give_back(at.wire.stream, at.tie),
            (true, true, Persistence::KeepAlive) => self.private.keep(at.tenure, at.wire.stream, at.tie),
            // Release the server before the client's connection is closed: that may take long.
            _ => drop(at),
        }
        if reply.client == Persistence::KeepAlive {
            return Some(client);
        }
        // Close at once only behind a whole request, and if the client has the whole reply: unread bytes reset the
        // connection, also those that come behind the close, and the rest of the reply would be lost.
        let says_no_more =
            is_sent && request.persistence == Persistence::Close && reply.body != Body::UntilClose;
        if is_tied || !(says_no_more && client.stream.is_plain() && is_settled(&client)) {
            self.close_lingering(client).await;
        }
        None
    }
}

/// Returns whether a client has acknowledged all bytes of its socket, and none of its own are unread.
fn is_settled(client: &BufferedStream<LazyStream>) -> bool {
    client
        .stream
        .socket()
        .is_some_and(|socket| matches!(unacknowledged(socket), Ok(0)) && matches!(unread(socket), Ok(0)))
}
