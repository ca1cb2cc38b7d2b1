//! Parses addresses as users write them: to listen on, to connect to, and source ports.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6},
    ops::RangeInclusive,
    str::FromStr,
};

use longsplice_core::ports::parse_port;
use longsplice_repair::canonical;

/// Address of a listener: `ADDR:PORT`, `[V6ADDR]:PORT`, `:PORT` or `PORT`.
///
/// A bare port means `0.0.0.0`, and `[::]` only IPv6: name both for both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ListenAddr(pub SocketAddr);

/// Destination of connections: `IP:PORT`, `[V6]:PORT` or `NAME:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target(Place);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    Address(SocketAddr),
    Name(String, u16),
}

/// A range of ports, `LO-HI`, including both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortRange {
    lo: u16,
    hi: u16,
}

/// Error: the text is no address of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    /// The text is no address to listen on.
    #[error("`{0}` is no address to listen on: write ADDR:PORT, [V6ADDR]:PORT, :PORT or PORT")]
    Listen(String),
    /// The text is a name, but must be an address.
    #[error("`{0}` is a name: a listener takes an address, such as 127.0.0.1:{1} or :{1}")]
    ListenName(String, u16),
    /// The text is no target.
    #[error("`{0}` is no target: write IP:PORT, [V6ADDR]:PORT or NAME:PORT")]
    Target(String),
    /// The text is a URL.
    #[error("`{0}` is a URL: leave the scheme out, and any path, such as 127.0.0.1:8000")]
    Url(String),
    /// The text is an IPv6 address without brackets.
    #[error("`{0}` is ambiguous: put the IPv6 address in brackets, such as [::1]:8000")]
    Brackets(String),
    /// The address is link-local IPv6, without its link.
    #[error(
        "`{0}` is link-local: say on which link, such as [{ip}%2]:{port} (`ip -o link` has the numbers)",
        ip = .0.ip(), port = .0.port()
    )]
    Scope(SocketAddrV6),
    /// The target has no port.
    #[error("`{0}` has no port: write {0}:PORT")]
    NoPort(String),
    #[error("port 0 in `{0}`: a target needs a port from 1 to 65535")]
    PortZero(String),
    /// The text is no range of ports.
    #[error("`{0}` is no range of ports: write LO-HI, such as 20000-29999")]
    Range(String),
    /// The range runs backwards.
    #[error("the range {0}-{1} runs backwards: write {1}-{0}")]
    Backwards(u16, u16),
}

impl FromStr for ListenAddr {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        refuse_url(s)?;
        if let Ok(addr) = s.parse::<SocketAddr>() {
            return with_scope(addr).map(ListenAddr);
        }
        if let Some(port) = parse_port(s.strip_prefix(':').unwrap_or(s)) {
            return Ok(ListenAddr((Ipv4Addr::UNSPECIFIED, port).into()));
        }
        match s.rsplit_once(':') {
            Some((host, _)) if host.contains(':') && !host.starts_with('[') => {
                Err(AddressError::Brackets(s.to_owned()))
            }
            Some((host, port)) if is_name(host) => match parse_port(port) {
                Some(port) => Err(AddressError::ListenName(host.to_owned(), port)),
                None => Err(AddressError::Listen(s.to_owned())),
            },
            _ => Err(AddressError::Listen(s.to_owned())),
        }
    }
}

impl FromStr for Target {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        refuse_url(s)?;
        let (place, port) = if let Ok(addr) = s.parse::<SocketAddr>() {
            (Place::Address(with_scope(addr)?), addr.port())
        } else {
            let Some((host, port)) = s.rsplit_once(':') else {
                let missing = is_name(s) || s.parse::<IpAddr>().is_ok();
                return Err(if missing {
                    AddressError::NoPort(s.to_owned())
                } else {
                    no_target(s)
                });
            };
            if host.contains(':') && !host.starts_with('[') {
                return Err(AddressError::Brackets(s.to_owned()));
            }
            let port = parse_port(port).ok_or_else(|| no_target(s))?;
            if !is_name(host) {
                return Err(no_target(s));
            }
            (Place::Name(host.to_owned(), port), port)
        };
        if port == 0 {
            Err(AddressError::PortZero(s.to_owned()))
        } else {
            Ok(Target(place))
        }
    }
}

impl FromStr for PortRange {
    type Err = AddressError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let fail = || AddressError::Range(s.to_owned());
        let (lo, hi) = s.split_once('-').ok_or_else(fail)?;
        let port = |p: &str| parse_port(p.trim()).filter(|p| *p != 0).ok_or_else(fail);
        let (lo, hi) = (port(lo)?, port(hi)?);
        if lo > hi {
            Err(AddressError::Backwards(lo, hi))
        } else {
            Ok(PortRange { lo, hi })
        }
    }
}

