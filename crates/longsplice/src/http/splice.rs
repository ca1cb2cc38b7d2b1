//! The rest of a reply, relayed here or carried by the engine.

use std::future::poll_fn;

use longsplice_engine::{Ended, Pair, Side, Trap, Until, policy::SplicePolicy};
use tokio::io::copy_bidirectional;

use super::{
    body::{Passage, Unseen},
    clock::Late,
    reply::Reply,
    server::AtServer,
    session::Session,
    wire::Wire,
};
use crate::{client::Stream, listener::carry};

/// What became of a reply.
pub(super) enum Carried {
    /// It has passed.
    Whole(Wire<Stream>, AtServer, Passage),
    /// It broke off, for this reason.
    Cut(Wire<Stream>, String),
    /// Both connections are gone.
    Over,
}

impl Session<'_> {
    /// Passes the rest of a body from the server, as the policy says.
    pub(super) async fn carry(
        &mut self,
        mut client: Wire<Stream>,
        mut at: AtServer,
        mut download: Passage,
    ) -> Carried {
        let limit = self.settings.listener.http.body_timeout;
        let mut may_splice = self.may_splice(&client);
        while !download.is_done() {
            if may_splice && self.is_worthwhile(download.unseen()) {
                match self.splice(client, at, &mut download).await {
                    Spliced::Back(back) => (client, at, may_splice) = *back,
                    Spliced::Cut(back, why) => return Carried::Cut(back, why),
                    Spliced::Over => return Carried::Over,
                }
                continue;
            }
            let step = poll_fn(|cx| download.poll_pass(cx, &mut at.wire, &mut client));
            match self.clock.within(limit, step).await {
                Ok(Ok(())) => {}
                Ok(Err(broken)) => return Carried::Cut(client, broken.to_string()),
                Err(Late) => return Carried::Cut(client, "nothing came for too long".to_owned()),
            }
        }
        Carried::Whole(client, at, download)
    }

    fn may_splice(&self, client: &Wire<Stream>) -> bool {
        client.stream.is_plain() && self.settings.listener.splice != SplicePolicy::Never
    }

    fn is_worthwhile(&self, unseen: Unseen) -> bool {
        let least = self.settings.listener.splice_from.unwrap_or(64 << 10);
        match unseen {
            Unseen::Bytes(n) => n > 0 && n >= least,
            Unseen::All => true,
        }
    }

    /// Lets the engine carry what need not be seen.
    async fn splice(&mut self, client: Wire<Stream>, at: AtServer, download: &mut Passage) -> Spliced {
        let listener = &self.settings.listener;
        // What the client sends meanwhile is its next request.
        let until = Until::data_from(Side::Client).or(Until::idle(listener.http.body_timeout));
        let until = match download.unseen() {
            Unseen::Bytes(n) => until.or(Until::bytes_from(Side::Server, n)),
            Unseen::All => until,
        };
        let (Wire { stream, buffer }, AtServer { wire, .. }) = (client, at);
        todo!()
    }

    /// Passes both streams on to their ends, after a 101.
    pub(super) async fn tunnel(&mut self, mut client: Wire<Stream>, mut at: AtServer, reply: &Reply) {
        todo!()
    }
}

/// What the engine gave back.
enum Spliced {
    /// Both, and whether it is worth another try.
    Back(Box<(Wire<Stream>, AtServer, bool)>),
    /// The client's, of a reply that broke off.
    Cut(Wire<Stream>, String),
    /// Nothing.
    Over,
}
