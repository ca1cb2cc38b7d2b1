//! Runs the side of the process that is replaced.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Duration,
};

use tokio::sync::mpsc;

use super::{Described, Head, SERVES, descriptors};

/// Longest time for the start of a successor: programs are loaded and names are looked up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Longest time for sending the sockets.
const SEND: Duration = Duration::from_secs(5);

/// A successor that waits for the sockets.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) stream: UnixStream,
}

/// Objects that a successor gets.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    sockets: Vec<Described>,
    descriptors: Vec<OwnedFd>,
}

impl Offer {
    /// Adds a listening socket.
    pub(crate) fn add(&mut self, configured: SocketAddr, bound: SocketAddr, socket: OwnedFd) {
        self.sockets.push(Described { configured, bound });
        self.descriptors.push(socket);
    }

    /// Adds the lock of the instance, at last.
    pub(crate) fn add_lock(&mut self, lock: OwnedFd) {
        self.descriptors.push(lock);
    }
}

impl Handover {
    /// Sends the sockets, and then a message to `served` with true if the successor serves.
    pub(crate) fn start(self, offer: Offer, served: mpsc::Sender<bool>) {
        tokio::task::spawn_blocking(move || {
            let done = self.run(&offer);
            if let Err(error) = &done {
                tracing::warn!(%error, "the successor did not come to serve: this process goes on");
            }
            // The daemon may be shutting down.
            let _ = served.blocking_send(done.is_ok());
        });
    }

    fn run(mut self, offer: &Offer) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_write_timeout(Some(SEND))?;
        self.stream.set_read_timeout(Some(PATIENCE))?;
        let head = Head {
            pid: std::process::id(),
            sockets: offer.sockets.clone(),
        };
        let mut line = serde_json::to_string(&head)?;
        line.push('\n');
        self.stream.write_all(line.as_bytes())?;
        descriptors::send(&self.stream, &offer.descriptors)?;
        let mut word = [0];
        self.stream.read_exact(&mut word)?;
        match word[0] {
            SERVES => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
