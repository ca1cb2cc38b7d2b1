//! Checks a valid request head before the routes are asked: for a session, and for `check --explain`.

use longsplice_core::http::{PathDoubt, RequestHead};

use crate::config::{HttpConfig, Underscores};

/// Reason for answering a request with 400 although its head is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAdmitted {
    /// The listener has `underscores = "refuse"`.
    #[error("a field has an underscore in its name, which some servers take for a hyphen: write a hyphen")]
    Underscore,
    /// The listener has `strict_paths`.
    #[error(transparent)]
    Path(#[from] PathDoubt),
}

/// Removes fields that the listener does not let in, and lists further readings of the path, which the routes are asked
/// about, too. Fails if the listener refuses such a request.
pub(crate) fn admit(http: &HttpConfig, head: &mut RequestHead<'_>) -> Result<Vec<String>, NotAdmitted> {
    match http.underscores {
        Underscores::Pass => {}
        Underscores::Refuse if head.has_underscores() => return Err(NotAdmitted::Underscore),
        Underscores::Refuse | Underscores::Drop => head.drop_underscores(),
    }
    match http.strict_paths {
        true => Ok(head.other_paths()?),
        false => Ok(Vec::new()),
    }
}

/// Returns the status of a request that must not be forwarded because Max-Forwards is 0 (RFC 9110 section 7.6.2): 200
/// for OPTIONS, else 405, because nothing is traced here.
pub(crate) fn ends_here(head: &RequestHead<'_>) -> Option<u16> {
    let is_last = head.max_forwards() == Some(0);
    is_last.then_some(if head.method() == "OPTIONS" { 200 } else { 405 })
}
