//! The accept loop: what to do when the system has nothing to give, and when there are enough connections.

use std::{io, mem, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time,
};

use super::{Service, connection};
use crate::config::OnFull;

/// Another process may free what is missing, of which nobody tells us.
const RETRY: Duration = Duration::from_secs(1);

/// Accepts and serves until `stop` turns true or its sender is gone.
pub(super) async fn accept(listener: TcpListener, service: Arc<Service>, mut stop: watch::Receiver<bool>) {
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => {}
        () = accept_forever(listener, service) => {}
    }
}

async fn accept_forever(listener: TcpListener, service: Arc<Service>) {
    let mut admission = Admission {
        service,
        full: false,
        short: false,
    };
    loop {
        match listener.accept().await {
            Ok((client, peer)) => admission.admit(client, peer).await,
            Err(error) if concerns_one_connection(&error) => {
                let settings = admission.service.settings();
                let listener = settings.listener.name.as_str();
                tracing::debug!(listener, %error, "a connection ended before it was accepted");
            }
            Err(error) => admission.wait(&error).await,
        }
    }
}

/// Who is served now, who waits, and who is refused.
///
/// A connection is accepted before it has its permits: a permit that waited for a connection instead would be lost
/// to the other addresses.
struct Admission {
    service: Arc<Service>,
    /// `max_connections` was reached, and the log says so.
    full: bool,
    /// Descriptors or memory are short, and the log says so.
    short: bool,
}

impl Admission {
    async fn admit(&mut self, client: TcpStream, peer: SocketAddr) {
        let slot = match self.service.slots.clone() {
            None => None,
            Some(slots) => match Arc::clone(&slots).try_acquire_owned() {
                Ok(slot) => {
                    self.full = false;
                    Some(slot)
                }
                Err(_) => {
                    self.say_full();
                    if self.service.settings().listener.on_full == OnFull::Refuse {
                        return connection::refuse(client, peer, &self.service, "max_connections");
                    }
                    // It is never closed; were it, the connection would be served without the limit.
                    slots.acquire_owned().await.ok()
                }
            },
        };
        let descriptors = match self.service.shared.resources.try_pair() {
            Some(pair) => {
                self.say_plenty();
                Some(pair)
            }
            None => {
                self.say_short("the limit of descriptors is reached");
                self.service.shared.resources.pair().await
            }
        };
        connection::spawn(client, peer, Arc::clone(&self.service), [slot, descriptors]);
    }

    /// Returns when something was freed here, or after a while.
    async fn wait(&mut self, error: &io::Error) {
        self.say_short(&error.to_string());
        tokio::select! {
            () = self.service.shared.resources.freed.notified() => {}
            () = time::sleep(RETRY) => {}
        }
    }

    // One line for each time that a limit is reached, not for each connection beyond it.

    fn say_full(&mut self) {
        let settings = self.service.settings();
        let config = &settings.listener;
        if !mem::replace(&mut self.full, true) {
            let max_connections = config.max_connections;
            tracing::warn!(listener = config.name, max_connections, "the listener is full");
        }
    }

    fn say_short(&mut self, reason: &str) {
        if !mem::replace(&mut self.short, true) {
            tracing::warn!(
                listener = self.service.settings().listener.name,
                reason,
                "cannot accept: new connections wait until others end (raise LimitNOFILE= or `ulimit -n` if it lasts)"
            );
        }
    }

    fn say_plenty(&mut self) {
        if mem::take(&mut self.short) {
            tracing::info!(
                listener = self.service.settings().listener.name,
                "accepting again"
            );
        }
    }
}

/// Errors of accept(2) that are about the connection and not about the system.
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
