//! Announces windows in the name of a local socket.
//!
//! While windows are coupled, the egress program offers an end less than its socket would. The socket does not know that:
//! it sends nothing when the far end grants more, and in some states it cannot be made to. So the segment is written
//! here, an empty one with the socket's own last acknowledgement, and sent through a raw socket. The egress program puts
//! the right window in.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use longsplice_dataplane::{Leg, LegState};
use socket2::{Domain, Protocol, Socket, Type};

use super::{
    packet::{FLAG_ACK, Segment, window_field},
    socket::mark,
};

/// Leaves the IP header to us, in both families: the kernel sets `IP_HDRINCL` for this protocol (`inet_create`,
/// `inet6_create`).
const IPPROTO_RAW: i32 = 255;

/// Holds raw sockets for announcements, and marked ones for segments in the name of marked sockets.
#[derive(Debug)]
pub(crate) struct Announcer {
    plain: RawSockets,
    marked: RawSockets,
}

/// Holds a raw socket for each family.
#[derive(Debug)]
struct RawSockets {
    v4: Socket,
    /// Absent on a machine without IPv6.
    v6: Option<Socket>,
}

impl Announcer {
    /// Opens the sockets. Needs CAP_NET_RAW.
    pub(crate) fn open() -> io::Result<Announcer> {
        let marked = RawSockets::open()?;
        for socket in [Some(&marked.v4), marked.v6.as_ref()].into_iter().flatten() {
            mark(socket)?;
        }
        Ok(Announcer {
            plain: RawSockets::open()?,
            marked,
        })
    }

    /// Announces the window of a leg. `x` is the leg's state; `timestamps` is true if the connection has them, `is_marked` if its
    /// socket is.
    pub(crate) fn announce(
        &self,
        leg: Leg,
        x: &LegState,
        timestamps: bool,
        is_marked: bool,
    ) -> io::Result<()> {
        self.send_as(is_marked, leg.peer.ip(), &segment(leg, x, timestamps))
    }

    /// Sends a packet in the name of a socket, which may be marked.
    pub(crate) fn send_as(&self, is_marked: bool, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        match is_marked {
            true => self.send_marked(to, packet),
            false => self.send(to, packet),
        }
    }

    /// Sends a packet, from its IP header on, by the route to this address.
    pub(crate) fn send(&self, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        self.plain.send(to, packet)
    }

    /// Sends a packet like [`Announcer::send`], with [`MARK`](super::socket::MARK).
    pub(crate) fn send_marked(&self, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        self.marked.send(to, packet)
    }
}

impl RawSockets {
    fn open() -> io::Result<RawSockets> {
        Ok(RawSockets {
            v4: raw(Domain::IPV4)?,
            v6: raw(Domain::IPV6).ok(),
        })
    }

    fn send(&self, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        let socket = match to {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        // A raw socket takes a port for a protocol: send 0.
        socket.send_to(packet, &SocketAddr::new(to, 0).into()).map(drop)
    }
}

fn raw(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(IPPROTO_RAW)))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Returns the segment in the socket's own numbers: the egress program takes it for the socket's, and translates it.
fn segment(leg: Leg, x: &LegState, timestamps: bool) -> Vec<u8> {
    Segment {
        from: leg.local,
        to: leg.peer,
        seq: x.loc_end + x.mapping.ack,
        ack: x.loc_ack + x.mapping.seq,
        flags: FLAG_ACK,
        window: window_field(x.loc_latest, x.loc_ack, x.scale_out),
        timestamps: timestamps.then_some((x.ts_sent, x.peer_ts)),
        class: 0,
    }
    .bytes()
}

#[cfg(test)]
mod tests {
    use longsplice_core::seq::Seq;

    use super::*;

    #[test]
    fn the_segment_is_what_the_socket_would_say() {
        for (peer, local, ip) in [
            ("198.18.1.1:40000", "198.18.1.2:8080", 20),
            ("[2001:db8::1]:40000", "[2001:db8::2]:8080", 40),
        ] {
            let leg = Leg {
                peer: peer.parse().unwrap(),
                local: local.parse().unwrap(),
            };
            let x = LegState {
                loc_end: Seq::new(0x0102_0304),
                loc_ack: Seq::new(u32::MAX),
                loc_latest: Seq::new(0x1_0000 - 1),
                scale_out: 7,
                ts_sent: 77,
                peer_ts: 88,
                ..LegState::default()
            };
            let p = segment(leg, &x, true);
            assert_eq!(p.len(), ip + 32);
            assert_eq!(
                p[ip..ip + 4],
                [0x1f, 0x90, 0x9c, 0x40],
                "from ours to the peer's port"
            );
            assert_eq!(p[ip + 4..ip + 12], [1, 2, 3, 4, 255, 255, 255, 255]);
            let window = |p: &[u8]| u16::from_be_bytes([p[ip + 14], p[ip + 15]]);
            assert_eq!(window(&p), 512, "across the wrap");
            assert_eq!(segment(leg, &x, false).len(), ip + 20);
            let closed = LegState {
                loc_latest: x.loc_ack - 5,
                ..x
            };
            assert_eq!(window(&segment(leg, &closed, false)), 0);
        }
    }
}
