//! The head of a reply as it is sent on.

use std::borrow::Cow;

use super::{drop, put, put_line};
use crate::http::{Body, Persistence, ReplyHead, Version, fields::Known};

/// How a reply goes to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToClient<'a> {
    /// Whether the client's connection is kept after it. A reply that ends with the connection has to close it.
    pub persistence: Persistence,
    /// The version of the client's request: HTTP/1.0 has to be told that the connection is kept.
    pub version: Version,
    /// The cookie by which the client finds its server again.
    pub set_cookie: Option<SetCookie<'a>>,
}

/// A cookie of the switch: for the whole site, not for scripts, until the browser is closed (RFC 6265 section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetCookie<'a> {
    /// A token.
    pub name: &'a str,
    /// Without blanks, commas, semicolons, quotes and backslashes.
    pub value: &'a str,
    /// Whether the client speaks TLS, so that the cookie is for TLS only.
    pub secure: bool,
}

/// The head to send for `head`: its own bytes if they can stay.
///
/// - Fields of the server's connection are left out (RFC 9110 section 7.6.1), and Connection says what is true of the
///   client's.
/// - HTTP/1.0 becomes HTTP/1.1, which is spoken here (RFC 9112 section 2.3).
/// - Equal Content-Lengths become one; 1xx and 204 have none, and no Transfer-Encoding (RFC 9110 section 8.6).
pub fn reply<'b>(head: &ReplyHead<'b>, to: &ToClient<'_>) -> Cow<'b, [u8]> {
    let wanted = connection(head, to);
    let stays = to.set_cookie.is_none()
        && head.version() == Version::Http11
        && !head.framing.untidy
        && drop::says_only(head.fields(), wanted, "keep-alive")
        && head.fields().iter().all(|f| match f.known {
            Known::Connection => true,
            Known::Upgrade => head.switches(),
            Known::ContentLength | Known::TransferEncoding => !has_no_length(head),
            Known::KeepAlive | Known::ProxyConnection | Known::Te => false,
            _ => true,
        });
    match stays {
        true => Cow::Borrowed(head.raw()),
        false => Cow::Owned(rewritten(head, to, wanted)),
    }
}

fn connection(head: &ReplyHead<'_>, to: &ToClient<'_>) -> Option<&'static str> {
    match (to.persistence, to.version) {
        _ if head.switches() => Some("upgrade"),
        _ if head.is_interim() => None,
        (Persistence::Close, _) => Some("close"),
        (Persistence::KeepAlive, Version::Http10) => Some("keep-alive"),
        (Persistence::KeepAlive, Version::Http11) => None,
    }
}

fn has_no_length(head: &ReplyHead<'_>) -> bool {
    matches!(head.status(), 100..=199 | 204)
}

fn rewritten(head: &ReplyHead<'_>, to: &ToClient<'_>, connection: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.raw().len() + 128);
    out.extend_from_slice(Version::Http11.as_str().as_bytes());
    out.extend_from_slice(format!(" {} ", head.status()).as_bytes());
    out.extend_from_slice(head.reason());
    out.extend_from_slice(b"\r\n");
    let fields = head.fields();
    for field in fields {
        let is_left_out = match field.known {
            Known::ContentLength => head.framing.untidy || has_no_length(head),
            Known::TransferEncoding => has_no_length(head),
            Known::Upgrade if head.switches() => false,
            _ => drop::is_for_this_hop(field, fields),
        };
        if !is_left_out {
            put(&mut out, field);
        }
    }
    if let (true, false, Some(Body::Length(n))) =
        (head.framing.untidy, has_no_length(head), head.framing.body)
    {
        put_line(&mut out, "Content-Length", n.to_string().as_bytes());
    }
    if let Some(cookie) = to.set_cookie {
        let secure = if cookie.secure { "; Secure" } else { "" };
        let line = format!("{}={}; Path=/; HttpOnly{secure}", cookie.name, cookie.value);
        put_line(&mut out, "Set-Cookie", line.as_bytes());
    }
    if let Some(options) = connection {
        put_line(&mut out, "Connection", options.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out
}
