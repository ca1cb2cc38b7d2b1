//! Reads the cookies of a request.

use super::{
    fields::{Fields, Known},
    text,
};

/// Returns names and values of all cookies, in their order.
pub(super) fn cookies<'f, 'b: 'f>(fields: &'f Fields<'b>) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + 'f {
    fields.known(Known::Cookie).flat_map(in_line)
}

/// Returns the cookies of one field, read as browsers write them (RFC 6265 section 4.2.1) and leniently. Blanks around
/// names and values are removed. A value may have any bytes, and keeps its quotes. A piece without an equals sign is a
/// value without a name.
pub(crate) fn in_line(value: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    value.split(|b| *b == b';').filter_map(|pair| {
        let pair = text::trim(pair);
        if pair.is_empty() {
            return None;
        }
        Some(match pair.iter().position(|b| *b == b'=') {
            Some(i) => (text::trim(&pair[..i]), text::trim(&pair[i + 1..])),
            None => (&pair[..0], pair),
        })
    })
}
