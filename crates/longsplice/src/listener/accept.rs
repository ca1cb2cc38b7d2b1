//! Runs the accept loop, also while descriptors or memory are short, and while the listener is full.

use std::{
    io, mem,
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use super::{Listening, Service, acceptor::Acceptor, connection};
use crate::config::OnFull;

/// Interval between attempts to accept: another process may free what is missing without notice.
const RETRY: Duration = Duration::from_secs(1);

/// Shortest time between two lines of the log about one limit. Connections that end make room for a moment, again and again.
const NOTICES: Duration = Duration::from_secs(60);

/// Longest wait for a further connection before the socket closes: connections that were made earlier are there within
/// this time.
const LAST_CALL: Duration = Duration::from_millis(20);

/// Longest time for accepting before the socket closes: else a busy socket would never be closed.
const LAST_CALLS: Duration = Duration::from_millis(500);

/// Accepts connections; the listener that `service` shows serves them. Ends when `stopping` is cancelled, or when the
/// sender of `service` is dropped: then connections that have arrived by that time are still served. Serves each
/// connection that it has accepted, also one that waits for room at the end.
pub(super) async fn accept(
    socket: Arc<Listening>,
    service: watch::Receiver<Arc<Service>>,
    stopping: CancellationToken,
) {
    tokio::select! {
        () = accept_until_closed(&socket.acceptor, service.clone(), stopping) => {}
        () = socket.keep(service) => {}
    }
}

async fn accept_until_closed(
    listener: &Acceptor,
    mut service: watch::Receiver<Arc<Service>>,
    stopping: CancellationToken,
) {
    let mut admission = Admission {
        service: Arc::clone(&service.borrow()),
        services: service.clone(),
        stopping: stopping.clone(),
        full: Notice::default(),
        short: Notice::default(),
        is_short: false,
    };
    loop {
        // Handle accepted connections outside of this `select`: a cancelled branch would lose them.
        let accepted = tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            changed = service.changed() => match changed {
                Ok(()) => continue,
                Err(_) => break,
            },
            accepted = listener.accept() => accepted,
        };
        admission.settle(accepted).await;
    }
    let close = Instant::now() + LAST_CALLS;
    while Instant::now() < close
        && !stopping.is_cancelled()
        && let Ok(Ok(accepted)) = time::timeout(LAST_CALL, listener.accept()).await
    {
        admission.settle(Ok(accepted)).await;
    }
}

/// Decides which connections are served now, wait, or are refused.
///
/// A connection is accepted before it has its permits: a permit that waited for a connection instead would be lost to
/// the other addresses. A connection that waits when the daemon shuts down goes beyond the limits: a successor cannot
/// accept it any more.
struct Admission {
    /// Listener of the socket at the last look.
    service: Arc<Service>,
    services: watch::Receiver<Arc<Service>>,
    /// Cancelled when the daemon shuts down.
    stopping: CancellationToken,
    /// Notice that `max_connections` was reached.
    full: Notice,
    /// Notice that descriptors or memory are short.
    short: Notice,
    /// True if they are short, and the log shows it.
    is_short: bool,
}

/// Line of the log about a limit: one for each time that it is reached, but not for each connection that finds it reached again.
#[derive(Debug, Default)]
struct Notice {
    written: Option<Instant>,
}

impl Notice {
    /// Returns true if the line is due, which is to be written then.
    fn is_due(&mut self) -> bool {
        let is_due = self.written.is_none_or(|at| at.elapsed() >= NOTICES);
        if is_due {
            self.written = Some(Instant::now());
        }
        is_due
    }
}

impl Admission {
    async fn settle(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        match accepted {
            Ok((client, peer)) => self.admit(client, peer).await,
            Err(error) if concerns_one_connection(&error) => {
                let settings = self.service.settings();
                let listener = settings.listener.name.as_str();
                tracing::debug!(listener, %error, "a connection ended before it was accepted");
            }
            Err(error) => self.wait(&error).await,
        }
    }

    async fn admit(&mut self, client: TcpStream, peer: SocketAddr) {
        let slot = loop {
            self.service = Arc::clone(&self.services.borrow_and_update());
            // Check the memory first: a waiting connection takes memory, too.
            let shared = &self.service.shared;
            if !shared.memory.admits(shared.tracker.count()) {
                return connection::refuse_unserved(client, peer, &self.service, "memory runs short");
            }
            let slots = Arc::clone(&self.service.slots);
            let freed = slots.freed();
            if let Some(slot) = slots.try_take() {
                break slot;
            }
            self.say_full();
            if self.service.settings().listener.on_full == OnFull::Refuse {
                return connection::refuse_unserved(client, peer, &self.service, "max_connections");
            }
            // A reload may give the socket to another listener, or change this one.
            tokio::select! {
                () = freed => {}
                Ok(()) = self.services.changed() => {}
                () = self.stopping.cancelled() => break slots.take_beyond(),
            }
        };
        let descriptors = match self.service.shared.resources.try_pair() {
            Some(pair) => {
                self.say_plenty();
                Some(pair)
            }
            None => {
                self.say_short("the limit of descriptors is reached");
                tokio::select! {
                    pair = self.service.shared.resources.pair() => pair,
                    () = self.stopping.cancelled() => None,
                }
            }
        };
        connection::spawn(client, peer, Arc::clone(&self.service), slot, descriptors);
    }

    /// Returns when this process has freed something, or after `RETRY`, or when the daemon shuts down.
    async fn wait(&mut self, error: &io::Error) {
        self.say_short(&error.to_string());
        tokio::select! {
            () = self.service.shared.resources.freed.notified() => {}
            () = time::sleep(RETRY) => {}
            () = self.stopping.cancelled() => {}
        }
    }

    fn say_full(&mut self) {
        let settings = self.service.settings();
        let config = &settings.listener;
        if self.full.is_due() {
            let max_connections = config.max_connections;
            tracing::warn!(listener = config.name, max_connections, "the listener is full");
        }
    }

    fn say_short(&mut self, reason: &str) {
        if self.short.is_due() {
            self.is_short = true;
            tracing::warn!(
                listener = self.service.settings().listener.name,
                reason,
                "cannot accept: new connections wait until others end (raise LimitNOFILE= or `ulimit -n` if it lasts)"
            );
        }
    }

    fn say_plenty(&mut self) {
        if mem::take(&mut self.is_short) {
            tracing::info!(
                listener = self.service.settings().listener.name,
                "accepting again"
            );
        }
    }
}

/// Returns whether an error of accept(2) concerns the connection only, and not the system.
fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionAborted
            | Kind::ConnectionReset
            | Kind::Interrupted
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_not_taken_for_a_broken_connection() {
        for (errno, one) in [
            (nix::libc::ECONNABORTED, true),
            (nix::libc::ENETDOWN, true),
            (nix::libc::EMFILE, false),
            (nix::libc::ENFILE, false),
            (nix::libc::ENOMEM, false),
            (nix::libc::ENOBUFS, false),
            (nix::libc::EINVAL, false),
        ] {
            assert_eq!(
                concerns_one_connection(&io::Error::from_raw_os_error(errno)),
                one,
                "{errno}"
            );
        }
    }
}
