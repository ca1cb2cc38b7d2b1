//! Listening sockets at work: each accepts for one listener, which another one may succeed.

use std::{io, net::SocketAddr, sync::Arc};

use longsplice_engine::intercept::make_transparent;
use tokio::{sync::watch, task::JoinHandle};

use super::{Listening, Service, accept, acceptor::Acceptor};

/// A socket that accepts.
#[derive(Debug)]
pub struct Socket {
    configured: SocketAddr,
    address: SocketAddr,
    listener: Arc<Acceptor>,
    service: watch::Sender<Arc<Service>>,
    task: JoinHandle<()>,
}

impl Socket {
    /// Accepts for this listener from now on, until it is told otherwise or the daemon shuts down.
    pub fn serve(listening: Listening, service: Arc<Service>) -> Socket {
        let Listening {
            configured,
            address,
            listener,
        } = listening;
        let listener = Arc::new(listener);
        let stopping = service.shared.stopping.clone();
        tracing::info!(listener = service.settings().listener.name, %address, "listening on {address}");
        let (sender, receiver) = watch::channel(service);
        let task = tokio::spawn(accept::accept(Arc::clone(&listener), receiver, stopping));
        Socket {
            configured,
            address,
            listener,
            service: sender,
            task,
        }
    }

    /// The address that the configuration names.
    pub fn configured(&self) -> SocketAddr {
        self.configured
    }

    /// The address it has.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets it accept connections to other addresses, too.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN.
    pub fn intercept(&self) -> io::Result<()> {
        make_transparent(&*self.listener)
    }

    /// Accepts for this listener from the next connection on.
    pub fn hand_to(&self, service: &Arc<Service>) {
        self.service.send_if_modified(|now| {
            let other = !Arc::ptr_eq(now, service);
            if other {
                *now = Arc::clone(service);
            }
            other
        });
    }

    /// Has the connections that it will accept fit for splicing.
    pub async fn prepare(&self) {
        let service = Arc::clone(&self.service.borrow());
        super::bind::prepare(&self.listener, self.address, &service).await;
    }

    /// Serves those that have come by now, then closes it: the task that ends with it.
    pub fn close(self) -> JoinHandle<()> {
        tracing::info!(
            listener = self.service.borrow().settings().listener.name,
            address = %self.address,
            "not listening on {} any more", self.address
        );
        // What tells the task is that nobody can hand the socket over any more.
        drop(self.service);
        self.task
    }

    /// Returns when it is closed, which it is soon after the daemon begins to shut down.
    pub async fn closed(self) {
        let Socket { listener, task, .. } = self;
        drop(listener);
        // A task that panicked has closed it, too.
        let _ = task.await;
    }
}
