//! Forwards a connection of which nothing more has to be read: chooses a server, and hands the pair to the engine.

use std::{io, sync::Arc, time::Instant};

use longsplice_core::route::Facts;
use longsplice_engine::{
    Ended, IdlePolicy, Pair, Returned, Side, Summary, Trap, Until, policy::SplicePolicy, reason::RelayReason,
};
use longsplice_repair::unread;
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tokio_rustls::server::TlsStream;

use super::{Decided, Destination, KeptFacts, Open, Settings, Standing};
use crate::{
    access_log::{AccessRecord, End},
    client::{Client, Hello, Stream, gone},
    rate_limiter::RateLimiter,
    tls,
    upstream::{Ask, Lease, Tenure, Upstream},
};

/// Forwards a connection that began at `began`, until it ends or is detached. The settings decide, or newer ones that come
/// into force meanwhile.
pub(super) async fn forward(client: Client, mut settings: Arc<Settings>, open: Open, began: Instant) {
    let mut carried = Forwarding {
        record: AccessRecord::new(&settings.listener.name, client.peer),
        tenure: None,
        open,
        began,
    };
    carried.record.sni = client.hello.as_ref().and_then(|hello| hello.sni.clone());
    let lease = match carried.lease(&client, &mut settings).await {
        Ok(lease) => lease,
        Err(Refusal { end, reason }) => {
            let record = carried.record.ended(began, end);
            return carried
                .open
                .service()
                .refuse(client.stream.into_socket(), record, &reason);
        }
    };
    carried.tenure = Some(lease.tenure);
    let config = &settings.listener;
    match client.stream {
        Stream::Tls(stream) => {
            let pace = RateLimiter::new(config.rate_limit);
            carried
                .relay(stream, lease.stream, &client.early, pace, config.idle)
                .await;
        }
        Stream::Plain(socket) => {
            let mut server = lease.stream;
            // A ClientHello fits into a socket's buffer: a server that does not take it in time has failed.
            let early = timeout(config.connect_timeout, server.write_all(&client.early)).await;
            if let Err(error) = early.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                tracing::debug!(listener = config.name, peer = %client.peer, %error, "the server is gone");
                return carried.finish(End::ServerClosed);
            }
            carried.record.traffic.bytes_to_server += client.early.len() as u64;
            let measured = || carried.open.service().shared().splice_min.bytes();
            let splice_min = config.splice_min.unwrap_or_else(measured);
            let pair = Pair::new(socket, server)
                .with_splice(config.splice)
                .with_splice_min(splice_min)
                .with_detach(config.detach)
                .with_rate_limit(config.rate_limit)
                .with_idle(config.idle);
            carried.carry(pair, config.unsplice).await;
        }
    }
}

/// Reason why a connection is not forwarded.
struct Refusal {
    end: End,
    reason: String,
}

impl Refusal {
    fn new(end: End, reason: impl ToString) -> Refusal {
        let reason = reason.to_string();
        Refusal { end, reason }
    }

    fn of_reload() -> Refusal {
        Refusal::new(End::Reload, "the configuration changed before it had a server")
    }
}

/// A connection that is being forwarded.
pub(crate) struct Forwarding {
    pub(crate) open: Open,
    /// Permit that counts it as one of its server's connections.
    pub(crate) tenure: Option<Tenure>,
    pub(crate) record: AccessRecord,
    pub(crate) began: Instant,
}

impl Forwarding {
    /// Decides on the destination, and connects. A refusal has a reason.
    async fn lease(&mut self, client: &Client, settings: &mut Arc<Settings>) -> Result<Lease, Refusal> {
        let upstream = loop {
            let (upstream, decided) = self.decide(client, settings)?;
            match self.open.publish(Box::new(decided)) {
                Standing::Holds => break upstream,
                Standing::Superseded(newer) => *settings = newer,
                Standing::Void => return Err(Refusal::of_reload()),
            }
        };
        let splicer = self.open.service().splicer();
        let ask = Ask::of(client, settings.listener.source());
        let leased = tokio::select! {
            leased = settings.lease(upstream.as_ref(), &ask, splicer) => leased,
            () = gone(client.stream.socket(), settings.listener.abort_on_close) => {
                return Err(Refusal::new(End::ClientClosed, "the client has gone while it waited for a server"));
            }
            why = self.open.cancelled() => return Err(Refusal::new(why, "it was to end while it connected")),
        };
        let lease = leased.map_err(|error| Refusal::new(End::Unavailable, error))?;
        let server = lease.tenure.server();
        self.record.server = Some(server.name().to_owned());
        match self.open.at_server(server) {
            true => Ok(lease),
            false => Err(Refusal::of_reload()),
        }
    }

