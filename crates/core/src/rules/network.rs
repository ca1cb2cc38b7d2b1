//! Reads and writes networks as people write them.

use std::{fmt, net::IpAddr, str::FromStr};

/// Address with the number of its leading bits that count: `198.18.0.0/15`, `2001:db8::/32`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

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
        self.bits
    }

    /// Returns the first address of the network.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Returns whether the network contains the address; an IPv4 address in IPv6 notation counts as IPv4.
    pub fn contains(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && first(address, self.bits) == self.address
    }

    /// Returns whether the network contains every address of the other one.
    pub fn contains_network(self, other: Network) -> bool {
        other.bits >= self.bits && self.contains(other.address)
    }

    /// Returns the number of counted bits of the 128 that the kernel half compares: IPv4 is v4-mapped there.
    pub(super) fn wide_bits(self) -> u32 {
        u32::from(self.bits) + if self.address.is_ipv4() { 96 } else { 0 }
    }
}

/// Returns a mask with the leading bits set.
pub(super) fn mask(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0)
}

impl From<IpAddr> for Network {
    /// Makes the network of this address only.
    fn from(address: IpAddr) -> Network {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Network { address, bits }
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
        let Network { bits: most, .. } = address.into();
        let bits = match bits.map(str::parse::<u8>) {
            None => most,
            Some(Ok(bits)) if bits <= most => bits,
            Some(Ok(_)) => {
                return Err(ParseNetworkError::Bits {
                    text: s.to_owned(),
                    most,
                });
            }
            Some(Err(_)) => return Err(form()),
        };
        let network = Network {
            address: first(address, bits),
            bits,
        };
        match network.address == address {
            true => Ok(network),
            false => Err(ParseNetworkError::Host {
                text: s.to_owned(),
                network,
            }),
        }
    }
}

/// Returns the address with only its leading bits.
fn first(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let kept = mask(u32::from(bits) + 96) as u32;
            IpAddr::V4((v4.to_bits() & kept).into())
        }
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & mask(bits.into())).into()),
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self == self.address.into() {
            true => self.address.fmt(f),
            false => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

super::as_text!(Network);
