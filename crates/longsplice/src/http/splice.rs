//! Passes the rest of a reply: relays it here, or lets the engine carry it.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use longsplice_engine::{Ended, Pair, Returned, Side, SuccessorAction, Summary, Trap, Until};
use longsplice_repair::{State, options, set_receive_growth, tcp_info, unread};

use super::{
    body::{Passage, Unseen},
    buffered_stream::BufferedStream,
    deadline::Late,
    lazy_stream::LazyStream,
    server::AtServer,
    session::{Session, Tunnel},
};
use crate::{access_log::End, client::Stream};

/// Result of carrying a reply.
#[allow(clippy::large_enum_variant, reason = "made once, and taken apart at once")]
pub(super) enum Delivery {
    /// The reply has passed completely.
    Whole(BufferedStream<LazyStream>, AtServer),
    /// The reply broke off, for this reason.
    Cut(BufferedStream<LazyStream>, End),
    /// Both connections are gone.
    Over(End),
}

impl Session<'_> {
    /// Passes the rest of a reply; the engine carries long parts.
    pub(super) async fn carry(
        &mut self,
        client: BufferedStream<LazyStream>,
        at: AtServer,
        mut download: Passage,
    ) -> Delivery {
        let delivery = self.carry_on(client, at, &mut download).await;
        self.note(|told| told.sent_client(download.passed()));
        delivery
    }

    async fn carry_on(
        &mut self,
        mut client: BufferedStream<LazyStream>,
        mut at: AtServer,
        download: &mut Passage,
    ) -> Delivery {
        let limit = self.settings.listener.http.body_timeout;
        let at_its_end = self.settings.listener.abort_on_close;
        let mut may_splice = self.may_splice(&client);
        // Release the buffers: the bytes that were read with the heads are written, and the connections may wait for
        // long.
        client.buffer.rest();
        at.wire.buffer.rest();
        let mut judged = None;
        while !download.is_done() {
            if may_splice && self.is_worthwhile(&at, download, &mut judged) {
                // Relay the reply of a client that has closed its half: the engine passes that on, and there are servers
                // that stop there.
                if has_closed_its_half(&client) {
                    may_splice = false;
                    continue;
                }
                let (c, a, why) = match Box::pin(self.splice(client, at, download)).await {
                    Ok(back) => back,
                    Err(delivery) => return delivery,
                };
                (client, at) = (c, a);
                // Splice again only if the byte count ended the splice: any other condition would end the next one at
                // once.
                may_splice = why == Trap::Server;
                continue;
            }
            if self.paced(Side::Server).await.is_err() {
                return Delivery::Cut(client, download.late());
            }
            let before = download.passed();
            let step = self
                .deadline
                .within(limit, pin!(pass(&mut client, &mut at, download, at_its_end)))
                .await;
            match step {
                Ok(Ok(())) => self.pace.charge(Side::Server, download.passed() - before),
                Ok(Err(end)) => return Delivery::Cut(client, end),
                Err(Late) => return Delivery::Cut(client, at.end_behind(download.late())),
            }
        }
        Delivery::Whole(client, at)
    }

    /// Returns whether to splice the rest of a reply or chunk. Judges each once: later, less of it is left. `judged` is the
    /// end of the last one, in bytes of the body.
    fn is_worthwhile(&self, at: &AtServer, download: &Passage, judged: &mut Option<u64>) -> bool {
        let follow = match download.unseen() {
            Unseen::All => return true,
            Unseen::Bytes(0) => return false,
            Unseen::Bytes(follow) => follow,
        };
        let end = download.passed().saturating_add(follow);
        if judged.replace(end) == Some(end) {
            return false;
        }
        // Bytes that are in the server's socket already cannot bypass the sockets.
        let can_bypass = || follow.saturating_sub(unread(&at.wire.stream).unwrap_or(0).into());
        match self.settings.listener.splice_min {
            Some(least) => follow >= least && can_bypass() > 0,
            None => {
                let least = self.service.shared().splice_min.bytes().max(1);
                let delay = self.service.splice_delay();
                // Ask for its turn last: each question counts.
                follow >= least && can_bypass() >= least && delay.pays(follow, least)
            }
        }
    }

    /// Lets the engine carry the bytes that need not be examined. Returns both connections, and the reason for their
    /// return.
    async fn splice(
        &mut self,
        client: BufferedStream<LazyStream>,
        mut at: AtServer,
        download: &mut Passage,
    ) -> Result<(BufferedStream<LazyStream>, AtServer, Trap), Delivery> {
        let listener = Arc::clone(&self.settings.listener);
        let buffer = client.buffer;
        let stream = match client.stream.into_known().map(Stream::into_plain) {
            Ok(Ok(stream)) => stream,
            Ok(Err(tls)) => {
                let stream = LazyStream::Known(tls);
                return Ok((BufferedStream { stream, buffer }, at, Trap::Admin));
            }
            Err(_) => return Err(Delivery::Over(End::ClientClosed)),
        };
        if stream.peer_addr().is_err() || at.wire.stream.peer_addr().is_err() {
            // The connection is closed in both directions, but its received bytes must still be read.
            let stream = LazyStream::Known(Stream::Plain(stream));
            return Ok((BufferedStream { stream, buffer }, at, Trap::Admin));
        }
        // Tell a succeeding daemon how to end: it can read neither the next request nor the end of the chunks. The
        // client notices missing chunks.
        let successor = match download.ends_unseen() {
            true => SuccessorAction::End,
            false => SuccessorAction::Follow,
        };
        // Data from the client is its next request.
        let conditions = Until::data_from(Side::Client).or(Until::idle(listener.http.body_timeout));
        let pair = Pair::new(stream, at.wire.stream)
            .with_splice(listener.splice)
            .with_detach(listener.detach)
            .with_successor(successor);
        let pair = self.pace.on(pair);
        let (pair, until, unseen) = match download.unseen() {
            Unseen::Bytes(n) => (
                pair.with_length(n),
                conditions.or(Until::bytes_from(Side::Server, n)),
                Some(n),
            ),
            Unseen::All => (pair, conditions, None),
        };
        let returned = match self.open.splice(pair, until).await {
            Ok(Ended::Returned(returned)) => returned,
            Ok(Ended::Closed(summary)) => return Err(Delivery::Over(self.closed(&summary, unseen))),
            Ok(Ended::Detached(_)) => return Err(Delivery::Over(End::Shutdown)),
            Err(_) => return Err(Delivery::Over(End::Reset)),
        };
        let passed = returned.passed[Side::Server];
        if let (Some(n), true) = (unseen, returned.why == Trap::Server) {
            let relayed = passed.saturating_sub(returned.bytes_spliced);
            self.service
                .splice_delay()
                .learn(n, relayed, returned.relay_reason);
        }
        if let Some(reason) = returned.relay_reason {
            self.service.splicer().count_relayed(reason, 0);
        }
        self.note(|told| told.returned(&returned));
        self.pace.take_back(&returned);
        at.half_closed |= returned.is_half_closed(Side::Client);
        at.tie = self.service.splicer().tie(&returned);
        if let Err(error) = download.went_by(passed) {
            // Dropping both resets them.
            tracing::error!(flow = %returned.id, why = returned.why.as_str(), %error, "a reply is cut off");
            return Err(Delivery::Over(End::OutOfStep));
        }
        // Let the server's connection close with a FIN, because it may be idle next. The client's reply is not complete
        // yet.
        let _ = options::set_reset_on_close(&returned.server, false);
        let Returned {
            client, server, why, ..
        } = returned;
        let stream = LazyStream::Known(Stream::Plain(client));
        let client = BufferedStream { stream, buffer };
        at.wire.stream = server;
        match why {
            Trap::Idle => Err(Delivery::Cut(client, End::ServerTimeout)),
            why => Ok((client, at, why)),
        }
    }

    /// Returns the end of a reply whose connections the engine closed. `unseen` is the number of its bytes that were to
    /// come.
    fn closed(&mut self, summary: &Summary, unseen: Option<u64>) -> End {
        self.note(|told| told.closed(summary));
        match unseen {
            _ if summary.idle => End::Idle,
            _ if summary.reset => End::Reset,
            _ if summary.replaced => End::Unknown,
            Some(n) if summary.bytes_to_client < n => End::ServerClosed,
            Some(n) if summary.bytes_to_client > n => End::OutOfStep,
            _ => End::Complete,
        }
    }

    /// Sends the head of a 101 and the bytes behind it and behind the request. The session does not read the rest.
    pub(super) async fn tunnel(
        &mut self,
        mut client: BufferedStream<LazyStream>,
        mut at: AtServer,
        head: &[u8],
        length: usize,
    ) {
        let listener = Arc::clone(&self.settings.listener);
        let limit = listener.http.body_timeout;
        let mut behind = std::mem::take(&mut at.wire.buffer);
        behind.consume(length);
        let begun = match self
            .deadline
            .write_both(limit, &mut client, head, behind.data())
            .await
        {
            Ok(Ok(())) => {
                self.deadline
                    .write_both(limit, &mut at.wire, client.buffer.data(), &[])
                    .await
            }
            failed => failed,
        };
        self.note(|told| {
            told.sent_client((head.len() + behind.len()) as u64);
            told.sent_server(client.buffer.len() as u64);
        });
        if !matches!(begun, Ok(Ok(()))) {
            return self.cut_off(client, End::ClientClosed);
        }
        let Ok(stream) = client.stream.into_known() else {
            return self.over(End::ClientClosed);
        };
        let tenure = at.tenure;
        // Let the window grow: the tunnel may carry any number of bytes.
        let _ = set_receive_growth(&at.wire.stream, true);
        self.tunnel = Some(match stream {
            Stream::Plain(socket) => {
                let pair = Pair::new(socket, at.wire.stream)
                    .with_splice(listener.splice)
                    .with_detach(listener.detach)
                    .with_idle(listener.idle);
                let pair = self.pace.on(pair);
                Tunnel::Plain { pair, tenure }
            }
            Stream::Tls(client) => Tunnel::Tls {
                client,
                server: at.wire.stream,
                tenure,
            },
        });
    }
}

