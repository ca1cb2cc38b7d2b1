//! Rewrites heads that are sent on, without the parts for this connection only (RFC 9110 section 7.6).
//!
//! A head that need not change keeps its bytes. Field lines that stay keep their order, names and values.

mod drop;
mod forwarded;
mod reply;
mod request;

pub use forwarded::{Forwarded, ForwardedFields};
pub use reply::{SetCookie, ToClient, reply};
pub use request::{ToServer, request};

use super::{Field, Version};

fn put_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends this hop to Via, on a line of its own behind the present ones: the version in which the message came, and
/// our name (RFC 9110 section 7.6.3).
fn put_via(out: &mut Vec<u8>, version: Version, name: &str) {
    let version = version.as_str().trim_start_matches("HTTP/");
    put_line(out, "Via", format!("{version} {name}").as_bytes());
}

fn put(out: &mut Vec<u8>, field: &Field<'_>) {
    put_line(out, field.name, field.value);
}
