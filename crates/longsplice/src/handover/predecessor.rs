//! Runs the side of the process that is replaced.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
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

/// Decides once how this process ends: by itself, or because a successor was told that it does.
#[derive(Debug, Clone)]
pub(crate) struct Departure {
    stopping: CancellationToken,
    /// True once a successor was told; locked while it is told.
    told: Arc<Mutex<bool>>,
}

/// Objects that a successor gets.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    sockets: Vec<Described>,
    descriptors: Vec<OwnedFd>,
    /// True if this process cannot splice.
    relays: bool,
}

impl Offer {
    /// Returns an offer without sockets; `relays`: this process cannot splice.
    pub(crate) fn new(relays: bool) -> Offer {
        Offer {
            relays,
            ..Offer::default()
        }
    }

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

impl Departure {
    /// Returns an open decision of a process that ends by itself once `stopping` is cancelled.
    pub(crate) fn new(stopping: CancellationToken) -> Departure {
        Departure {
            stopping,
            told: Arc::default(),
        }
    }

    /// Begins the end of this process. Returns true if a successor was told; from now on none will be.
    pub(crate) fn begin(&self) -> bool {
        let told = self.told.lock();
        self.stopping.cancel();
        *told
    }

    /// Tells a successor that this process stops, unless that ends by itself.
    fn tell(&self, stream: &mut UnixStream) -> io::Result<()> {
        let mut told = self.told.lock();
        if self.stopping.is_cancelled() {
            return Err(io::Error::other("this process is shutting down"));
        }
        stream.write_all(&[STOPS])?;
        *told = true;
        Ok(())
    }
}

impl Handover {
    /// Sends the sockets, and then a message to `served` with true if the successor serves. Once this process ends by
    /// itself, with all that it has set up, no successor takes its place.
    pub(crate) fn start(self, offer: Offer, served: mpsc::Sender<bool>, departure: Departure) {
        let Handover { stream, place } = self;
        tokio::task::spawn_blocking(move || {
            let done = hand_over(stream, &offer, &departure);
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
fn hand_over(mut stream: UnixStream, offer: &Offer, departure: &Departure) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(SEND))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = Head {
        pid: std::process::id(),
        sockets: offer.sockets.clone(),
        relays: offer.relays,
    };
    let mut line = serde_json::to_string(&head)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    descriptors::send(&stream, &offer.descriptors)?;
    let mut word = [0];
    stream.read_exact(&mut word)?;
    match word[0] {
        SERVES => departure.tell(&mut stream),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Hands nothing over to a successor that serves at once, in a thread. Returns the successor's end, and the outcome.
    fn begin(departure: &Departure) -> (UnixStream, thread::JoinHandle<io::Result<()>>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[SERVES]).unwrap();
        let (_, lock) = UnixStream::pair().unwrap();
        let mut offer = Offer::default();
        offer.add_lock(lock.into());
        let departure = departure.clone();
        (theirs, thread::spawn(move || hand_over(ours, &offer, &departure)))
    }

    /// The daemon may receive SIGTERM when the word is out and it has not noticed yet: what it would remove then is the
    /// successor's.
    #[test]
    fn a_process_that_stops_behind_its_word_is_replaced() {
        let departure = Departure::new(CancellationToken::new());
        let (_theirs, done) = begin(&departure);
        done.join().unwrap().unwrap();
        assert!(departure.begin());
        assert!(departure.stopping.is_cancelled());
    }

    #[test]
    fn a_process_that_stops_by_itself_tells_no_successor() {
        let departure = Departure::new(CancellationToken::new());
        assert!(!departure.begin());
        let (mut theirs, done) = begin(&departure);
        assert!(done.join().unwrap().is_err());
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).unwrap();
        let list_ends = all.iter().position(|byte| *byte == b'\n').unwrap();
        assert!(!all[list_ends..].contains(&STOPS), "{all:?}");
        assert!(!departure.begin());
    }
}