/// Passes a piece of a reply on. Watches the client while the server sends nothing: a reset ends the reply, and with
/// `at_its_end` a FIN does, too.
async fn pass(
    client: &mut BufferedStream<LazyStream>,
    at: &mut AtServer,
    download: &mut Passage,
    at_its_end: bool,
) -> Result<(), End> {
    loop {
        let polled = poll_fn(|cx| match download.poll_pass(cx, &mut at.wire, client) {
            // Leave it to the write, which fails if the client is gone.
            Poll::Pending if download.waits_for_recipient() => Poll::Pending,
            polled => Poll::Ready(polled),
        });
        if let Poll::Ready(passed) = polled.await {
            return passed.map_err(|broken| at.end_behind(broken.end()));
        }
        client.stream.make_known().map_err(|_| End::ClientClosed)?;
        tokio::select! {
            biased;
            // Ignore the result: the read tells.
            _ = at.wire.stream.readable() => {}
            () = client.stream.gone(at_its_end) => return Err(End::ClientClosed),
        }
    }
}

/// Returns whether the client's FIN has come.
fn has_closed_its_half(client: &BufferedStream<LazyStream>) -> bool {
    let info = client.stream.socket().and_then(|socket| tcp_info(socket).ok());
    info.is_some_and(|info| info.state() == State::CloseWait)
}
