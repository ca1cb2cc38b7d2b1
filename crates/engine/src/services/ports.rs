//! Allocates leg B's source ports: the kernel forgets a port whose socket was closed in silence.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use longsplice_core::{
    ports::{Candidates, ReservedPorts, default_range},
    seq::Seq,
};
use longsplice_dataplane::{Dataplane, Leg};
use longsplice_repair::{options, set_initial_sequence};
use socket2::SockRef;
use tokio::{
    net::{TcpSocket, TcpStream},
    time::Instant,
};

use crate::services::{
    exhaustion::Exhaustion,
    routes::{Routes, Way},
    targets::Request,
};

/// File for both families, in spite of its name; the next one is, too.
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Number of refusals to doubt. An instance with an inaccessible table (in a BPF file system of its own), or a new flow in
/// a table of another layout, refuses a SYN just as a target does that does not listen.
const DOUBTED: u32 = 2;

/// Number of ports in use after which closed flows are asked for theirs: seven of eight ports are in use then, most likely.
const SCARCE: usize = 32;

/// Distance of the sequence number of a SYN behind the end of the last connection from its port: a target in TIME-WAIT takes
/// it for a new one (RFC 9293 section 3.6.1), and no window of the old one reaches it. (Linux `tcp_twsk_unique` takes it.)
const BEYOND: u32 = 65_535 + 2;

/// Allocates the ports that legs B may use.
#[derive(Debug)]
pub(crate) struct SourcePorts {
    range: RangeInclusive<u16>,
    random: RandomState,
    turn: AtomicU64,
    exhaustion: Exhaustion,
}

impl SourcePorts {
    /// Reserves the configured range, or one that the kernel does not hand out. If it overlaps the kernel's own range,
    /// reserves the ports there; they stay reserved at the end, because spliced flows outlive us.
    pub(crate) fn reserve(wanted: Option<RangeInclusive<u16>>) -> io::Result<SourcePorts> {
        let text = fs::read_to_string(EPHEMERAL)?;
        let mut bounds = text.split_whitespace().filter_map(|n| n.parse::<u16>().ok());
        let (Some(low), Some(high)) = (bounds.next(), bounds.next()) else {
            return Err(io::Error::other(format!("cannot read {EPHEMERAL}: {text:?}")));
        };
        let kernel = low..=high;
        let range = wanted.unwrap_or_else(|| default_range(&kernel).ports);
        if range.start() <= kernel.end() && kernel.start() <= range.end() {
            let mut reserved: ReservedPorts = fs::read_to_string(RESERVED)?
                .trim()
                .parse()
                .map_err(io::Error::other)?;
            if !reserved.contains_all(&range) {
                reserved.insert(range.clone());
                fs::write(RESERVED, reserved.to_string())?;
                tracing::info!(ports = %in_words(&range), "reserved source ports in {RESERVED}");
            }
        }
        Ok(SourcePorts {
            range,
            random: RandomState::new(),
            turn: AtomicU64::new(0),
            exhaustion: Exhaustion::default(),
        })
    }

