//! Window announcements in the name of a local socket.
//!
//! While windows are coupled, egress offers an end less than its socket would, and the socket does not know: it says
//! nothing when the far end grants more, and in some states it cannot be made to. So the segment is written here, an empty
//! one with what the socket itself acknowledged last, through a raw socket. The egress program puts the right window in.

use std::{io, net::SocketAddrV4};

use longsplice_dataplane::{Leg, LegState};
use socket2::{Domain, Protocol, Socket, Type};

use crate::packet::{FLAG_ACK, Segment, window_field};

/// The IP header is ours.
const IPPROTO_RAW: i32 = 255;

/// A raw socket.
#[derive(Debug)]
pub(crate) struct Announcer {
    socket: Socket,
}

impl Announcer {
    /// Needs CAP_NET_RAW.
    pub(crate) fn open() -> io::Result<Announcer> {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(IPPROTO_RAW)))?;
        socket.set_nonblocking(true)?;
        Ok(Announcer { socket })
    }

    /// Announces the window of a leg. `x` is the leg, `timestamps` whether it has them.
    pub(crate) fn announce(&self, leg: Leg, x: &LegState, timestamps: bool) -> io::Result<()> {
        let packet = segment(leg, x, timestamps);
        self.socket
            .send_to(&packet, &SocketAddrV4::new(*leg.peer.ip(), 0).into())
            .map(drop)
    }
}

/// In the numbers of the socket: egress takes it for the socket's, and maps it.
fn segment(leg: Leg, x: &LegState, timestamps: bool) -> Vec<u8> {
    Segment {
        from: leg.local,
        to: leg.peer,
        seq: x.loc_end.wrapping_add(x.mapping.ack),
        ack: x.loc_ack.wrapping_add(x.mapping.seq),
        flags: FLAG_ACK,
        window: window_field(x.loc_edge, x.loc_ack, x.scale_out),
        timestamps: timestamps.then_some((x.ts_sent, x.peer_ts)),
    }
    .bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_segment_is_what_the_socket_would_say() {
        let leg = Leg {
            peer: "198.18.1.1:40000".parse().unwrap(),
            local: "198.18.1.2:8080".parse().unwrap(),
        };
        let x = LegState {
            loc_end: 0x0102_0304,
            loc_ack: u32::MAX,
            loc_edge: 0x1_0000 - 1,
            scale_out: 7,
            ts_sent: 77,
            peer_ts: 88,
            ..LegState::default()
        };
        let p = segment(leg, &x, true);
        assert_eq!(p.len(), 52);
        assert_eq!(p[24..32], [1, 2, 3, 4, 255, 255, 255, 255]);
        assert_eq!(u16::from_be_bytes([p[34], p[35]]), 512, "across the wrap");
        assert_eq!(segment(leg, &x, false).len(), 40);
        let closed = LegState {
            loc_edge: x.loc_ack.wrapping_sub(5),
            ..x
        };
        assert_eq!(segment(leg, &closed, false)[34..36], [0, 0]);
    }
}
