//! Tells the two versions of IP apart.

use std::net::{IpAddr, Ipv6Addr};

/// Version of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both versions.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// Returns the version of an address; a v4-mapped one is IPv6.
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Returns 4 or 6.
    pub fn number(self) -> u8 {
        match self {
            Family::V4 => 4,
            Family::V6 => 6,
        }
    }
}

/// Returns an address as the kernel half has it: an IPv4 one is v4-mapped (RFC 4291 section 2.5.5.2).
#[must_use]
pub fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
