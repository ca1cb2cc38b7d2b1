//! Heads as they are sent on (RFC 9110 section 7.6): without what was meant for this connection only.
//!
//! A head in which nothing has to change keeps its bytes. Field lines that stay keep their order, names and values.

mod drop;
mod forwarded;
mod reply;
mod request;

pub use forwarded::{Forwarded, ForwardedFields};
pub use reply::{SetCookie, ToClient, reply};
pub use request::{ToServer, request};

use super::Field;

fn put_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn put(out: &mut Vec<u8>, field: &Field<'_>) {
    put_line(out, field.name, field.value);
}
