//! Serves one client's connection, request after request.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use longsplice_core::http::Limits;
use longsplice_engine::reason::RelayReason;

use super::{
    buffered_stream::BufferedStream,
    deadline::Deadline,
    decide::{Decision, Unread},
    lazy_stream::LazyStream,
    session::{Session, Tunnel, reset},
};
use crate::{
    access_log::End,
    client::Client,
    listener::{Forwarding, Open, Settings, Standing},
    rate_limiter::RateLimiter,
    upstream::{Owned, Private},
};

/// Serves a client's requests until its connection ends. `settings` are those of the first request; each later request
/// gets the current ones, if its listener still takes such a session.
pub(crate) async fn serve(client: Client<LazyStream>, settings: &Arc<Settings>, open: Open) {
    let is_cancelled = AtomicBool::new(false);
    let mut session = Session {
        settings: Arc::clone(settings),
        service: open.service(),
        open: &open,
        deadline: Deadline::new(&is_cancelled),
        limits: Limits::default(),
        pace: RateLimiter::new(settings.listener.rate_limit),
        peer: client.peer,
        local: client.local,
        ipv4: client.ipv4,
        https: !client.stream.is_plain(),
        hello: client.hello,
        requests: 0,
        began: None,
        told: None,
        had_server: false,
        owned: Owned::default(),
        private: Private::default(),
        tunnel: None,
    };
    let wire = BufferedStream::new(client.stream, client.early);
    {
        let mut all = pin!(session.serve_all(wire));
        let mut cancelled = pin!(open.cancelled());
        poll_fn(|cx| {
            if all.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            // Poll again with `is_cancelled` set: from now on every wait ends at once.
            if !is_cancelled.load(Ordering::Relaxed) && cancelled.as_mut().poll(cx).is_ready() {
                is_cancelled.store(true, Ordering::Relaxed);
                return all.as_mut().poll(cx);
            }
            Poll::Pending
        })
        .await;
    }
    let (tunnel, told) = (session.tunnel.take(), session.told.take());
    let splicer = session.service.splicer();
    let (Some(tunnel), Some(told)) = (tunnel, told) else {
        if session.https && session.had_server {
            splicer.count_relayed(RelayReason::Tls, 0);
        }
        return;
    };
    // A tunnel counts its own bytes, and the connection.
    splicer.count_relayed_bytes(told.relayed());
    let (record, began) = told.into_parts();
    let (unsplice, idle) = (session.settings.listener.unsplice, session.settings.listener.idle);
    let carried = |open, tenure| Forwarding {
        open,
        tenure: Some(tenure),
        record,
        began,
    };
    let pace = session.pace;
    // Run the tunnel in a task of its own: a session needs many times its memory, and the tunnel may stay for days.
    match tunnel {
        Tunnel::Plain { pair, tenure } => tokio::spawn(carried(open, tenure).carry(pair, unsplice)),
        Tunnel::Tls {
            client,
            server,
            tenure,
        } => tokio::spawn(carried(open, tenure).relay(client, server, &[], pace, idle)),
    };
}

impl Session<'_> {
    async fn serve_all(&mut self, mut client: BufferedStream<LazyStream>) {
        while let Some(next) = self.serve_one(client).await {
            client = next;
        }
    }

    /// Serves the next request. Returns the connection if another request may follow.
    async fn serve_one(
        &mut self,
        mut client: BufferedStream<LazyStream>,
    ) -> Option<BufferedStream<LazyStream>> {
        // Ignore an error: reading a lost connection fails anyway.
        if self.requests > 0 {
            let _ = client.stream.make_known();
        }
        let read = self.read_head(&mut client).await;
        self.requests += 1;
        let scanned = match read {
            Ok(scanned) => scanned,
            Err(Unread::Ended(why)) => {
                tracing::trace!(peer = %self.peer, why, "no further request");
                match self.deadline.is_cancelled() {
                    true => reset(client),
                    false => self.close(client).await,
                }
                return None;
            }
            Err(Unread::Cancelled) => {
                self.tell(None);
                self.cut_off(client, End::Reset);
                return None;
            }
            Err(Unread::Refused(refusal)) => {
                self.tell(None);
                self.refuse(client, &refusal).await;
                return None;
            }
        };
        if let Some(newest) = self.service.settings_for_next(&self.settings) {
            self.settings = newest;
        }
        loop {
            self.pace.set_limit(self.settings.listener.rate_limit);
            return match self.decide(&client, scanned) {
                Decision::Forward(request, destination, decided) => match self.open.publish(decided) {
                    Standing::Holds => self.exchange(client, request, destination).await,
                    Standing::Superseded(newer) => {
                        self.settings = newer;
                        continue;
                    }
                    Standing::Void => {
                        self.cut_off(client, End::Reload);
                        None
                    }
                },
                Decision::Answer(request, reply) => self.answer(client, &request, &reply).await,
                Decision::Refuse(refusal) => {
                    self.refuse(client, &refusal).await;
                    None
                }
            };
        }
    }
}
