//! Selects the fields that end at this hop.

use crate::http::{Field, Fields, connection::Options, fields::Known, text};

/// Fields for all recipients, in lower case. An option of Connection must not name them (RFC 9110 section 7.6.1): a
/// client that has them removed hides from the server its own fields, or those of a proxy before us.
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

/// Returns whether a field is for this connection alone: Connection itself and the fields that belong to it, and those
/// that it names.
pub(super) fn is_for_this_hop(field: &Field<'_>, fields: &Fields<'_>, options: Options) -> bool {
    match field.known {
        Known::Connection
        | Known::Http2Settings
        | Known::KeepAlive
        | Known::ProxyConnection
        | Known::Te
        | Known::Upgrade => true,
        _ => options.others && is_named(field.name, fields),
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

/// Returns whether Connection has no options but these, and the message keeps its meaning with the field unchanged.
pub(super) fn says_only(fields: &Fields<'_>, wanted: Option<&str>, usual: &str) -> bool {
    let mut options = fields.known(Known::Connection);
    match (options.next(), options.next(), wanted) {
        (None, _, None) => true,
        (Some(only), None, Some(wanted)) => only.eq_ignore_ascii_case(wanted.as_bytes()),
        (Some(only), None, None) => only.eq_ignore_ascii_case(usual.as_bytes()),
        _ => false,
    }
}
