//! Prepares listening sockets, so that the connections that they accept can be spliced: for an address at once, for a name
//! once its upstream has looked it up. Nothing waits for that but a task of the socket.

use std::{future::pending, net::SocketAddr, sync::Arc};

use longsplice_engine::policy::SplicePolicy;
use tokio::sync::watch;

use super::{Service, acceptor::Acceptor};

/// A listening socket, with or without a task that accepts.
#[derive(Debug)]
pub(crate) struct Listening {
    /// Address that the configuration names.
    pub(crate) configured: SocketAddr,
    /// Address that it is bound to.
    pub(super) address: SocketAddr,
    pub(super) acceptor: Acceptor,
}

impl Listening {
    /// Prepares the socket by what is known now. Without this its connections are still served, but may not be spliceable.
    /// The clients of a listener that does not splice have all options while they are relayed.
    pub(super) fn prepare(&self, service: &Service) {
        let settings = service.settings();
        let upstream = settings.upstreams.of_listener(&settings.listener);
        let target = upstream.and_then(|upstream| upstream.likely(self.address.is_ipv4()));
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

    /// Prepares the socket again each time that its listener changes, that a name has other addresses, or that targets turn
    /// out to agree to other options of TCP. Never returns.
    pub(super) async fn keep(&self, mut service: watch::Receiver<Arc<Service>>) {
        let mut targets = service.borrow().splicer().watch_targets();
        loop {
            let mut addresses = {
                // Hold the borrow meanwhile: a listener that is handed over prepares the socket after this.
                let service = service.borrow_and_update();
                let settings = service.settings();
                let upstream = settings.upstreams.of_listener(&settings.listener);
                let addresses = upstream.map(|upstream| upstream.watch_addresses());
                self.prepare(&service);
                addresses
            };
            let located = async {
                match &mut addresses {
                    Some(addresses) => addresses.changed().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                Ok(()) = service.changed() => {}
                Ok(()) = targets.changed() => {}
                Ok(()) = located => {}
                else => return pending().await,
            }
        }
    }
}
