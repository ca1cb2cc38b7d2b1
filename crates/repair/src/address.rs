//! Converts addresses to the form of the system calls: `sockaddr_in` and `sockaddr_in6`.
//!
//! They are built byte by byte, so that both families are one type and need no cast. A v4-mapped address (RFC 4291
//! section 2.5.5.2) is IPv4 here, as on the wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{c_int, sa_family_t};

/// Returns the address as it is on the wire: a v4-mapped one is IPv4. Other addresses stay as they are, with their
/// scope.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// Address and port, as the kernel reads and writes them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    bytes: [u8; Address::MAX],
    len: usize,
}

impl Address {
    /// Size of a `sockaddr_in6`, the longer one.
    pub(crate) const MAX: usize = size_of::<libc::sockaddr_in6>();
    const V4: usize = size_of::<libc::sockaddr_in>();

    /// Takes the bytes that the kernel wrote: the first `len` of them are the address.
    pub(crate) fn from_kernel(bytes: [u8; Address::MAX], len: usize) -> Address {
        let len = len.min(Address::MAX);
        Address { bytes, len }
    }

    /// Returns the bytes for the kernel.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns `AF_INET` or `AF_INET6`, for an address that was made from a [`SocketAddr`].
    pub(crate) fn family(&self) -> c_int {
        c_int::from(sa_family_t::from_ne_bytes(self.part(0)))
    }

    /// Returns the address, [`canonical`]; `None` if it is of another family.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(self.part(2));
        match self.family() {
            libc::AF_INET if self.len >= Address::V4 => {
                Some(SocketAddrV4::new(Ipv4Addr::from(self.part::<4>(4)), port).into())
            }
            libc::AF_INET6 if self.len >= Address::MAX => {
                let ip = Ipv6Addr::from(self.part::<16>(8));
                let (flow, scope) = (self.part(4), self.part(24));
                let (flow, scope) = (u32::from_ne_bytes(flow), u32::from_ne_bytes(scope));
                Some(canonical(SocketAddrV6::new(ip, port, flow, scope).into()))
            }
            _ => None,
        }
    }

    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.bytes[at + i])
    }

    fn put<const N: usize>(&mut self, at: usize, part: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&part);
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        let mut a = Address {
            bytes: [0; Address::MAX],
            len: Address::MAX,
        };
        a.put(2, address.port().to_be_bytes());
        match canonical(address) {
            SocketAddr::V4(v4) => {
                a.put(0, (libc::AF_INET as sa_family_t).to_ne_bytes());
                a.put(4, v4.ip().octets());
                a.len = Address::V4;
            }
            SocketAddr::V6(v6) => {
                a.put(0, (libc::AF_INET6 as sa_family_t).to_ne_bytes());
                a.put(4, v6.flowinfo().to_ne_bytes());
                a.put(8, v6.ip().octets());
                a.put(24, v6.scope_id().to_ne_bytes());
            }
        }
        a
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_there_and_back() {
        for text in [
            "198.18.0.1:65535",
            "[2001:db8::1]:80",
            "[fe80::2%7]:1",
            "0.0.0.0:0",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let kernel = Address::from(address);
            assert_eq!(kernel.get(), Some(address), "{text}");
            assert_eq!(kernel.as_bytes().len(), if address.is_ipv4() { 16 } else { 28 });
        }
    }

    #[test]
    fn a_mapped_address_is_ipv4_wherever_it_comes_from() {
        let (mapped, plain): (SocketAddr, SocketAddr) = (
            "[::ffff:198.18.0.1]:80".parse().unwrap(),
            "198.18.0.1:80".parse().unwrap(),
        );
        assert_eq!(Address::from(mapped).as_bytes(), Address::from(plain).as_bytes());
        let mut kernel = Address::from(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 80)));
        kernel.put(8, Ipv4Addr::new(198, 18, 0, 1).to_ipv6_mapped().octets());
        assert_eq!(kernel.get(), Some(plain));
    }

    #[test]
    fn what_is_short_or_of_another_family_is_no_address() {
        let v6 = Address::from(SocketAddr::from((Ipv6Addr::LOCALHOST, 80)));
        assert_eq!(Address::from_kernel(v6.bytes, 16).get(), None);
        assert_eq!(Address::from_kernel([0; Address::MAX], 16).get(), None);
    }
}
