//! Runs listening sockets. Each accepts for one listener, and can be handed to another one.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use longsplice_engine::intercept::make_transparent;
use tokio::{sync::watch, task::JoinHandle};

use super::{Listening, Service, accept};

/// A listening socket with a task that accepts.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: Arc<Listening>,
    service: watch::Sender<Arc<Service>>,
    task: JoinHandle<()>,
}

impl Socket {
    /// Prepares the socket, and accepts for this listener from now on, until the socket is handed over or the daemon shuts down.
    pub(crate) fn serve(listening: Listening, service: Arc<Service>) -> Socket {
        listening.prepare(&service);
        let address = listening.address;
        let listener = Arc::new(listening);
        let stopping = service.shared.stopping.clone();
        tracing::info!(listener = service.settings().listener.name, %address, "listening on {address}");
        let (sender, receiver) = watch::channel(service);
        let task = tokio::spawn(accept::accept(Arc::clone(&listener), receiver, stopping));
        Socket {
            listener,
            service: sender,
            task,
        }
    }

    /// Returns the address that the configuration names.
    pub(crate) fn configured(&self) -> SocketAddr {
        self.listener.configured
    }

    /// Returns the address that it is bound to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address
    }

    /// Returns a descriptor of the socket, for another process.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.listener.acceptor.as_fd().try_clone_to_owned()
    }

    /// Makes it accept connections to other addresses, too. Fails without CAP_NET_ADMIN.
    pub(crate) fn intercept(&self) -> io::Result<()> {
        make_transparent(&self.listener.acceptor)
    }

    /// Accepts for this listener from the next connection on, one that waits for room included, and prepares the socket for
    /// it. Call it also when the listener's settings have changed.
    pub(crate) fn hand_to(&self, service: &Arc<Service>) {
        self.service.send_replace(Arc::clone(service));
        self.listener.prepare(service);
    }

    /// Closes the socket after the connections that have arrived by now are served. Returns the task, which ends then.
    pub(crate) fn close(self) -> JoinHandle<()> {
        tracing::info!(
            listener = self.service.borrow().settings().listener.name,
            address = %self.address(),
            "not listening on {} any more", self.address()
        );
        // Drop the sender: that tells the task to end.
        drop(self.service);
        self.task
    }

    /// Returns when it is closed, soon after the daemon begins to shut down.
    pub(crate) async fn closed(self) {
        let Socket { listener, task, .. } = self;
        drop(listener);
        // Ignore an error: a task that panicked has closed it, too.
        let _ = task.await;
    }
}