/// Refuses a URL.
fn refuse_url(s: &str) -> Result<(), AddressError> {
    match s.contains("://") {
        true => Err(AddressError::Url(s.to_owned())),
        false => Ok(()),
    }
}

/// Returns the address as it is on the wire, or an error if its link is missing.
fn with_scope(address: SocketAddr) -> Result<SocketAddr, AddressError> {
    match canonical(address) {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            Err(AddressError::Scope(v6))
        }
        address => Ok(address),
    }
}

fn no_target(s: &str) -> AddressError {
    AddressError::Target(s.to_owned())
}

/// Returns whether it can be a host name. Digits and dots alone are a mistyped address rather than a name.
pub(crate) fn is_name(s: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
    };
    let s = s.strip_suffix('.').unwrap_or(s);
    s.len() <= 253 && s.split('.').all(label) && !s.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

impl Target {
    /// Returns the address, if it is no name.
    pub(crate) fn literal(&self) -> Option<SocketAddr> {
        match self.0 {
            Place::Address(address) => Some(address),
            Place::Name(..) => None,
        }
    }

    /// Returns the name and the port, if it is a name.
    pub(crate) fn name(&self) -> Option<(&str, u16)> {
        match &self.0 {
            Place::Address(_) => None,
            Place::Name(name, port) => Some((name, *port)),
        }
    }
}

impl PortRange {
    /// Returns whether the port is in the range.
    pub(crate) fn contains(self, port: u16) -> bool {
        RangeInclusive::from(self).contains(&port)
    }
}

impl From<PortRange> for RangeInclusive<u16> {
    fn from(r: PortRange) -> Self {
        r.lo..=r.hi
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Address(address) => address.fmt(f),
            Place::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.lo, self.hi)
    }
}

longsplice_core::from_text!(ListenAddr, Target, PortRange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_in_every_form() {
        for (given, means) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            (":8080", "0.0.0.0:8080"),
            ("8080", "0.0.0.0:8080"),
            ("[::]:8080", "[::]:8080"),
            ("[fe80::1%2]:8080", "[fe80::1%2]:8080"),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
            ("127.0.0.1:0", "127.0.0.1:0"),
        ] {
            assert_eq!(given.parse::<ListenAddr>().unwrap().to_string(), means);
        }
        for (given, says) in [
            ("", "is no address to listen on"),
            (":", "is no address to listen on"),
            ("+80", "is no address to listen on"),
            ("65536", "is no address to listen on"),
            ("1.2.3.4", "is no address to listen on"),
            (
                "localhost:80",
                "is a name: a listener takes an address, such as 127.0.0.1:80",
            ),
            ("::1:80x", "in brackets"),
            ("[fe80::1]:80", "such as [fe80::1%2]:80"),
            ("tcp://127.0.0.1:80", "is a URL"),
        ] {
            let e = given.parse::<ListenAddr>().unwrap_err().to_string();
            assert!(e.contains(says), "{given}: {e}");
        }
    }

    #[test]
    fn targets_in_every_form() {
        for good in [
            "127.0.0.1:8000",
            "[::1]:8000",
            "[2001:db8::1]:80",
            "[fe80::1%2]:80",
            "web-1.example:80",
            "localhost:1",
            "a.b.:80",
        ] {
            assert_eq!(good.parse::<Target>().unwrap().to_string(), good);
        }
        for (given, says) in [
            ("", "is no target"),
            ("web", "has no port: write web:PORT"),
            ("10.0.0.1", "has no port"),
            ("10.0.0.1:0", "port 0"),
            ("::1:80:", "brackets"),
            ("1.2.3:80", "is no target"),
            ("we b:80", "is no target"),
            ("web:http", "is no target"),
            ("web:99999", "is no target"),
            (":80", "is no target"),
            ("[2001:db8::1]", "is no target"),
            ("[fe80::1]:80", "such as [fe80::1%2]:80"),
            ("http://127.0.0.1:8000/", "is a URL"),
            ("https://web.example", "is a URL"),
        ] {
            let e = given.parse::<Target>().unwrap_err().to_string();
            assert!(e.contains(says), "{given}: {e}");
        }
    }

    #[test]
    fn ranges_run_forwards() {
        assert_eq!(
            "20000-29999".parse::<PortRange>().unwrap().to_string(),
            "20000-29999"
        );
        assert!("5-5".parse::<PortRange>().unwrap().contains(5));
        for (given, says) in [
            ("9-3", "write 3-9"),
            ("0-3", "LO-HI"),
            ("7", "LO-HI"),
            ("1-65536", "LO-HI"),
        ] {
            let e = given.parse::<PortRange>().unwrap_err().to_string();
            assert!(e.contains(says), "{given}: {e}");
        }
    }
}
