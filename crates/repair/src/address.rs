//! Converts addresses to the form that they have on the wire: a v4-mapped one (RFC 4291 section 2.5.5.2) is IPv4.

use std::net::{IpAddr, SocketAddr};

/// Returns the address as it is on the wire: a v4-mapped one is IPv4. Other addresses stay as they are, with their
/// scope.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mapped_address_changes() {
        for (address, expected) in [
            ("198.18.0.1:65535", "198.18.0.1:65535"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
            ("[fe80::2%7]:1", "[fe80::2%7]:1"),
            ("[::ffff:198.18.0.1]:80", "198.18.0.1:80"),
        ] {
            assert_eq!(canonical(address.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
