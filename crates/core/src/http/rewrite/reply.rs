//! Rewrites the head of a reply.

use std::{borrow::Cow, time::SystemTime};

use httpdate::HttpDate;

use super::{drop, put, put_line, put_via};
use crate::http::{Body, Persistence, ReplyHead, Version, answer::http_date, fields::Known};

/// Settings of a reply on its way to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToClient<'a> {
    /// Persistence of the client's connection after the reply. A reply that ends with the connection has to close it.
    pub persistence: Persistence,
    /// Version of the client's request: HTTP/1.0 has to be told that the connection is kept.
    pub version: Version,
    /// Cookie by which the client finds its server again. An interim reply has none.
    pub set_cookie: Option<SetCookie<'a>>,
    /// Time for a missing Date (RFC 9110 section 6.6.1); `None`: none is added.
    pub date: Option<SystemTime>,
    /// Our name in Via: a token, or a host with an optional port. `None`: Via stays unchanged.
    pub via: Option<&'a str>,
}

/// Cookie of the switch: for the whole site, not for scripts, until the browser is closed (RFC 6265 section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetCookie<'a> {
    /// Name: a token.
    pub name: &'a str,
    /// Value without blanks, commas, semicolons, quotes and backslashes.
    pub value: &'a str,
    /// True if the client speaks TLS, so that the cookie is for TLS only.
    pub secure: bool,
}

/// Returns the head to send for `head`: its own bytes if they can stay.
///
/// - Fields of the server's connection are left out, and Connection tells the state of the client's (RFC 9110 section
///   7.6.1).
/// - Another version becomes HTTP/1.1, which is spoken here (RFC 9112 section 2.3).
/// - Equal Content-Lengths become one; 1xx and 204 have none, and no Transfer-Encoding (RFC 9110 section 8.6).
pub fn reply<'b>(head: &ReplyHead<'b>, to: &ToClient<'_>) -> Cow<'b, [u8]> {
    let to = &ToClient {
        set_cookie: to.set_cookie.filter(|_| !head.is_interim()),
        ..*to
    };
    let wanted = connection(head, to);
    let date = date(head, to);
    let stays = to.set_cookie.is_none()
        && date.is_none()
        && to.via.is_none()
        && !head.is_untidy
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
        false => Cow::Owned(rewritten(head, to, wanted, date)),
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

/// Returns the Date to add.
fn date(head: &ReplyHead<'_>, to: &ToClient<'_>) -> Option<HttpDate> {
    let is_final = !matches!(head.status(), 100..=199);
    let has_none = is_final && head.fields().known(Known::Date).next().is_none();
    to.date.filter(|_| has_none).and_then(http_date)
}

fn has_no_length(head: &ReplyHead<'_>) -> bool {
    matches!(head.status(), 100..=199 | 204)
}

fn rewritten(
    head: &ReplyHead<'_>,
    to: &ToClient<'_>,
    connection: Option<&str>,
    date: Option<HttpDate>,
) -> Vec<u8> {
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
            _ => drop::is_for_this_hop(field, fields, head.options),
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
    if let Some(date) = date {
        put_line(&mut out, "Date", date.to_string().as_bytes());
    }
    if let Some(name) = to.via {
        put_via(&mut out, head.version(), name);
    }
    if let Some(options) = connection {
        put_line(&mut out, "Connection", options.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out
}
