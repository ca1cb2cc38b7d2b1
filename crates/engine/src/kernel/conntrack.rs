//! Tells the host's connection tracking (nf_conntrack) of a return. It saw a leg's handshake, and none of the segments
//! that bypassed the sockets. Segments after a return lie beyond the window that it knows, so it calls them invalid, and
//! rules that drop invalid segments would stall the connection for ever. So, just before the return, ctnetlink sets a
//! flag in each leg's entry not to judge by windows (`IP_CT_TCP_FLAG_BE_LIBERAL`). An entry that has expired meanwhile is
//! made anew ([0023](../../../docs/decisions/0023-conntrack-is-told-of-a-return.md)).
//!
//! Asks it, too, whether the addresses of a leg are translated (NAT): segments that bypass it would go on untranslated.

use std::{
    fs::File,
    io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering},
};

use longsplice_dataplane::{Leg, PerSide, Side};
use nix::libc::ENOENT;
use parking_lot::Mutex;

use super::netfilter::{Message, NLM_F_ACK, NLM_F_CREATE, Netfilter, attribute, nested};

/// Number of connections that are tracked in this namespace; without the file, there is no tracking.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// Lifetime of an entry that is made here, in seconds. Its first packet replaces it by the lifetime of its state.
const TIMEOUT: u32 = 300;

