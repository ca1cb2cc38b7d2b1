//! Makes both legs of a pair alike: what leg B's SYN asks for, and what a listener's clients are not offered.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use longsplice_core::terms::{Agreement, Lacks, Shortfalls, Terms};
use longsplice_dataplane::{Dataplane, EcnAsker, Withheld};
use longsplice_repair::{TcpInfo, options};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};

/// File for both families, in spite of its name.
const TCP_ECN: &str = "/proc/sys/net/ipv4/tcp_ecn";

/// Time for which a read of [`TCP_ECN`] is valid.
const READ_VALID: Duration = Duration::from_secs(1);

/// Remembers what targets lack, and knows how this host asks for ECN.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    shortfalls: Mutex<Shortfalls>,
    changes: watch::Sender<()>,
    asks_by_itself: Mutex<Option<(Instant, bool)>>,
    asker: OnceCell<Option<EcnAsker>>,
}

impl Targets {
    /// Notes a handshake with `target` for a client of `listener`. An intercepted connection has the target's own address:
    /// no listener of ours is there.
    pub(crate) fn note(&self, listener: SocketAddr, target: SocketAddr, agreement: &Agreement) {
        if listener == target {
            return;
        }
        let mut shortfalls = self.shortfalls.lock();
        if shortfalls.note(listener, target, agreement, Instant::now()) {
            tracing::debug!(%listener, %target, ?agreement, "what the target agrees to has changed");
            self.changes.send_replace(());
        }
    }

    /// Returns true if any target is known to lack something.
    pub(crate) fn lack_anything(&self) -> bool {
        !self.shortfalls.lock().is_empty()
    }

    /// Forgets what is old.
    pub(crate) fn expire(&self) {
        if self.shortfalls.lock().expire(Instant::now()) {
            self.changes.send_replace(());
        }
    }

    /// Returns what the clients of a listener at this address must not be offered.
    pub(crate) fn lacks(&self, listener: SocketAddr) -> Lacks {
        self.shortfalls.lock().of(listener)
    }

    /// Returns a receiver that sees each change of [`Targets::lacks`].
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns a request for what a client's leg has. The first one for ECN registers what asks for it.
    pub(crate) async fn request<'a>(
        &'a self,
        plane: &'a Dataplane,
        client: &TcpInfo,
        max_segment: Option<u32>,
    ) -> Request<'a> {
        let wanted = terms(client);
        let asker = match wanted.ecn {
            true => self.asker().await,
            false => None,
        };
        let mut lacking = Terms::ALL.without(wanted);
        // The bits of ECN are not in a SYN unless something puts them there.
        lacking.ecn &= self.asks_by_itself();
        Request {
            plane: Some(plane),
            max_segment,
            withheld: Withheld {
                terms: lacking,
                accurate_ecn: wanted.ecn,
                ect: asker.is_some(),
            },
            asker,
        }
    }

    async fn asker(&self) -> Option<&EcnAsker> {
        let register = || async {
            let number = RandomState::new().hash_one(0) as u32;
            // Loading takes milliseconds.
            let registered = tokio::task::spawn_blocking(move || EcnAsker::register(number)).await;
            match registered.map_err(io::Error::other) {
                Ok(Ok(asker)) => Some(asker),
                Ok(Err(error)) => {
                    tracing::info!(%error, "servers are not asked for ECN: their clients are not offered it");
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, "servers are not asked for ECN");
                    None
                }
            }
        };
        self.asker.get_or_init(register).await.as_ref()
    }

    /// Returns true if this host's sockets ask for ECN unasked.
    fn asks_by_itself(&self) -> bool {
        let mut known = self.asks_by_itself.lock();
        if let Some((read, asks)) = *known
            && read.elapsed() < READ_VALID
        {
            return asks;
        }
        let text = fs::read_to_string(TCP_ECN).unwrap_or_default();
        // 0: never; 2, 5: only if asked.
        let asks = !matches!(text.trim(), "0" | "2" | "5");
        *known = Some((Instant::now(), asks));
        asks
    }
}

/// Returns the options that a socket's connection has.
pub(crate) fn terms(info: &TcpInfo) -> Terms {
    Terms {
        timestamps: info.timestamps(),
        sack: info.sack(),
        window_scaling: info.window_scaling(),
        ecn: info.ecn(),
    }
}

/// Request of a leg B for what the client's leg has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Request<'a> {
    /// `None`: nothing is withheld.
    plane: Option<&'a Dataplane>,
    /// Longest segment that may be sent to us, in terms of an MSS option; `None`: no limit.
    max_segment: Option<u32>,
    withheld: Withheld,
    asker: Option<&'a EcnAsker>,
}

impl<'a> Request<'a> {
    /// Returns the request with its longest segment only if that needs to be said.
    pub(crate) fn with_segment_if(self, needs_saying: impl FnOnce(u32) -> bool) -> Request<'a> {
        Request {
            max_segment: self.max_segment.filter(|&bytes| needs_saying(bytes)),
            ..self
        }
    }

    /// Returns true if it limits what the target may send: the socket then knows less of what the target takes.
    pub(crate) fn is_limited(&self) -> bool {
        self.max_segment.is_some()
    }

    /// Prepares a socket that is about to connect. Goes on where the system refuses: the pair may be relayed then. Returns
    /// what [`Request::complete`] puts back.
    pub(crate) fn prepare(&self, socket: impl AsFd) -> io::Result<Option<String>> {
        let socket = socket.as_fd();
        if let Some(bytes) = self.max_segment {
            options::set_max_segment(socket, bytes)?;
        }
        if let Some(plane) = self.plane
            && (self.withheld != Withheld::default() || self.max_segment.is_some())
            && let Err(error) = plane.withhold(socket, self.withheld)
        {
            tracing::debug!(%error, "the server is asked for more than its client has");
        }
        Ok(self.asker.and_then(|asker| ask_ecn(socket, asker)))
    }

    /// Puts back the congestion control of a connected socket.
    pub(crate) fn complete(socket: impl AsFd, congestion_control: Option<String>) -> io::Result<()> {
        match congestion_control {
            Some(name) => Ok(options::set_congestion_control(socket, &name)?),
            None => Ok(()),
        }
    }
}

/// Makes a socket ask for ECN. Returns the name of its congestion control until now; `None`: it does not ask.
fn ask_ecn(socket: BorrowedFd<'_>, asker: &EcnAsker) -> Option<String> {
    let before = options::congestion_control(socket).ok()?;
    match options::set_congestion_control(socket, asker.name()) {
        Ok(()) => Some(before),
        Err(error) => {
            tracing::debug!(%error, "the server is not asked for ECN");
            None
        }
    }
}
