//! Packets of either family, as they come in on `a0`.

use crate::support::{
    net::{OUR_MAC, PEER_MAC},
    packet::{ETH, Packet},
};

pub fn frame(from: &str, to: &str, flags: u8) -> Packet {
    Packet {
        dst_mac: OUR_MAC[0],
        src_mac: PEER_MAC[0],
        ttl: 64,
        src: from.parse().expect("an address"),
        dst: to.parse().expect("an address"),
        seq: 1000,
        flags,
        window: 8192,
        ..Packet::blank()
    }
}

/// Returns the number of bytes from the IP header on.
pub fn length(packet: &Packet) -> u64 {
    (packet.bytes().len() - ETH) as u64
}