    fn decide(
        &mut self,
        client: &Client,
        settings: &Settings,
    ) -> Result<(Option<Arc<Upstream>>, Decided), Refusal> {
        let facts = Hello::told(client.hello.as_ref(), Facts::of_client(client.peer.ip()));
        let (taken, destination) = settings.decide(&facts);
        self.record.route = taken.map(|(_, route)| route.name.clone());
        let upstream = match destination {
            Destination::Upstream(upstream) => Some(Arc::clone(upstream)),
            Destination::Original => None,
            Destination::Status(_) | Destination::Redirect(_) => {
                return Err(Refusal::new(End::Refused, "a route says so"));
            }
        };
        self.record.upstream = upstream.as_ref().map(|upstream| upstream.name().to_owned());
        let decided = Decided {
            generation: settings.generation,
            listener: Arc::clone(&settings.listener),
            route: taken.map(|(number, _)| number),
            server: None,
            facts: match Decided::wants_facts(settings) {
                true => KeptFacts::keep(&facts, std::iter::empty()),
                false => None,
            },
        };
        Ok((upstream, decided))
    }

    /// Forwards a pair to its end, however often it comes back.
    pub(crate) async fn carry(mut self, mut pair: Pair, mut conditions: Until) {
        let (name, peer) = (self.record.listener.clone(), self.record.client);
        let mut until = conditions;
        loop {
            let returned = match self.open.splice(pair, until).await {
                Ok(Ended::Closed(summary)) => return self.closed(&summary),
                Ok(Ended::Detached(id)) => {
                    tracing::debug!(listener = name, %peer, flow = %id, "detached: it runs on in the kernel");
                    self.record.traffic.spliced = true;
                    let Forwarding {
                        open,
                        tenure,
                        record,
                        began,
                    } = self;
                    return open.detached(id, tenure, record, began).await;
                }
                Ok(Ended::Returned(returned)) => returned,
                Err(error) => {
                    tracing::warn!(listener = name, %peer, %error, "the connection was cut off");
                    return self.finish(End::Reset);
                }
            };
            let why = returned.why;
            if returned.spliced {
                tracing::debug!(listener = name, %peer, flow = %returned.id, why = why.as_str(), "unspliced");
            }
            self.record.traffic.add_returned(&returned);
            until = until_passed(&returned, conditions);
            pair = Pair::from(returned);
            if why == Trap::Admin {
                // The unsplice was requested: relay until a splice is requested.
                pair = pair
                    .with_splice(SplicePolicy::Never)
                    .with_reason(RelayReason::ByCommand);
                conditions = Until::closed();
                until = conditions;
            }
        }
    }

    /// Relays a connection that is decrypted here: no segment of it can be translated.
    pub(crate) async fn relay(
        mut self,
        client: Box<TlsStream<TcpStream>>,
        server: TcpStream,
        early: &[u8],
        pace: RateLimiter,
        idle: IdlePolicy,
    ) {
        // Let both sockets reset when the process dies. The client's has been closing with a FIN if it carried HTTP.
        for socket in [client.get_ref().0, &server] {
            let _ = longsplice_repair::options::set_reset_on_close(socket, true);
        }
        let passed = tls::relay(client, server, early, pace, idle, self.open.cancelled()).await;
        let splicer = self.open.service().splicer();
        splicer.count_relayed(RelayReason::Tls, passed.bytes());
        self.record.traffic.bytes_to_server += passed.to_server;
        self.record.traffic.bytes_to_client += passed.to_client;
        let end = match (&passed.end, self.open.to_end()) {
            (Ok(()), _) => End::Complete,
            (Err(_), Some(why)) => why,
            (Err(_), None) if passed.idle => End::Idle,
            (Err(error), None) => {
                tracing::debug!(peer = %self.record.client, %error, "the connection was cut off");
                End::Reset
            }
        };
        self.record.traffic.relay_reason = Some(RelayReason::Tls);
        self.finish(end);
    }

    fn closed(mut self, summary: &Summary) {
        tracing::debug!(
            listener = self.record.listener, peer = %self.record.client,
            flow = %summary.id,
            to_server = summary.bytes_to_server,
            to_client = summary.bytes_to_client,
            spliced = summary.spliced,
            relay_reason = summary.relay_reason.map(|r| r.as_str()),
            reset = summary.reset,
            "connection ended"
        );
        self.record.traffic.add(summary);
        let stopped = self.open.service().is_stopping() && summary.reset;
        let end = match (self.open.to_end(), summary.reset) {
            (Some(why), true) => why,
            (None, true) if stopped => End::Shutdown,
            (None, true) if summary.idle => End::Idle,
            (None, true) => End::Reset,
            (_, false) if summary.replaced => End::Unknown,
            (_, false) => End::Complete,
        };
        self.finish(end);
    }

    fn finish(self, end: End) {
        self.open.service().finished(self.record.ended(self.began, end));
    }
}

/// Raises the data conditions, so that the bytes that wait in the sockets pass first; no protocol handler reads them
/// here. It raises them for both sides: a peer may take nothing more before its own bytes are read.
fn until_passed(returned: &Returned, conditions: Until) -> Until {
    let (mut until, trapped) = match returned.why {
        Trap::Client => (conditions, Side::Client),
        Trap::Server => (conditions, Side::Server),
        _ => return conditions,
    };
    for (side, from) in [(Side::Client, &returned.client), (Side::Server, &returned.server)] {
        let Some(budget) = conditions.budget(side).filter(|_| conditions.is_data(side)) else {
            continue;
        };
        let waiting = unread(from).map_or(0, u64::from);
        until = until.with_data_beyond(
            side,
            match side == trapped {
                true => waiting.max(1),
                false => waiting.max(budget),
            },
        );
    }
    until
}
