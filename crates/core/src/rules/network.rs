//! Reads and writes networks as people write them.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::{IpNet, Ipv6Net};

/// Address with the number of its leading bits that count: `198.18.0.0/15`, `2001:db8::/32`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(IpNet);

/// Error of a text that is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseNetworkError {
    /// There is no address, or no number of bits.
    #[error(
        "`{0}` is no network: write ADDRESS/BITS, such as 198.18.0.0/15 or 2001:db8::/32, or one address"
    )]
    Form(String),
    /// There are more bits than an address has.
    #[error("`{text}` has more bits than an address, which has {most}")]
    Bits {
        /// The text.
        text: String,
        /// The bits of an address of its family.
        most: u8,
    },
    /// A bit behind the counted ones is set.
    #[error("`{text}` is an address in a network, not a network: write {network}")]
    Host {
        /// The text.
        text: String,
        /// Network that contains the address.
        network: Network,
    },
    /// The address is `::ffff:a.b.c.d`.
    #[error("`{0}` is an IPv4 address in IPv6 notation: write it as IPv4")]
    Mapped(String),
}

impl Network {
    /// Returns how many bits count, 0 to 32 or 128.
    pub fn bits(self) -> u8 {
        self.0.prefix_len()
    }

    /// Returns the first address of the network.
    pub fn address(self) -> IpAddr {
        self.0.addr()
    }

    /// Returns whether the network contains the address; an IPv4 address in IPv6 notation counts as IPv4.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns whether the network contains every address of the other one.
    pub fn contains_network(self, other: Network) -> bool {
        self.0.contains(&other.0)
    }

    /// Returns the network as the kernel half compares it, in 128 bits: IPv4 is v4-mapped there.
    pub(super) fn wide(self) -> Ipv6Net {
        match self.0 {
            IpNet::V4(v4) => Ipv6Net::new_assert(v4.addr().to_ipv6_mapped(), v4.prefix_len() + 96),
            IpNet::V6(v6) => v6,
        }
    }
}

impl From<IpAddr> for Network {
    /// Makes the network of this address only.
    fn from(address: IpAddr) -> Network {
        Network(address.into())
    }
}

impl FromStr for Network {
    type Err = ParseNetworkError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let form = || ParseNetworkError::Form(s.to_owned());
        let (address, bits) = match s.split_once('/') {
            Some((address, bits)) if bits.bytes().all(|b| b.is_ascii_digit()) => (address, Some(bits)),
            Some(_) => return Err(form()),
            None => (s, None),
        };
        let address: IpAddr = address.parse().map_err(|_| form())?;
        if matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
            return Err(ParseNetworkError::Mapped(s.to_owned()));
        }
        let most = IpNet::from(address).max_prefix_len();
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| form())?;
        let network = IpNet::new(address, bits).map_err(|_| ParseNetworkError::Bits {
            text: s.to_owned(),
            most,
        })?;
        match network.trunc() == network {
            true => Ok(Network(network)),
            false => Err(ParseNetworkError::Host {
                text: s.to_owned(),
                network: Network(network.trunc()),
            }),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.prefix_len() == self.0.max_prefix_len() {
            true => self.0.addr().fmt(f),
            false => self.0.fmt(f),
        }
    }
}

crate::as_text!(Network);
