//! Prepares listening sockets, so that the connections that they accept can be spliced: for the address of a target at
//! once, for a name once it is looked up. Nothing waits for that but a task of the socket.

use std::{net::SocketAddr, sync::Arc};

use longsplice_engine::policy::SplicePolicy;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::{Service, Settings, acceptor::Acceptor};
use crate::{address::Target, upstream::same_family_first};

/// Limits the look-ups at a time: each takes a thread until the name server answers or is given up, and connections need
/// some, too.
static LOOK_UPS: Semaphore = Semaphore::const_new(8);

/// A listening socket that is prepared for the targets of its listener.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) acceptor: Acceptor,
    pub(super) address: SocketAddr,
    /// Targets of the last look-up that succeeded, with the address that it found.
    found: Mutex<Option<(Vec<Target>, SocketAddr)>>,
}

impl Prepared {
    /// Prepares a socket before it serves this listener.
    pub(super) fn new(acceptor: Acceptor, address: SocketAddr, service: &Service) -> Prepared {
        let prepared = Prepared {
            acceptor,
            address,
            found: Mutex::default(),
        };
        prepared.prepare(service);
        prepared
    }

    /// Prepares the socket by what is known now. Without this its connections are still served, but may not be spliceable.
    /// The clients of a listener that does not splice have all options while they are relayed.
    pub(super) fn prepare(&self, service: &Service) {
        let settings = service.settings();
        let target = self.known_target(&settings);
        // The destinations of intercepted connections are not known before.
        let offers_all = settings.listener.splice == SplicePolicy::Never
            || (settings.listener.intercept.is_some() && target.is_none());
        let prepared = match offers_all {
            true => service
                .splicer()
                .prepare_relaying_listener(&self.acceptor, target),
            false => service.splicer().prepare_listener(&self.acceptor, target),
        };
        if let Err(error) = prepared {
            tracing::warn!(
                listener = settings.listener.name, address = %self.address, ?target, %error,
                "the listening socket could not be prepared for splicing"
            );
        }
    }

    /// Prepares the socket again each time that its listener changes, or that targets turn out to agree to other options of
    /// TCP; looks names up before. Never returns.
    pub(super) async fn keep(&self, mut service: watch::Receiver<Arc<Service>>) {
        let mut targets = service.borrow().splicer().watch_targets();
        loop {
            let serving = Arc::clone(&service.borrow_and_update());
            self.look_up(&serving.settings()).await;
            // Hold the borrow meanwhile: a listener that is handed over prepares the socket after this.
            self.prepare(&service.borrow());
            tokio::select! {
                Ok(()) = service.changed() => {}
                Ok(()) = targets.changed() => {}
                else => return std::future::pending().await,
            }
        }
    }

    /// Returns the probable destination of accepted connections, if it needs no look-up now.
    fn known_target(&self, settings: &Settings) -> Option<SocketAddr> {
        let listener = &settings.listener;
        if let Some(first) = listener.to.first() {
            let found = self.found.lock();
            let found = found.as_ref().filter(|(targets, _)| *targets == listener.to);
            return found.map(|(_, address)| *address).or_else(|| first.literal());
        }
        let upstream = settings.upstreams.get(listener.upstream.as_deref()?)?;
        upstream.likely(self.address.is_ipv4())
    }

    /// Looks up the probable destination of accepted connections, if it has a name. Logs a name that cannot be resolved
    /// now; each connection looks it up again.
    async fn look_up(&self, settings: &Settings) {
        let to = &settings.listener.to;
        if to.first().is_none_or(|target| target.literal().is_some()) {
            return;
        }
        let _turn = LOOK_UPS.acquire().await;
        for target in to {
            match target.resolve().await {
                Ok(addresses) => {
                    let first = same_family_first(addresses, self.address.is_ipv4())[0];
                    *self.found.lock() = Some((to.clone(), first));
                    return;
                }
                Err(error) => {
                    tracing::warn!(
                        listener = settings.listener.name, %target, %error,
                        "the target has no address now; each connection will look again"
                    );
                }
            }
        }
    }
}
