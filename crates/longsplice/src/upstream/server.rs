//! One server: an address, and what is known of it.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
};

/// Tells servers of this process apart, those that are gone included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(u64);

/// One address of an upstream.
#[derive(Debug)]
pub struct Server {
    id: ServerId,
    name: String,
    address: SocketAddr,
}

impl Server {
    pub(super) fn new(name: String, address: SocketAddr) -> Server {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Server {
            id: ServerId(NEXT.fetch_add(1, Ordering::Relaxed)),
            name,
            address,
        }
    }

    /// Its identity.
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// Its name: as configured, else its address; with its address where several have one name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is connected to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
