//! The two families of addresses: each node has one address of each, and arithmetic converts one into the other.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::Error;

/// Family of the addresses that a topology is known by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4; IPv6 is switched off, so that only the packets of the test occur.
    #[default]
    V4,
    /// IPv6, beside IPv4.
    V6,
}

impl Family {
    /// Both families.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// Returns the family of an address.
    pub fn of(addr: IpAddr) -> Family {
        match addr {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Returns the address in this family of the interface that has `addr`: the fourth group of 2001:db8::/32 is the
    /// number of the /24 network in 198.18.0.0/15, the last one the number of the host.
    pub fn addr(self, addr: IpAddr) -> IpAddr {
        match (self, addr) {
            (Family::V4, IpAddr::V6(v6)) => {
                let segments = v6.segments();
                let [high, low] = segments[3].to_be_bytes();
                Ipv4Addr::new(198, 18 + high, low, segments[7] as u8).into()
            }
            (Family::V6, IpAddr::V4(v4)) => {
                let [_, second, third, host] = v4.octets();
                let network = u16::from_be_bytes([second.wrapping_sub(18), third]);
                Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host.into()).into()
            }
            _ => addr,
        }
    }

    /// Returns 127.0.0.1 or ::1.
    pub fn loopback(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::LOCALHOST.into(),
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// Returns 0.0.0.0 or ::, which stand for all addresses of the host.
    pub fn unspecified(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Returns the suffix of an address for `ip`: the length of the prefix of each network here, and for IPv6 `nodad`:
    /// an address under duplicate detection cannot be bound.
    pub(crate) fn network(self) -> &'static str {
        match self {
            Family::V4 => "/24",
            Family::V6 => "/64 nodad",
        }
    }

    /// Returns the suffix of an address that is a network of its own.
    pub(super) fn host(self) -> &'static str {
        match self {
            Family::V4 => "/32",
            Family::V6 => "/128 nodad",
        }
    }

    /// Returns the families of addresses in a topology that is known by this one.
    pub(super) fn present(self) -> &'static [Family] {
        match self {
            Family::V4 => &[Family::V4],
            Family::V6 => &Family::BOTH,
        }
    }
}

impl FromStr for Family {
    type Err = Error;

    /// Reads `4` or `6`.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "4" => Ok(Family::V4),
            "6" => Ok(Family::V6),
            _ => Err(Error::Parse {
                what: "a family of addresses, which is 4 or 6",
                text: text.to_owned(),
            }),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "4",
            Family::V6 => "6",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_twin() {
        for (v4, v6) in [
            ("198.18.1.2", "2001:db8:0:1::2"),
            ("198.18.255.1", "2001:db8:0:ff::1"),
            ("198.19.0.1", "2001:db8:0:100::1"),
        ] {
            let (v4, v6): (IpAddr, IpAddr) = (v4.parse().unwrap(), v6.parse().unwrap());
            for addr in [v4, v6] {
                assert_eq!(Family::V4.addr(addr), v4);
                assert_eq!(Family::V6.addr(addr), v6);
            }
        }
    }

    #[test]
    fn a_family_as_text() {
        for family in Family::BOTH {
            assert_eq!(family.to_string().parse::<Family>().unwrap(), family);
        }
        assert!("v6".parse::<Family>().is_err());
    }
}
