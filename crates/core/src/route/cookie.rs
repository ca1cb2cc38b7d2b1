//! Cookies of a request, as leniently as servers read them (RFC 6265 section 4.2).

use super::Headers;

/// Shows the values of the cookies of this name (`None`: of all) to `see` until it answers true; whether it did. Names are
/// compared with case. What has no `=` is a cookie without a name, as browsers send it.
pub(super) fn any(headers: &dyn Headers, name: Option<&str>, see: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    headers.any("cookie", &mut |line| {
        let pairs = line.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let cookies = pairs.filter(|pair| !pair.is_empty()).map(split);
        let mut wanted = cookies.filter(|(n, _)| name.is_none_or(|name| *n == name.as_bytes()));
        wanted.any(|(_, value)| see(value))
    })
}

fn split(pair: &[u8]) -> (&[u8], &[u8]) {
    let at = pair.iter().position(|b| *b == b'=');
    match at.and_then(|at| Some((pair.get(..at)?, pair.get(at + 1..)?))) {
        Some((name, value)) => (name.trim_ascii_end(), value.trim_ascii_start()),
        None => (b"", pair),
    }
}
