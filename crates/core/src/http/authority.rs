//! Reads a host and its port from Host fields and targets.

use super::HeadError;

/// Host and, perhaps, a port (RFC 9110 section 7.2, RFC 3986 section 3.2). Userinfo is refused (RFC 9110 section
/// 4.2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authority<'b> {
    text: &'b str,
    host: &'b str,
    port: Option<u16>,
}

impl<'b> Authority<'b> {
    /// Reads `HOST` or `HOST:PORT`. An IPv6 address stands in brackets. The host may be empty, as a Host field's may.
    ///
    /// # Errors
    /// [`HeadError::Host`] for any other text: bytes that a name cannot have, percent-encoded ones, an empty label, userinfo, a port beyond
    /// 65535.
    pub fn parse(bytes: &'b [u8]) -> Result<Authority<'b>, HeadError> {
        let text = std::str::from_utf8(bytes).map_err(|_| HeadError::Host)?;
        let colon = match text.rfind(']') {
            Some(bracket) => text[bracket..].find(':').map(|i| bracket + i),
            None => text.find(':'),
        };
        let (host, port) = match colon {
            Some(i) => (&text[..i], Some(&text[i + 1..])),
            None => (text, None),
        };
        let good = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(literal) => literal.parse::<std::net::Ipv6Addr>().is_ok(),
            None => is_name(host),
        };
        let port = match port {
            // The colon may stand with nothing behind it (RFC 3986 section 3.2.3).
            None | Some("") => None,
            Some(p) if p.bytes().all(|b| b.is_ascii_digit()) => Some(p.parse().map_err(|_| HeadError::Host)?),
            Some(_) => return Err(HeadError::Host),
        };
        good.then_some(Authority { text, host, port })
            .ok_or(HeadError::Host)
    }

    /// Returns host and port as the peer wrote them.
    pub fn as_str(&self) -> &'b str {
        self.text
    }

    /// Returns the host as the peer wrote it, an IPv6 address with its brackets, without the port.
    pub fn host(&self) -> &'b str {
        self.host
    }

    /// Returns the port, if one was written.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

/// Returns whether a text is a registered name (RFC 3986 section 3.2.2) that all recipients read alike, or empty. A comma would make
/// two hosts of a Host field for some of them; others decode `%61`, and drop an empty label.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_of_label = |b: u8| b.is_ascii_alphanumeric() || b"-_~!$&'()*+;=".contains(&b);
        !label.is_empty() && label.bytes().all(is_of_label)
    };
    // The dot of a fully qualified name ends it (RFC 1034 section 3.1).
    text.is_empty() || text.strip_suffix('.').unwrap_or(text).split('.').all(is_label)
}
