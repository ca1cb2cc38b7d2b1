//! Parses the location of an entry's servers: an address, a name, or a service that DNS describes.

use std::{fmt, str::FromStr};

use crate::address::{AddressError, Target, is_name};

/// Location of an entry's servers. A name may stand for several servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ServerPlace {
    /// `IP:PORT` or `NAME:PORT`.
    Target(Target),
    /// `srv:NAME`: SRV records give the names and ports (RFC 2782).
    Service(ServiceName),
}

/// Name of SRV records, such as `_http._tcp.example`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ServiceName(String);

/// Error: the text is no location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlaceError {
    /// The text is neither an address nor a name.
    #[error(transparent)]
    Target(#[from] AddressError),
    /// The text is no service.
    #[error("`{0}` is no service: write srv:_SERVICE._PROTOCOL.NAME, such as srv:_http._tcp.example")]
    Service(String),
}

impl ServiceName {
    /// Returns the name.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServerPlace {
    type Err = PlaceError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let Some(name) = s.strip_prefix("srv:") else {
            return Ok(ServerPlace::Target(s.parse()?));
        };
        let labels: Vec<_> = name.splitn(3, '.').collect();
        match labels[..] {
            [service, protocol, rest]
                if is_name(name)
                    && service.starts_with('_')
                    && protocol.starts_with('_')
                    && !rest.is_empty() =>
            {
                Ok(ServerPlace::Service(ServiceName(name.to_owned())))
            }
            _ => Err(PlaceError::Service(s.to_owned())),
        }
    }
}

impl fmt::Display for ServerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerPlace::Target(target) => target.fmt(f),
            ServerPlace::Service(name) => write!(f, "srv:{}", name.0),
        }
    }
}

longsplice_core::from_text!(ServerPlace);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back() {
        for place in [
            "127.0.0.1:80",
            "[::1]:80",
            "web.example:80",
            "srv:_http._tcp.example",
            "srv:_a._tcp.b.c.",
        ] {
            assert_eq!(place.parse::<ServerPlace>().unwrap().to_string(), place);
        }
        for (given, says) in [
            ("web", "has no port"),
            ("srv:", "srv:_http._tcp.example"),
            ("srv:http.tcp.example", "srv:_http._tcp.example"),
            ("srv:_http._tcp", "srv:_http._tcp.example"),
            ("srv:_http._tcp.", "srv:_http._tcp.example"),
            ("srv:_http._tcp.a b", "srv:_http._tcp.example"),
        ] {
            let e = given.parse::<ServerPlace>().unwrap_err().to_string();
            assert!(e.contains(says), "{given}: {e}");
        }
    }
}
