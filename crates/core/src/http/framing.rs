//! Determines the end of a body (RFC 9112 section 6.3).

use super::{
    HeadError, Version,
    fields::{Fields, Known},
    text,
};

/// Rule that determines the end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// There is no body, even if the fields announce one.
    None,
    /// This many bytes follow; 0 is possible.
    Length(u64),
    /// Chunks follow: see [`super::Chunks`].
    Chunked,
    /// All bytes up to the end of the connection; of replies only.
    UntilClose,
}

impl Body {
    /// Returns whether no byte follows the head.
    pub fn is_empty(self) -> bool {
        matches!(self, Body::None | Body::Length(0))
    }
}

/// Values of Content-Length and Transfer-Encoding, also for a message that cannot have a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Framing {
    pub(super) body: Option<Body>,
    /// True if Content-Length is right, but not written as the one number that it is: it must not be sent on as it is.
    pub(super) untidy: bool,
}

impl Framing {
    pub(super) fn of(fields: &Fields<'_>, version: Version) -> Result<Framing, HeadError> {
        let chunked = is_chunked(fields)?;
        let (length, untidy) = content_length(fields)?;
        let body = match (chunked, length) {
            (true, Some(_)) => return Err(HeadError::TwoLengths),
            (true, None) if version == Version::Http10 => return Err(HeadError::CodingInOldVersion),
            (true, None) => Some(Body::Chunked),
            (false, length) => length.map(Body::Length),
        };
        Ok(Framing { body, untidy })
    }
}

/// Returns whether the body is chunked: the word alone, on one line (RFC 9112 section 6.1). A coding that one recipient
/// takes for `chunked` and another one does not allows request smuggling.
fn is_chunked(fields: &Fields<'_>) -> Result<bool, HeadError> {
    let mut codings = fields.known(Known::TransferEncoding);
    let Some(coding) = codings.next() else {
        return Ok(false);
    };
    if codings.next().is_some() {
        return Err(HeadError::TransferEncoding);
    }
    if coding.eq_ignore_ascii_case(b"chunked") {
        return Ok(true);
    }
    let is_list = text::list(coding).all(text::is_token);
    let times = text::list(coding)
        .filter(|c| c.eq_ignore_ascii_case(b"chunked"))
        .count();
    let last = text::list(coding)
        .last()
        .is_some_and(|c| c.eq_ignore_ascii_case(b"chunked"));
    Err(match is_list && (times == 0 || times == 1 && last) {
        true => HeadError::UnknownCoding,
        false => HeadError::TransferEncoding,
    })
}

/// Returns the one number, and whether it is written in another way than as itself. Equal numbers count as one (RFC
/// 9110 section 8.6).
fn content_length(fields: &Fields<'_>) -> Result<(Option<u64>, bool), HeadError> {
    let mut length = None;
    let mut untidy = false;
    for text in fields.known(Known::ContentLength).flat_map(text::list) {
        let n = decimal(text).ok_or(HeadError::ContentLength)?;
        untidy |= length.is_some() || text.len() > 1 && text.starts_with(b"0");
        if length.replace(n).is_some_and(|other| other != n) {
            return Err(HeadError::ContentLength);
        }
    }
    Ok((length, untidy))
}

/// Reads digits only, up to 2^63 − 1: many a server counts with a sign.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let n = text.iter().try_fold(0_u64, |n, b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })?;
    i64::try_from(n).is_ok().then_some(n)
}
