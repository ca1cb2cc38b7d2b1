//! Frames of either family, and what a device would say of them.

use std::net::SocketAddr;

use crate::support::packet::internet_checksum;

/// A TCP segment.
#[derive(Debug, Clone)]
pub struct Frame {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub flags: u8,
    pub payload: Vec<u8>,
    /// IPv4 options (a multiple of four bytes), or IPv6 extension headers with the number of the first one.
    pub between: Vec<u8>,
    pub first_extension: Option<u8>,
    /// IPv4: flags and offset of fragments.
    pub fragment: u16,
}

pub fn frame(from: &str, to: &str, flags: u8) -> Frame {
    Frame {
        from: from.parse().expect("an address"),
        to: to.parse().expect("an address"),
        flags,
        payload: Vec::new(),
        between: Vec::new(),
        first_extension: None,
        fragment: 0,
    }
}

impl Frame {
    pub fn bytes(&self) -> Vec<u8> {
        let mut tcp = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
        tcp.extend(1000u32.to_be_bytes());
        tcp.extend(0u32.to_be_bytes());
        tcp.extend([5 << 4, self.flags]);
        tcp.extend(8192u16.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.payload);
        let check = internet_checksum(&[&self.pseudo_header(tcp.len()), &tcp]);
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        let mut frame = [&[2, 0, 0, 0, 1, 1][..], &[2, 0, 0, 0, 1, 2]].concat();
        frame.extend(if self.to.is_ipv4() { [8, 0] } else { [0x86, 0xdd] });
        frame.extend(self.ip(tcp.len()));
        frame.extend(&self.between);
        frame.extend(tcp);
        frame
    }

    /// Bytes from the IP header on.
    pub fn length(&self) -> u64 {
        self.bytes().len() as u64 - 14
    }

    fn octets(&self) -> [Vec<u8>; 2] {
        [self.from, self.to].map(|a| match a {
            SocketAddr::V4(v4) => v4.ip().octets().to_vec(),
            SocketAddr::V6(v6) => v6.ip().octets().to_vec(),
        })
    }

    fn pseudo_header(&self, len: usize) -> Vec<u8> {
        let mut pseudo = self.octets().concat();
        match self.to.is_ipv4() {
            true => pseudo.extend([0, 6]),
            false => pseudo.extend([0, 0, 0, 0, 0, 6]),
        }
        pseudo.extend((len as u16).to_be_bytes());
        pseudo
    }

    fn ip(&self, tcp: usize) -> Vec<u8> {
        let behind = (self.between.len() + tcp) as u16;
        if self.to.is_ipv6() {
            let mut ip = vec![0x60, 0, 0, 0];
            ip.extend(behind.to_be_bytes());
            ip.extend([self.first_extension.unwrap_or(6), 64]);
            ip.extend(self.octets().concat());
            return ip;
        }
        let mut ip = vec![0x45 + (self.between.len() / 4) as u8, 0];
        ip.extend((20 + behind).to_be_bytes());
        ip.extend([0, 1]);
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([64, 6, 0, 0]);
        ip.extend(self.octets().concat());
        let check = internet_checksum(&[&ip, &self.between]);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        ip
    }
}
