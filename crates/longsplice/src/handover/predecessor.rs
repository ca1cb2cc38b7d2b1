//! Runs the side of the process that is replaced.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;

use super::{Described, Head, SERVES, STOPS, descriptors};

/// Longest time for the start of a successor: programs are loaded, and the names of all listeners' targets are looked up.
/// One that has ended is noticed at once.
const PATIENCE: Duration = Duration::from_secs(600);

/// Longest time for sending the sockets.
const SEND: Duration = Duration::from_secs(5);

/// A successor that waits for the sockets.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) stream: UnixStream,
    /// Place of the one successor that may be starting.
    pub(crate) place: OwnedSemaphorePermit,
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
    /// Sends the sockets, and then a message to `served` with true if the successor serves. Once `stopping` is cancelled,
    /// this process ends by itself, with all that it has set up: no successor takes its place.
    pub(crate) fn start(self, offer: Offer, served: mpsc::Sender<bool>, stopping: CancellationToken) {
        let Handover { stream, place } = self;
        tokio::task::spawn_blocking(move || {
            let done = hand_over(stream, &offer, &stopping);
            match &done {
                // No further successor comes after this one.
                Ok(()) => place.forget(),
                Err(error) => {
                    tracing::warn!(%error, "the successor did not come to serve: this process goes on");
                }
            }
            // The daemon may be shutting down.
            let _ = served.blocking_send(done.is_ok());
        });
    }
}

/// Sends the sockets, waits until the successor serves, and tells it that this process stops.
fn hand_over(mut stream: UnixStream, offer: &Offer, stopping: &CancellationToken) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(SEND))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = Head {
        pid: std::process::id(),
        sockets: offer.sockets.clone(),
    };
    let mut line = serde_json::to_string(&head)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    descriptors::send(&stream, &offer.descriptors)?;
    let mut word = [0];
    stream.read_exact(&mut word)?;
    match word[0] {
        SERVES if stopping.is_cancelled() => Err(io::Error::other("this process is shutting down")),
        SERVES => stream.write_all(&[STOPS]),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
