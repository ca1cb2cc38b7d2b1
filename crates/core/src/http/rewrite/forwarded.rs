//! Writes the fields that tell servers about the client: `X-Forwarded-*` and `Forwarded` (RFC 7239).

use std::{fmt, net::IpAddr};

use super::put_line;
use crate::http::{Field, RequestHead, fields::Known, text};

/// Selects the fields that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForwardedFields {
    /// `X-Forwarded-For`: the client's address, behind those that were there or in their place.
    pub x_for: bool,
    /// `X-Forwarded-Proto`: `http` or `https`, instead of the client's value.
    pub x_proto: bool,
    /// `X-Forwarded-Host`: the host that the client requested, instead of the client's value.
    pub x_host: bool,
    /// `Forwarded`: an element with all three, behind those that were there or in their place.
    pub standard: bool,
}

impl ForwardedFields {
    /// Returns whether no field is written.
    pub fn is_empty(self) -> bool {
        self == ForwardedFields::default()
    }

    pub(super) fn replaces(self, known: Known) -> bool {
        match known {
            Known::XForwardedFor => self.x_for,
            Known::XForwardedProto => self.x_proto,
            Known::XForwardedHost => self.x_host,
            Known::Forwarded => self.standard,
            _ => false,
        }
    }
}

/// Origin of a request, as servers are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarded {
    /// Fields to write.
    pub fields: ForwardedFields,
    /// True to drop the client's own fields of this kind: `Forwarded`, all that begin with `X-Forwarded-`, `X-Real-IP`.
    /// Otherwise addresses are appended to them.
    pub replaces: bool,
    /// Address of the client.
    pub client: IpAddr,
    /// True if the client spoke TLS.
    pub https: bool,
}

impl Forwarded {
    /// Returns whether a field of the client is dropped: it is written anew, or is not trusted.
    pub(super) fn drops(&self, field: &Field<'_>) -> bool {
        let begins = |prefix: &str| {
            let name = field.name.get(..prefix.len());
            name.is_some_and(|name| name.eq_ignore_ascii_case(prefix))
        };
        self.fields.replaces(field.known)
            || self.replaces
                && (field.known == Known::Forwarded
                    || begins("x-forwarded-")
                    || field.name.eq_ignore_ascii_case("x-real-ip"))
    }

    pub(super) fn put(&self, head: &RequestHead<'_>, out: &mut Vec<u8>) {
        let proto = if self.https { "https" } else { "http" };
        let client = self.client.to_canonical();
        let host = head
            .authority()
            .map(|a| a.as_str())
            .filter(|host| !host.is_empty());
        if self.fields.x_for {
            let before = self.before(head, Known::XForwardedFor, |_| true);
            put_list("X-Forwarded-For", before, &client.to_string(), out);
        }
        if self.fields.x_proto {
            put_line(out, "X-Forwarded-Proto", proto.as_bytes());
        }
        if let Some(host) = host.filter(|_| self.fields.x_host) {
            put_line(out, "X-Forwarded-Host", host.as_bytes());
        }
        if self.fields.standard {
            let mut element = format!("for={};proto={proto}", Node(client));
            if let Some(host) = host {
                match text::is_token(host.as_bytes()) {
                    true => element += &format!(";host={host}"),
                    // A host has neither quotes nor backslashes.
                    false => element += &format!(";host=\"{host}\""),
                }
            }
            // Behind an open quote the element would stand within the client's quoted string (RFC 7239 section 4).
            let before = self.before(head, Known::Forwarded, text::closes_its_quotes);
            put_list("Forwarded", before, &element, out);
        }
    }

    /// Returns the client's values, if they are sent on: all of them, or none if one line is not `sound`.
    fn before<'b>(
        &self,
        head: &RequestHead<'b>,
        known: Known,
        sound: impl Fn(&[u8]) -> bool,
    ) -> Vec<&'b [u8]> {
        let fields = head.fields();
        match self.replaces || !fields.known(known).all(sound) {
            true => Vec::new(),
            false => fields.known(known).filter(|value| !value.is_empty()).collect(),
        }
    }
}

/// Writes the earlier values and one more, on one line: many servers read one line only.
fn put_list(name: &str, before: Vec<&[u8]>, last: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    for value in before {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(last.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes an address as a node: an IPv6 address stands in brackets and quotes (RFC 7239 section 6).
struct Node(IpAddr);

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(a) => write!(f, "{a}"),
            IpAddr::V6(a) => write!(f, "\"[{a}]\""),
        }
    }
}
