//! Leg B's source ports: an own allocator, because the kernel forgets a port whose socket was closed in silence.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use longsplice_core::ports::{Candidates, ReservedPorts, default_range};
use longsplice_dataplane::{Dataplane, Leg};
use longsplice_repair::{options, set_initial_sequence};
use tokio::net::{TcpSocket, TcpStream};

use crate::routes::{Routes, Way};

/// Of both families, in spite of its name; so is the next one.
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// The ports that legs B may use.
#[derive(Debug)]
pub(crate) struct SourcePorts {
    range: RangeInclusive<u16>,
    random: RandomState,
    turn: AtomicU64,
}

impl SourcePorts {
    /// The range that was asked for, or one that the kernel does not hand out. Where the two overlap, the kernel is told
    /// to keep off; it is not told otherwise at the end, because spliced flows outlive us.
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
        })
    }

    /// Connects from a port on which no flow to `target` lives; from the address that routing gives, or from another one.
    pub(crate) async fn connect(
        &self,
        plane: &Dataplane,
        routes: &Routes,
        from: Option<IpAddr>,
        target: SocketAddr,
        max_segment: Option<u32>,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let attempt = self.connect_unless(|leg| plane.in_use(leg), routes, from, target, max_segment);
        tokio::time::timeout(timeout, attempt).await?
    }

    async fn connect_unless(
        &self,
        in_use: impl Fn(Leg) -> bool,
        routes: &Routes,
        from: Option<IpAddr>,
        target: SocketAddr,
        max_segment: Option<u32>,
    ) -> io::Result<TcpStream> {
        let mut by = Departure::new(routes, from, target)?;
        let seed = self.random.hash_one(self.turn.fetch_add(1, Ordering::Relaxed));
        for port in Candidates::new(&self.range, seed) {
            let local = SocketAddr::new(by.source, port);
            if in_use(Leg::new(target, local)) {
                continue;
            }
            let origin = Origin {
                local,
                foreign: from.is_some(),
                initial_sequence: None,
            };
            let max_segment = max_segment.filter(|&bytes| by.needs_saying(bytes));
            match connect_from(origin, target, max_segment).await {
                // It may be the address that is gone, if we only remember it.
                Err(e) if is_taken(&e) => by.look_again(routes, target)?,
                result => return result,
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!(
                "all source ports {} toward {target} are in use: widen source_ports",
                in_words(&self.range)
            ),
        ))
    }
}

/// From where a connection starts.
struct Departure {
    source: IpAddr,
    /// The longest segment that the way takes, if that is known.
    way_takes: Option<u32>,
    /// The way is a remembered one, which may have changed.
    remembered: bool,
}

impl Departure {
    fn new(routes: &Routes, from: Option<IpAddr>, target: SocketAddr) -> io::Result<Departure> {
        Ok(match from {
            // Routing may go by the source, too, and that one was not asked about.
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

    /// Whether the kernel would not offer less by itself.
    fn needs_saying(&self, max_segment: u32) -> bool {
        self.way_takes.is_none_or(|takes| max_segment < takes)
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

/// Another socket has the port, or the tuple (perhaps in TIME-WAIT).
pub(crate) fn is_taken(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    )
}

/// As whom to connect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) local: SocketAddr,
    /// The address need not be this host's.
    pub(crate) foreign: bool,
    /// The sequence number of the SYN; `None`: as the kernel likes.
    pub(crate) initial_sequence: Option<u32>,
}

/// Connects as somebody.
pub(crate) async fn connect_from(
    origin: Origin,
    target: SocketAddr,
    max_segment: Option<u32>,
) -> io::Result<TcpStream> {
    let socket = match origin.local {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // One port serves many targets.
    socket.set_reuseaddr(true)?;
    if origin.foreign {
        options::set_transparent(&socket, true)?;
    }
    socket.bind(origin.local)?;
    if let Some(iss) = origin.initial_sequence {
        set_initial_sequence(&socket, iss)?;
    }
    if let Some(bytes) = max_segment {
        options::set_max_segment(&socket, bytes)?;
    }
    socket.connect(target).await
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;

    use super::*;

    fn ports(range: RangeInclusive<u16>) -> SourcePorts {
        SourcePorts {
            range,
            random: RandomState::new(),
            turn: AtomicU64::new(0),
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
        let connected = ports(20_000..=20_999)
            .connect_unless(|_| false, &routes, None, target, None)
            .await
            .unwrap();
        assert_eq!(connected.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
        assert_ne!(routes.way(target).unwrap().source, gone, "and no longer");
    }

    #[tokio::test]
    async fn a_port_that_carries_a_flow_is_left_alone() {
        let (_listener, target) = listener().await;
        let (routes, ports) = (Routes::default(), ports(21_000..=21_009));
        let in_use = |leg: Leg| leg.local.port() != 21_007;
        let connect = |in_use| ports.connect_unless(in_use, &routes, None, target, None);
        let connected = connect(in_use).await.unwrap();
        assert_eq!(connected.local_addr().unwrap().port(), 21_007);
        // Nor is one that a socket has.
        let error = connect(in_use).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(error.to_string().contains("21000-21009"), "{error}");
    }
}