    /// Connects from a port that no flow to `target` uses; from the address that routing gives, or from another one. Waits
    /// for the port of a flow that was just closed, three quarters of `timeout` at most; the caller bounds the whole. Returns
    /// the request, too, without what needed no saying.
    pub(crate) async fn connect<'a, L: Future<Output = ()>>(
        &self,
        flows: &Occupants<impl Fn(Leg) -> bool, impl Fn(Leg) -> Vacancy, impl Fn() -> L>,
        routes: &Routes,
        from: Option<IpAddr>,
        target: SocketAddr,
        request: Request<'a>,
        timeout: Duration,
    ) -> io::Result<(TcpStream, Request<'a>)> {
        let deadline = Instant::now() + timeout * 3 / 4;
        let mut by = Departure::new(routes, from, target)?;
        let mut doubted = 0;
        let mut refusal = None;
        loop {
            let mut search = self.exhaustion.search(deadline);
            let mut walk = self.walk();
            while let Some(port) = walk.next() {
                if !search.goes_on(by.source, target).await {
                    return Err(self.exhausted(target));
                }
                let local = SocketAddr::new(by.source, port);
                let leg = Leg::new(target, local);
                // A socket that connects to its own address is its own peer.
                if local == target {
                    continue;
                }
                let mut origin = Origin::new(local, from.is_some());
                if (flows.in_use)(leg) {
                    match walk.vacate(port, leg, &flows.vacate) {
                        // A flow of another instance may have it, too.
                        Some(end) if !(flows.in_use)(leg) => {
                            origin.initial_sequence = Some(end + BEYOND);
                        }
                        _ => continue,
                    }
                }
                let said = by.say_less(request);
                search.pause();
                let done = connect_from(origin, target, said).await;
                let refused = done.as_ref().is_err_and(is_refused);
                if refused {
                    (flows.look)().await;
                }
                match done {
                    // A remembered address may be gone, rather than the port.
                    Err(e) if is_taken(&e) => by.look_again(routes, target)?,
                    // A flow took that port meanwhile: the refusal is not the target's.
                    Err(_) if refused && (flows.in_use)(leg) => {}
                    Err(e) if refused && doubted < DOUBTED => {
                        doubted += 1;
                        refusal = Some(e);
                    }
                    result => return Ok((result?, said)),
                }
            }
            // A port that the target refused is not in use.
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            if !search.found_none(by.source, target, walk.free_in) {
                return Err(self.exhausted(target));
            }
        }
    }

    /// Notes that the flow with this leg toward a target is gone: its port is free.
    pub(crate) fn note_free(&self, leg: Leg) {
        self.exhaustion.forget(leg.local.ip(), leg.peer);
    }

    /// Begins a walk over the ports, in an order of its own.
    fn walk(&self) -> Walk {
        let seed = self.random.hash_one(self.turn.fetch_add(1, Ordering::Relaxed));
        Walk {
            untried: Candidates::new(&self.range, seed),
            passed: Vec::new(),
            is_scarce: false,
            free_in: None,
        }
    }

    fn exhausted(&self, target: SocketAddr) -> io::Error {
        io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("all source ports {self} toward {target} are in use: widen source_ports"),
        )
    }
}

/// Walk over the ports of the range.
#[derive(Debug)]
struct Walk {
    untried: Candidates,
    /// Ports in use that were passed over before ports were known to be scarce; they come last.
    passed: Vec<u16>,
    is_scarce: bool,
    /// Shortest time until a closed flow may give its port.
    free_in: Option<Duration>,
}

impl Walk {
    /// Returns the port to try next.
    fn next(&mut self) -> Option<u16> {
        self.untried.next().or_else(|| {
            self.is_scarce = true;
            self.passed.pop()
        })
    }

    /// Has the flow of a port give it, if ports are scarce. Returns the end of its stream in the target's numbers, once its
    /// records are gone.
    fn vacate(&mut self, port: u16, leg: Leg, vacate: impl Fn(Leg) -> Vacancy) -> Option<Seq> {
        if !self.is_scarce {
            self.passed.push(port);
            self.is_scarce = self.passed.len() >= SCARCE;
            return None;
        }
        match vacate(leg) {
            Vacancy::Now(end) => Some(end),
            Vacancy::In(rest) => {
                self.free_in = Some(self.free_in.map_or(rest, |least| least.min(rest)));
                None
            }
            Vacancy::No => None,
        }
    }
}

/// Answers questions about the flows that have ports.
#[derive(Debug)]
pub(crate) struct Occupants<U, V, L> {
    /// Returns true if a flow has the tuple.
    pub(crate) in_use: U,
    /// Removes the records of a closed flow of this instance, if it may be done now.
    pub(crate) vacate: V,
    /// Looks for flows of other instances.
    pub(crate) look: L,
}

/// Answer of a flow that is asked for its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vacancy {
    /// Its records are gone. Its stream toward the target ended at this number, FIN included.
    Now(Seq),
    /// It may give the port after this time.
    In(Duration),
    /// It keeps the port.
    No,
}

/// Asks other instances for the ports of their flows, on a thread that may block.
pub(crate) async fn ask_neighbours(plane: &Arc<Dataplane>) {
    if let Some(rest) = plane.may_ask_neighbours_in() {
        tokio::time::sleep(rest).await;
        let plane = Arc::clone(plane);
        // A failed look only means that the refusal is doubted.
        let _ = tokio::task::spawn_blocking(move || plane.ask_neighbours()).await;
    }
}