/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_GET` (linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h).
const NEW_CONNECTION: (u8, u8) = (1, 0);
const GET_CONNECTION: (u8, u8) = (1, 1);
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTOINFO_TCP: u16 = 1;

/// Confirmed, has seen a reply, assured (linux/netfilter/nf_conntrack_common.h): without them the entry is of a new
/// connection.
const STATUS: u32 = 14;
const TCP_CONNTRACK_ESTABLISHED: u8 = 3;
const FLAG_WINDOW_SCALE: u8 = 1;
const FLAG_BE_LIBERAL: u8 = 8;
const LARGEST_SCALE: u8 = 14;

/// Socket to the kernel's table of tracked connections.
#[derive(Debug, Default)]
pub(crate) struct Conntrack {
    socket: Mutex<Option<Netfilter>>,
    /// [`COUNT`], once it was there: it is read for each connection that is taken over.
    count: Mutex<Option<File>>,
    /// True if a connection was tracked at some time: rules may still depend on entries that have expired.
    tracks: AtomicBool,
    /// True if the kernel refuses such messages from us.
    refuses: AtomicBool,
}

impl Conntrack {
    /// Makes the entries of both legs accept any numbers that their sockets go on with. Returns at once if nothing is
    /// tracked. Fails if the kernel has connection tracking and refuses the message: a socket may be cut off from its
    /// peer.
    pub(crate) fn expect_return(&self, legs: PerSide<Leg>) -> io::Result<()> {
        if !self.look() {
            return Ok(());
        }
        let told = Side::BOTH
            .into_iter()
            .try_for_each(|side| self.tell(initiator_first(side, legs[side])));
        self.note(told.as_ref().err());
        told.map_err(|e| {
            let text =
                format!("conntrack would take its segments for invalid, and cannot be told otherwise: {e}");
            io::Error::new(e.kind(), text)
        })
    }

    /// Returns true if the addresses of a leg are translated: an entry has what its socket sends, and none has what the socket
    /// receives. For most connections one question is enough. Returns false if the connection is not tracked, or the kernel does not tell.
    pub(crate) fn is_translated(&self, leg: Leg) -> bool {
        let has = |ends| match self.ask(&query(ends)) {
            Ok(()) => Some(true),
            Err(error) => (error.raw_os_error() == Some(ENOENT)).then_some(false),
        };
        self.look() && has([leg.peer, leg.local]) == Some(false) && has([leg.local, leg.peer]) == Some(true)
    }

    /// Returns true if connections are tracked in this namespace. Call it from time to time, too: entries expire.
    pub(crate) fn look(&self) -> bool {
        if self.tracks.load(Ordering::Relaxed) {
            return true;
        }
        let tracks = self.has_entries();
        if tracks {
            // Ask for a connection that cannot exist (RFC 5737): ENOENT shows that the kernel has looked for it.
            let nowhere = [1, 2].map(|host| SocketAddr::from(([192, 0, 2, host], 1)));
            let answer = self.ask(&message(nowhere, false));
            self.note(answer.err().filter(|e| e.raw_os_error() != Some(ENOENT)).as_ref());
            self.tracks.store(true, Ordering::Relaxed);
        }
        tracks
    }

    /// Returns true if the table holds entries.
    fn has_entries(&self) -> bool {
        let mut file = self.count.lock();
        if file.is_none() {
            *file = File::open(COUNT).ok();
        }
        let mut text = [0; 16];
        match file.as_ref().map(|open| open.read_at(&mut text, 0)) {
            Some(Ok(length)) => text.get(..length).is_some_and(|count| count.trim_ascii() != b"0"),
            // Open it anew the next time: the module was unloaded.
            Some(Err(_)) => {
                *file = None;
                false
            }
            None => false,
        }
    }

    /// Returns true if the kernel refuses our messages: a flow that is to come back then must keep its sockets, since
    /// segments of rebuilt ones would be dropped.
    pub(crate) fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    fn note(&self, refusal: Option<&io::Error>) {
        let known = self.refuses.swap(refusal.is_some(), Ordering::Relaxed);
        if let Some(error) = refusal.filter(|_| !known) {
            tracing::warn!(%error, "conntrack takes no message of us: flows that are to come back keep their sockets");
        }
    }

    fn tell(&self, ends: [SocketAddr; 2]) -> io::Result<()> {
        match self.ask(&message(ends, false)) {
            // The entry has expired, or the operator's rules do not track it; in the latter case a new entry does no
            // harm.
            Err(e) if e.raw_os_error() == Some(ENOENT) => match self.ask(&message(ends, true)) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            },
            told => told,
        }
    }

    fn ask(&self, message: &[u8]) -> io::Result<()> {
        let mut socket = self.socket.lock();
        let open = match &mut *socket {
            Some(open) => open,
            none => none.insert(Netfilter::open()?),
        };
        open.ask(message)
    }
}

/// Returns the ends of a leg, the one that has connected first.
fn initiator_first(side: Side, leg: Leg) -> [SocketAddr; 2] {
    match side {
        Side::Client => [leg.peer, leg.local],
        Side::Server => [leg.local, leg.peer],
    }
}

/// Returns the family of addresses of a connection.
fn family([end, _]: [SocketAddr; 2]) -> u8 {
    match end.ip().to_canonical() {
        IpAddr::V4(_) => nix::libc::AF_INET as u8,
        IpAddr::V6(_) => nix::libc::AF_INET6 as u8,
    }
}

/// Encodes the question for an entry one of whose directions has these ends.
fn query(ends: [SocketAddr; 2]) -> Vec<u8> {
    let message = Message {
        kind: GET_CONNECTION,
        flags: NLM_F_ACK,
        family: family(ends),
        resource: 0,
        attributes: &tuple(CTA_TUPLE_ORIG, ends),
    };
    message.bytes()
}

/// Encodes the message for a connection: ignore windows; with `anew`, all that a new entry needs as well.
fn message(ends: [SocketAddr; 2], anew: bool) -> Vec<u8> {
    let mut body = tuple(CTA_TUPLE_ORIG, ends);
    let mask = if anew {
        FLAG_BE_LIBERAL | FLAG_WINDOW_SCALE
    } else {
        FLAG_BE_LIBERAL
    };
    let mut tcp = Vec::new();
    if anew {
        tcp.extend(attribute(1, &[TCP_CONNTRACK_ESTABLISHED]));
        tcp.extend(attribute(2, &[LARGEST_SCALE]));
        tcp.extend(attribute(3, &[LARGEST_SCALE]));
    }
    // CTA_PROTOINFO_TCP_FLAGS_ORIGINAL and _REPLY.
    tcp.extend(attribute(4, &[mask, mask]));
    tcp.extend(attribute(5, &[mask, mask]));
    body.extend(nested(CTA_PROTOINFO, &nested(CTA_PROTOINFO_TCP, &tcp)));
    if anew {
        body.extend(tuple(CTA_TUPLE_REPLY, [ends[1], ends[0]]));
        body.extend(attribute(CTA_STATUS, &STATUS.to_be_bytes()));
        body.extend(attribute(CTA_TIMEOUT, &TIMEOUT.to_be_bytes()));
    }
    let message = Message {
        kind: NEW_CONNECTION,
        flags: if anew { NLM_F_ACK | NLM_F_CREATE } else { NLM_F_ACK },
        family: family(ends),
        resource: 0,
        attributes: &body,
    };
    message.bytes()
}

fn tuple(kind: u16, [from, to]: [SocketAddr; 2]) -> Vec<u8> {
    let address = |ip: IpAddr, v4: u16, v6: u16| match ip.to_canonical() {
        IpAddr::V4(ip) => attribute(v4, &ip.octets()),
        IpAddr::V6(ip) => attribute(v6, &ip.octets()),
    };
    let ip = [address(from.ip(), 1, 3), address(to.ip(), 2, 4)].concat();
    let proto = [
        attribute(1, &[nix::libc::IPPROTO_TCP as u8]),
        attribute(2, &from.port().to_be_bytes()),
        attribute(3, &to.port().to_be_bytes()),
    ];
    nested(
        kind,
        &[
            nested(CTA_TUPLE_IP, &ip),
            nested(CTA_TUPLE_PROTO, &proto.concat()),
        ]
        .concat(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_how_long_it_is() {
        for ends in [
            ["192.0.2.1:1", "192.0.2.2:80"],
            ["[2001:db8::1]:1", "[2001:db8::2]:80"],
        ] {
            let ends = ends.map(|end| end.parse().unwrap());
            for anew in [false, true] {
                let bytes = message(ends, anew);
                let (length, mut at) = (u32::from_ne_bytes(*bytes.first_chunk().unwrap()), 20);
                while at < bytes.len() {
                    let length = usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
                    at += length.next_multiple_of(4);
                }
                assert_eq!((at, length as usize), (bytes.len(), bytes.len()));
            }
        }
    }

    #[test]
    fn an_address_of_ipv4_in_ipv6_is_that_of_ipv4() {
        let plain = ["192.0.2.1:1", "192.0.2.2:80"].map(|end| end.parse().unwrap());
        let mapped = ["[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:80"].map(|end| end.parse().unwrap());
        assert_eq!(message(plain, true), message(mapped, true));
    }
}
