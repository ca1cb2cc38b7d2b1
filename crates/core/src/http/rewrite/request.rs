//! Rewrites the head of a request.

use std::borrow::Cow;

use super::{Forwarded, drop, put, put_line, put_via};
use crate::http::{Body, Field, Persistence, RequestHead, Target, Version, fields::Known, text};

/// Settings of a request on its way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToServer<'a> {
    /// Persistence of the server's connection after the request.
    pub persistence: Persistence,
    /// Fields that tell the server about the client; `None`: none are written, and the client's own go on.
    pub forwarded: Option<Forwarded>,
    /// Our name in Via: a token, or a host with an optional port. `None`: Via stays unchanged.
    pub via: Option<&'a str>,
}

/// Returns the head to send for `head`: its own bytes if they can stay.
///
/// - Fields of the client's connection are left out (RFC 9110 section 7.6.1); `TE: trailers` and a wanted upgrade stay.
/// - The version stays: so a client of HTTP/1.0 gets no chunks. Nor does such a client wait for `100 Continue`.
/// - A target in absolute form becomes one in origin form, and Host gets its authority (RFC 9112 section 3.2.2).
/// - Equal Content-Lengths become one, and so do expectations.
/// - Max-Forwards of TRACE and OPTIONS is one less (RFC 9110 section 7.6.2).
pub fn request<'b>(head: &RequestHead<'b>, to: &ToServer<'_>) -> Cow<'b, [u8]> {
    match stays(head, to) {
        true => Cow::Borrowed(head.raw()),
        false => Cow::Owned(rewritten(head, to)),
    }
}

/// Returns the value of Connection, if the field is needed.
fn connection(head: &RequestHead<'_>, to: &ToServer<'_>) -> Option<&'static str> {
    let te = takes_trailers(head);
    Some(match (head.upgrade(), to.persistence, head.version()) {
        (Some(_), ..) if te => "upgrade, TE",
        (Some(_), ..) => "upgrade",
        (_, Persistence::Close, _) if te => "close, TE",
        (_, Persistence::Close, _) => "close",
        (_, Persistence::KeepAlive, Version::Http10) => "keep-alive",
        (_, Persistence::KeepAlive, Version::Http11) if te => "TE",
        (_, Persistence::KeepAlive, Version::Http11) => return None,
    })
}

fn takes_trailers(head: &RequestHead<'_>) -> bool {
    let mut te = head.fields().known(Known::Te);
    te.any(|value| text::list_has(value, "trailers"))
}

fn stays(head: &RequestHead<'_>, to: &ToServer<'_>) -> bool {
    let is_plain = |field: &Field<'_>| match field.known {
        Known::Connection => true,
        Known::Upgrade => head.upgrade().is_some(),
        Known::Expect => head.expects_continue(),
        Known::Te => field.value.eq_ignore_ascii_case(b"trailers"),
        Known::KeepAlive | Known::ProxyConnection | Known::Http2Settings => false,
        Known::MaxForwards => head.max_forwards().is_none(),
        _ => to.forwarded.is_none_or(|forwarded| !forwarded.drops(field)),
    };
    to.forwarded.is_none_or(|forwarded| forwarded.fields.is_empty())
        && to.via.is_none()
        && !head.is_untidy
        && !matches!(head.target(), Target::Absolute { .. })
        && !head.framing.untidy
        && drop::says_only(head.fields(), connection(head, to), "keep-alive")
        && head.fields().iter().all(is_plain)
}

fn rewritten(head: &RequestHead<'_>, to: &ToServer<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.raw().len() + 256);
    put_request_line(head, &mut out);
    let is_absolute = matches!(head.target(), Target::Absolute { .. });
    let fields = head.fields();
    for field in fields {
        let is_left_out = match field.known {
            Known::Host => is_absolute,
            Known::ContentLength => head.framing.untidy,
            Known::Expect => head.is_untidy || !head.expects_continue(),
            Known::MaxForwards if head.max_forwards().is_some() => true,
            Known::Upgrade if head.upgrade().is_some() => false,
            _ if to.forwarded.is_some_and(|f| f.drops(field)) => true,
            _ => drop::is_for_this_hop(field, fields, head.options),
        };
        if !is_left_out {
            put(&mut out, field);
        }
    }
    if let (true, Body::Length(n)) = (head.framing.untidy, head.body()) {
        put_line(&mut out, "Content-Length", n.to_string().as_bytes());
    }
    if head.is_untidy && head.expects_continue() {
        put_line(&mut out, "Expect", b"100-continue");
    }
    if let Some(n) = head.max_forwards() {
        put_line(
            &mut out,
            "Max-Forwards",
            n.saturating_sub(1).to_string().as_bytes(),
        );
    }
    if takes_trailers(head) {
        put_line(&mut out, "TE", b"trailers");
    }
    if let Some(forwarded) = to.forwarded {
        forwarded.put(head, &mut out);
    }
    if let Some(name) = to.via {
        put_via(&mut out, head.version(), name);
    }
    if let Some(options) = connection(head, to) {
        put_line(&mut out, "Connection", options.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out
}

fn put_request_line(head: &RequestHead<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(head.method().as_bytes());
    out.push(b' ');
    match head.target() {
        Target::Absolute { path, query, .. } => {
            let path = match (path, query) {
                // OPTIONS without a path gets an asterisk (RFC 9112 section 3.2.4).
                ("", None) if head.method() == "OPTIONS" => "*",
                ("", _) => "/",
                _ => path,
            };
            out.extend_from_slice(path.as_bytes());
            if let Some(query) = query {
                out.push(b'?');
                out.extend_from_slice(query.as_bytes());
            }
        }
        _ => out.extend_from_slice(head.raw_target().as_bytes()),
    }
    out.push(b' ');
    out.extend_from_slice(head.version().as_str().as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Target::Absolute { authority, .. } = head.target() {
        put_line(out, "Host", authority.as_str().as_bytes());
    }
}