/// Source of a connection.
struct Departure {
    source: IpAddr,
    /// Longest segment that the route takes, if that is known.
    way_takes: Option<u32>,
    /// True if the route is a remembered one, which may have changed.
    remembered: bool,
}

impl Departure {
    fn new(routes: &Routes, from: Option<IpAddr>, target: SocketAddr) -> io::Result<Departure> {
        Ok(match from {
            // The route may depend on the source, too, and was not asked for with this one.
            Some(source) => Departure {
                source,
                way_takes: None,
                remembered: false,
            },
            None => Departure {
                remembered: true,
                ..Departure::by(routes.way(target)?)
            },
        })
    }

    fn by(way: Way) -> Departure {
        Departure {
            source: way.source,
            way_takes: way.max_segment,
            remembered: false,
        }
    }

    /// Returns a request without the longest segment, if the kernel offers no more by itself.
    fn say_less<'a>(&self, request: Request<'a>) -> Request<'a> {
        request.with_segment_if(|bytes| self.way_takes.is_none_or(|takes| bytes < takes))
    }

    fn look_again(&mut self, routes: &Routes, target: SocketAddr) -> io::Result<()> {
        if self.remembered {
            *self = Departure::by(routes.ask(target)?);
        }
        Ok(())
    }
}

impl std::fmt::Display for SourcePorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&in_words(&self.range))
    }
}

fn in_words(range: &RangeInclusive<u16>) -> String {
    format!("{}-{}", range.start(), range.end())
}

/// Returns true if another socket has the port, or the tuple (perhaps in TIME-WAIT).
pub(crate) fn is_taken(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    )
}

/// Returns true if the target refused, or a flow of an instance that has the port.
pub(crate) fn is_refused(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::ConnectionRefused
}

/// Source of a connection, as the target sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) local: SocketAddr,
    /// True if the address need not be this host's.
    pub(crate) foreign: bool,
    /// Sequence number of the SYN; `None` lets the kernel choose.
    pub(crate) initial_sequence: Option<Seq>,
    /// Mark of what the socket sends (`SO_MARK`).
    pub(crate) mark: u32,
}

impl Origin {
    /// Returns an origin with a sequence number that the kernel chooses, and no mark.
    pub(crate) fn new(local: SocketAddr, foreign: bool) -> Origin {
        Origin {
            local,
            foreign,
            initial_sequence: None,
            mark: 0,
        }
    }
}

/// Connects from an origin. The socket resets on close.
pub(crate) async fn connect_from(
    origin: Origin,
    target: SocketAddr,
    request: Request<'_>,
) -> io::Result<TcpStream> {
    let socket = socket_toward(origin.local)?;
    // One port serves many targets.
    socket.set_reuseaddr(true)?;
    if origin.foreign {
        options::set_transparent(&socket, true)?;
    }
    socket.bind(origin.local)?;
    if origin.mark != 0 {
        SockRef::from(&socket).set_mark(origin.mark)?;
    }
    if let Some(iss) = origin.initial_sequence {
        set_initial_sequence(&socket, iss)?;
    }
    let congestion_control = request.prepare(&socket)?;
    let stream = socket.connect(target).await?;
    Request::complete(&stream, congestion_control)?;
    Ok(stream)
}

/// Connects from an address and a port that the kernel chooses. The socket resets on close from before its SYN is sent
/// (`SO_LINGER` of 0): if the process is killed, the target sees a reset and never a connection that ended in order. A
/// caller that wants an orderly end sets it ([`longsplice_repair::options::set_reset_on_close`]).
///
/// # Errors
/// Returns those of `connect`; `ConnectionRefused` if the kernel chose the target's own address, where no program listens: the
/// socket would be its own peer (RFC 9293 section 3.5).
pub async fn connect_plainly(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = socket_toward(target)?.connect(target).await?;
    match stream.local_addr()? == target {
        true => Err(rustix::io::Errno::CONNREFUSED.into()),
        false => Ok(stream),
    }
}

/// Makes a socket of the family of an address, which resets on close. Set it before the connection is up: the kernel
/// finishes the handshake alone, and the process may be killed before it learns of that.
fn socket_toward(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    options::set_reset_on_close(&socket, true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
