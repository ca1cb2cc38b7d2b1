//! A place at a server: counted as long as it is held.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::TcpStream;

use super::{lease::Failure, server::Server};

/// One of the connections that a server may have.
#[derive(Debug)]
pub(super) struct Place {
    server: Arc<Server>,
}

impl Place {
    /// At a server that belongs to no upstream.
    pub(super) fn outside(address: SocketAddr) -> Place {
        Place {
            server: Arc::new(Server::new(address.to_string(), address)),
        }
    }

    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(super) fn give_back(self, stream: TcpStream) {
        drop(stream);
    }

    pub(super) fn answered(&self, _status: u16, _after: Duration) {}

    pub(super) fn failed(&self, _how: Failure) {}

    pub(super) fn cookie(&self) -> Option<&str> {
        None
    }
}
