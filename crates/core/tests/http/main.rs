//! Tests HTTP as an intermediary reads it: the rules of RFC 9112 and RFC 9110 as tables, request smuggling, any split
//! of the bytes, and the forwarded heads.

mod answers;
mod chunks;
mod lengths;
mod limits;
mod refused;
mod replies;
mod requests;
mod rewriting;
mod smuggling;
mod splits;

use longsplice_core::http::{HeadError, Limits, ReplyHead, RequestHead, RequestKind};

/// Returns a head as the tables write it: without the version's usual fields, and with `\n` for CR LF.
fn crlf(lines: &str) -> Vec<u8> {
    lines.replace('\n', "\r\n").into_bytes()
}

/// Reads a request with the default limits.
fn request(bytes: &[u8]) -> Result<RequestHead<'_>, HeadError> {
    RequestHead::parse(bytes, &Limits::default())
}

fn reply(bytes: &[u8], to: RequestKind) -> Result<ReplyHead<'_>, HeadError> {
    ReplyHead::parse(bytes, to, &Limits::default())
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
