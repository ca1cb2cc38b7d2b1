//! What servers are told about the client: `X-Forwarded-*` and `Forwarded` (RFC 7239).

use std::{fmt, net::IpAddr};

use super::put_line;
use crate::http::{RequestHead, fields::Known, text};

/// Which of the fields are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForwardedFields {
    /// `X-Forwarded-For`: the client's address behind those that were there.
    pub x_for: bool,
    /// `X-Forwarded-Proto`: `http` or `https`, instead of what was there.
    pub x_proto: bool,
    /// `X-Forwarded-Host`: the host the client asked for, instead of what was there.
    pub x_host: bool,
    /// `Forwarded`: an element with all three behind those that were there.
    pub standard: bool,
}

impl ForwardedFields {
    /// Whether none is written.
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

/// What a request is told to have come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarded {
    /// Which fields.
    pub fields: ForwardedFields,
    /// The client's address.
    pub client: IpAddr,
    /// Whether it spoke TLS.
    pub https: bool,
}

impl Forwarded {
    pub(super) fn put(&self, head: &RequestHead<'_>, out: &mut Vec<u8>) {
        let proto = if self.https { "https" } else { "http" };
        let client = self.client.to_canonical();
        let host = head
            .authority()
            .map(|a| a.as_str())
            .filter(|host| !host.is_empty());
        if self.fields.x_for {
            put_list(
                head,
                Known::XForwardedFor,
                "X-Forwarded-For",
                &client.to_string(),
                out,
            );
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
            put_list(head, Known::Forwarded, "Forwarded", &element, out);
        }
    }
}

/// What was there and one more, on one line: many servers look at one line only.
fn put_list(head: &RequestHead<'_>, known: Known, name: &str, last: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    for value in head.fields().known(known).filter(|value| !value.is_empty()) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(last.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// RFC 7239 section 6: an IPv6 address stands in brackets and quotes.
struct Node(IpAddr);

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(a) => write!(f, "{a}"),
            IpAddr::V6(a) => write!(f, "\"[{a}]\""),
        }
    }
}
