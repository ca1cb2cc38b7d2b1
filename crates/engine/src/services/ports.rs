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
use tokio::net::{TcpSocket, TcpStream};

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

    /// Connects from a port that no flow to `target` uses; from the address that routing gives, or from another one. Returns
    /// the request, too, without what needed no saying.
    pub(crate) async fn connect<'a>(
        &self,
        plane: &Arc<Dataplane>,
        routes: &Routes,
        from: Option<IpAddr>,
        target: SocketAddr,
        request: Request<'a>,
        timeout: Duration,
    ) -> io::Result<(TcpStream, Request<'a>)> {
        let in_use = |leg| plane.in_use(leg);
        let look = || ask_neighbours(plane);
        let attempt = self.connect_unless(in_use, look, routes, from, target, request);
        tokio::time::timeout(timeout, attempt).await?
    }

    async fn connect_unless<'a, L: Future<Output = ()>>(
        &self,
        in_use: impl Fn(Leg) -> bool,
        look: impl Fn() -> L,
        routes: &Routes,
        from: Option<IpAddr>,
        target: SocketAddr,
        request: Request<'a>,
    ) -> io::Result<(TcpStream, Request<'a>)> {
        let mut by = Departure::new(routes, from, target)?;
        let mut doubted = 0;
        let mut refusal = None;
        let seed = self.random.hash_one(self.turn.fetch_add(1, Ordering::Relaxed));
        let mut search = self.exhaustion.search();
        for port in Candidates::new(&self.range, seed) {
            if !search.goes_on(by.source, target).await {
                return Err(self.exhausted(target));
            }
            let local = SocketAddr::new(by.source, port);
            let leg = Leg::new(target, local);
            // A socket that connects to its own address is its own peer.
            if local == target || in_use(leg) {
                continue;
            }
            let said = by.say_less(request);
            search.pause();
            let done = connect_from(Origin::new(local, from.is_some()), target, said).await;
            let refused = done.as_ref().is_err_and(is_refused);
            if refused {
                look().await;
            }
            match done {
                // A remembered address may be gone, rather than the port.
                Err(e) if is_taken(&e) => by.look_again(routes, target)?,
                // A flow took that port meanwhile: the refusal is not the target's.
                Err(_) if refused && in_use(leg) => {}
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
        search.found_none(by.source, target);
        Err(self.exhausted(target))
    }

    fn exhausted(&self, target: SocketAddr) -> io::Error {
        io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("all source ports {self} toward {target} are in use: widen source_ports"),
        )
    }
}

/// Asks other instances for the ports of their flows, on a thread that may block.
async fn ask_neighbours(plane: &Arc<Dataplane>) {
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
mod tests {
    use std::{cell::Cell, net::Ipv4Addr};

    use tokio::net::TcpListener;

    use super::*;

    fn ports(range: RangeInclusive<u16>) -> SourcePorts {
        SourcePorts {
            range,
            random: RandomState::new(),
            turn: AtomicU64::new(0),
            exhaustion: Exhaustion::default(),
        }
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn a_remembered_address_that_is_gone_is_asked_for_again() {
        let (_listener, target) = listener().await;
        let routes = Routes::default();
        let gone = IpAddr::from([192, 0, 2, 1]);
        let way = Way {
            source: gone,
            max_segment: None,
        };
        routes.remember(target, way);
        assert_eq!(routes.way(target).unwrap().source, gone, "it is remembered");
        let (connected, _) = ports(20_000..=20_999)
            .connect_unless(|_| false, || async {}, &routes, None, target, Request::default())
            .await
            .unwrap();
        assert_eq!(connected.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
        assert_ne!(routes.way(target).unwrap().source, gone, "and no longer");
    }

    #[tokio::test]
    async fn a_refusal_by_a_flow_is_not_the_targets() {
        let (listener, target) = listener().await;
        drop(listener);
        let (routes, taken, free) = (Routes::default(), ports(22_000..=22_009), ports(22_000..=22_009));
        let (asked, tried) = (Cell::new(0), Cell::new(0));
        // A flow takes each port just as it is tried.
        let in_use = |_| {
            asked.set(asked.get() + 1);
            asked.get() % 2 == 0
        };
        let error = taken
            .connect_unless(in_use, || async {}, &routes, None, target, Request::default())
            .await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
        assert_eq!(asked.get(), 2 * 10, "each port was tried");
        // The target's own refusal is believed after a few attempts.
        let never = |leg: Leg| {
            tried.set(tried.get() | 1 << (leg.local.port() - 22_000));
            false
        };
        let error = free
            .connect_unless(never, || async {}, &routes, None, target, Request::default())
            .await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(u16::count_ones(tried.get()), 1 + DOUBTED);
    }

    #[tokio::test]
    async fn a_port_that_carries_a_flow_is_left_alone() {
        let (_listener, target) = listener().await;
        let (routes, ports) = (Routes::default(), ports(21_000..=21_009));
        let in_use = |leg: Leg| leg.local.port() != 21_007;
        let connect =
            |in_use| ports.connect_unless(in_use, || async {}, &routes, None, target, Request::default());
        let (connected, _) = connect(in_use).await.unwrap();
        assert_eq!(connected.local_addr().unwrap().port(), 21_007);
        // A port of another socket is left alone, too.
        let error = connect(in_use).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(error.to_string().contains("21000-21009"), "{error}");
    }

    /// A listener's port may lie in the range: no connection comes from it meanwhile, and those that do hold no listener up.
    #[tokio::test]
    async fn a_listeners_port_is_passed_over_and_a_source_port_can_be_listened_on() {
        let (_target, target) = listener().await;
        let (other, at) = listener().await;
        let routes = Routes::default();
        let no_flow = |_| false;
        let range = at.port()..=at.port();
        let passing_over = ports(range.clone());
        let error = passing_over
            .connect_unless(no_flow, || async {}, &routes, None, target, Request::default())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("are in use: widen"), "{error}");
        drop(other);
        let (connected, _) = ports(range)
            .connect_unless(no_flow, || async {}, &routes, None, target, Request::default())
            .await
            .unwrap();
        assert_eq!(connected.local_addr().unwrap(), at);
        let again = TcpListener::bind((Ipv4Addr::UNSPECIFIED, at.port()))
            .await
            .unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(at), again.accept());
        client.unwrap();
        accepted.unwrap();
    }

    /// A search for a port leaves other tasks their turns, and one that found none spares the next ones the search.
    #[tokio::test]
    async fn ports_that_are_used_up_hold_nothing_else_up() {
        let (_listener, target) = listener().await;
        let (routes, ports) = (Routes::default(), ports(20_000..=29_999));
        let (asked, turns) = (Cell::new(0), Cell::new(0));
        let in_use = |_| {
            asked.set(asked.get() + 1);
            true
        };
        let connect = || ports.connect_unless(in_use, || async {}, &routes, None, target, Request::default());
        let others = async {
            loop {
                turns.set(turns.get() + 1);
                tokio::task::yield_now().await;
            }
        };
        let both = async {
            let (first, second) = tokio::join!(connect(), connect());
            [first.map(drop), second.map(drop)]
        };
        let ended = tokio::select! {
            ended = both => ended,
            () = others => unreachable!("it has no end"),
        };
        for error in ended.map(Result::unwrap_err) {
            assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        }
        assert!(turns.get() > 100, "{} turns", turns.get());
        // The second one stopped where a search is long.
        assert!((10_000..10_100).contains(&asked.get()), "{} ports", asked.get());
        assert!(connect().await.is_err());
        assert!(asked.get() < 10_100, "no port is tried again");
    }
}
