//! Reads cookies of a request.

use super::Headers;
use crate::http::cookie;

/// Shows the values of the cookies of this name (`None`: of all) to `see` until it answers true. Returns whether it
/// did. Names are compared with case.
pub(super) fn any(headers: &dyn Headers, name: Option<&str>, see: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    headers.any("cookie", &mut |line| {
        let wanted = |n: &[u8]| name.is_none_or(|name| n == name.as_bytes());
        cookie::in_line(line).any(|(name, value)| wanted(name) && see(value))
    })
}
