//! Parses the parts that several fields share: tokens and lists (RFC 9110 section 5.6).

/// Returns whether a byte may stand in a token (RFC 9110 section 5.6.2).
pub(super) fn is_token_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Returns whether a text is a token (RFC 9110 section 5.6.2).
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().copied().all(is_token_byte)
}

/// Removes blanks at both ends: spaces and tabs only (RFC 9110 section 5.6.3).
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let is_blank = |b: &u8| *b == b' ' || *b == b'\t';
    let start = bytes.iter().position(|b| !is_blank(b)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !is_blank(b)).map_or(start, |i| i + 1);
    bytes.get(start..end).unwrap_or_default()
}

/// Returns the elements of a list without their blanks; empty elements are included (RFC 9110 section 5.6.1).
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(trim)
}

/// Returns whether each quoted string that begins in the text ends in it (RFC 9110 section 5.6.4): otherwise an
/// appended text would be a part of it.
pub(super) fn closes_its_quotes(value: &[u8]) -> bool {
    let mut is_quoted = false;
    let mut bytes = value.iter();
    while let Some(b) = bytes.next() {
        match b {
            b'"' => is_quoted = !is_quoted,
            b'\\' if is_quoted && bytes.next().is_none() => return false,
            _ => {}
        }
    }
    !is_quoted
}

/// Returns whether a list has this element, in any case of its letters.
pub(super) fn list_has(value: &[u8], element: &str) -> bool {
    list(value).any(|e| e.eq_ignore_ascii_case(element.as_bytes()))
}
