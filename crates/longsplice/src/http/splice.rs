//! The rest of a reply: relayed here, or carried by the engine.

use std::future::poll_fn;

use longsplice_engine::{Ended, Pair, Returned, Side, Trap, Until, policy::SplicePolicy};

use super::{
    body::{Passage, Unseen},
    clock::Late,
    server::AtServer,
    session::Session,
    wire::Wire,
};
use crate::client::Stream;

/// What became of a reply.
pub(super) enum Carried {
    /// It has passed.
    Whole(Wire<Stream>, AtServer),
    /// It broke off, for this reason.
    Cut(Wire<Stream>, String),
    /// Both connections are gone.
    Over,
}

/// What the engine made of a part of a reply.
enum Spliced {
    /// Control mode again.
    Back(Wire<Stream>, AtServer, Trap),
    /// Nothing is to be sent on these any more.
    Cut(Wire<Stream>, String),
    /// Both connections are gone.
    Over,
}

impl Session<'_> {
    /// Passes the rest of a reply, long parts by the engine.
    pub(super) async fn carry(
        &mut self,
        mut client: Wire<Stream>,
        mut at: AtServer,
        mut download: Passage,
    ) -> Carried {
        let limit = self.settings.listener.http.body_timeout;
        let mut may_splice = client.stream.is_plain() && self.settings.listener.splice != SplicePolicy::Never;
        while !download.is_done() {
            if may_splice && self.is_worthwhile(download.unseen()) {
                match self.splice(client, at, &mut download).await {
                    Spliced::Back(c, a, why) => {
                        (client, at) = (c, a);
                        // Else the same condition would bring it back at once.
                        may_splice = why == Trap::Server;
                    }
                    Spliced::Cut(client, why) => return Carried::Cut(client, why),
                    Spliced::Over => return Carried::Over,
                }
                continue;
            }
            let step = poll_fn(|cx| download.poll_pass(cx, &mut at.wire, &mut client));
            match self.clock.within(limit, step).await {
                Ok(Ok(())) => {}
                Ok(Err(broken)) => return Carried::Cut(client, broken.to_string()),
                Err(Late) => return Carried::Cut(client, Late.to_string()),
            }
        }
        Carried::Whole(client, at)
    }

    fn is_worthwhile(&self, unseen: Unseen) -> bool {
        let least = self.settings.listener.splice_from.unwrap_or(64 << 10).max(1);
        match unseen {
            Unseen::Bytes(n) => n >= least,
            Unseen::All => true,
        }
    }

    /// Lets the engine carry what need not be seen.
    async fn splice(&mut self, client: Wire<Stream>, mut at: AtServer, download: &mut Passage) -> Spliced {
        let listener = &self.settings.listener;
        let early = client.buffer;
        let stream = match client.stream.into_plain() {
            Ok(stream) => stream,
            Err(stream) => return Spliced::Back(Wire { stream, buffer: early }, at, Trap::Client),
        };
        // What the client sends meanwhile is its next request.
        let conditions = Until::data_from(Side::Client).or(Until::idle(listener.http.body_timeout));
        let until = match download.unseen() {
            Unseen::Bytes(n) => conditions.or(Until::bytes_from(Side::Server, n)),
            Unseen::All => conditions,
        };
        let pair = Pair::new(stream, at.wire.stream)
            .with_splice(listener.splice)
            .with_detach(listener.detach);
        let returned = match self.service.splicer().splice(pair, until).await {
            Ok(Ended::Returned(returned)) => returned,
            Ok(Ended::Closed(_) | Ended::Detached(_)) | Err(_) => return Spliced::Over,
        };
        let (why, passed) = (returned.why, returned.passed);
        let _ = returned.set_reset_on_close(false);
        let Returned { client, server, .. } = returned;
        let client = Wire {
            stream: Stream::Plain(client),
            buffer: early,
        };
        at.wire.stream = server;
        match (download.went_by(passed[Side::Server.index()]), why) {
            (Err(error), _) => Spliced::Cut(client, error.to_string()),
            (Ok(()), Trap::Idle) => Spliced::Cut(client, Late.to_string()),
            (Ok(()), why) => Spliced::Back(client, at, why),
        }
    }

    /// Passes both streams on to their ends, after a 101.
    pub(super) async fn tunnel(&mut self, mut client: Wire<Stream>, mut at: AtServer, head: &[u8], length: usize) {
        let listener = &self.settings.listener;
        let limit = listener.http.body_timeout;
        let mut behind = std::mem::take(&mut at.wire.buffer);
        behind.consume(length);
        let early = async {
            client.write_both(head, behind.data()).await?;
            at.wire.write_both(client.buffer.data(), &[]).await
        };
        if !matches!(self.clock.within(limit, early).await, Ok(Ok(()))) {
            return;
        }
        let mut server = at.wire.stream;
        let stream = match client.stream.into_plain() {
            Ok(stream) => stream,
            Err(mut stream) => {
                // How it ends is for the two ends to know.
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
                return;
            }
        };
        let pair = Pair::new(stream, server)
            .with_splice(listener.splice)
            .with_detach(listener.detach)
            .with_rate_limit(listener.rate_limit);
        crate::listener::carry(pair, listener.unsplice, self.service.splicer(), &listener.name, self.peer).await;
        drop(at.tenure);
    }
}
