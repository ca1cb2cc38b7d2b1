//! Builds TCP packets that no socket makes: with headers and checksums of their own.

use std::net::{IpAddr, SocketAddr};

use longsplice_lab::Namespace;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;
pub(crate) const URG: u8 = 32;

/// Number of TCP in an IP header.
pub(crate) const TCP: u8 = 6;

/// Protocol of a raw socket whose packets include their IP header.
const RAW: i32 = 255;
/// Number of the IPv6 fragment header.
const FRAGMENT: u8 = 44;

/// Raw socket that sends packets with any source address.
#[derive(Debug)]
pub(crate) struct Outlet(Socket);

impl Outlet {
    /// Opens a raw socket in a node, for the family of `to`.
    pub(crate) fn open(node: &Namespace, to: IpAddr) -> Outlet {
        let domain = Domain::for_address(SocketAddr::new(to, 0));
        let open = || Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)));
        Outlet(node.run(open).unwrap().unwrap())
    }

    /// Sends a packet that begins with its IP header.
    pub(crate) fn send(&self, packet: &[u8], to: IpAddr) {
        let to = SockAddr::from(SocketAddr::new(to, 0));
        self.0
            .send_to(packet, &to)
            .unwrap_or_else(|e| panic!("cannot send a packet of {} bytes: {e}", packet.len()));
    }
}

/// Begins a TCP header, without the checksum, the urgent pointer and the length of the options.
pub(crate) fn header(from: SocketAddr, to: SocketAddr, numbers: [u32; 2], flags: u8, window: u16) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(128);
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    for number in numbers {
        tcp.extend(number.to_be_bytes());
    }
    tcp.extend([5 << 4, flags]);
    tcp.extend(window.to_be_bytes());
    tcp.extend([0; 4]);
    tcp
}

/// Adds options to a header, a multiple of four bytes.
pub(crate) fn add_options(tcp: &mut Vec<u8>, options: &[u8]) {
    tcp.extend(options);
    tcp[12] = (tcp.len() as u8 / 4) << 4;
}

/// Fills in the checksum of a segment.
pub(crate) fn seal(tcp: &mut [u8], from: IpAddr, to: IpAddr) {
    let sum = sum(TCP, tcp, from, to);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
}

/// Prepends an IP header to a body. `fragment` holds its offset, in units of eight bytes, and whether more fragments
/// follow.
pub(crate) fn ip(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    body: &[u8],
    id: u32,
    fragment: Option<(u16, bool)>,
) -> Vec<u8> {
    let mut ip = Vec::with_capacity(60 + body.len());
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ip.extend([0x45, 0]);
            ip.extend((20 + body.len() as u16).to_be_bytes());
            ip.extend((id as u16 | 1).to_be_bytes());
            let place = fragment.map_or(0, |(at, more)| at | u16::from(more) << 13);
            ip.extend(place.to_be_bytes());
            ip.extend([64, protocol, 0, 0]); // the kernel fills in the checksum
            ip.extend(from.octets());
            ip.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let more = if fragment.is_some() { 8 } else { 0 };
            ip.extend([0x60, 0, 0, 0]);
            ip.extend((more + body.len() as u16).to_be_bytes());
            ip.extend([if fragment.is_some() { FRAGMENT } else { protocol }, 64]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            if let Some((at, more)) = fragment {
                ip.extend([protocol, 0]);
                ip.extend((at << 3 | u16::from(more)).to_be_bytes());
                ip.extend(id.to_be_bytes());
            }
        }
        _ => unreachable!("a connection has one family"),
    }
    ip.extend(body);
    ip
}

/// Computes a checksum with a pseudo-header of both addresses.
pub(crate) fn sum(protocol: u8, body: &[u8], from: IpAddr, to: IpAddr) -> u16 {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let mut pseudo = [octets(from), octets(to)].concat();
    pseudo.extend((body.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    checksum(&[&pseudo, body])
}

/// Computes the checksum of RFC 1071; every part but the last has an even length.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u64 = parts.iter().flat_map(|part| part.chunks(2)).map(word).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
