//! Which fields end at this hop.

use crate::http::{Field, Fields, fields::Known, text};

/// Fields for all recipients, which an option of Connection must not name (RFC 9110 section 7.6.1): a client that has them
/// removed hides from the server what it, or a proxy before us, said. In lower case.
const KEPT: [&str; 22] = [
    "authorization",
    "cache-control",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "if-match",
    "if-none-match",
    "origin",
    "range",
    "referer",
    "set-cookie",
    "transfer-encoding",
    "vary",
    "via",
    "x-forwarded-for",
    "x-real-ip",
];

/// Whether a field is for this connection alone: Connection itself and what belongs to it, and what it names.
pub(super) fn is_for_this_hop(field: &Field<'_>, fields: &Fields<'_>) -> bool {
    match field.known {
        Known::Connection
        | Known::Http2Settings
        | Known::KeepAlive
        | Known::ProxyConnection
        | Known::Te
        | Known::Upgrade => true,
        _ => is_named(field.name, fields),
    }
}

fn is_named(name: &str, fields: &Fields<'_>) -> bool {
    let mut options = fields.known(Known::Connection);
    options.any(|value| text::list_has(value, name))
        && !KEPT.iter().any(|kept| name.eq_ignore_ascii_case(kept))
        && !name
            .get(..12)
            .is_some_and(|prefix| prefix.eq_ignore_ascii_case("x-forwarded-"))
}

/// Whether Connection has no options but these, and the message keeps its meaning with the field as it is.
pub(super) fn says_only(fields: &Fields<'_>, wanted: Option<&str>, usual: &str) -> bool {
    let mut options = fields.known(Known::Connection);
    match (options.next(), options.next(), wanted) {
        (None, _, None) => true,
        (Some(only), None, Some(wanted)) => only.eq_ignore_ascii_case(wanted.as_bytes()),
        (Some(only), None, None) => only.eq_ignore_ascii_case(usual.as_bytes()),
        _ => false,
    }
}
