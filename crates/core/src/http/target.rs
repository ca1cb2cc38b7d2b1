//! Reads the four forms of a target (RFC 9112 section 3.2).

use super::{Authority, HeadError};

/// Target of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'b> {
    /// `/path?query`: the form that servers get.
    Origin {
        /// Path from the first slash up to the question mark, as the client wrote it.
        path: &'b str,
        /// Query behind the question mark, if there is one.
        query: Option<&'b str>,
    },
    /// `http://host/path?query`: the form that proxies get, and every server has to understand.
    Absolute {
        /// True if the scheme is https.
        https: bool,
        /// Authority, which wins over the Host field.
        authority: Authority<'b>,
        /// Path as the client wrote it; may be empty.
        path: &'b str,
        /// Query behind the question mark, if there is one.
        query: Option<&'b str>,
    },
    /// `host:port`, of CONNECT only.
    Authority(Authority<'b>),
    /// `*`, of OPTIONS only.
    Asterisk,
}

impl<'b> Target<'b> {
    /// Reads the target of a request with this method.
    pub(super) fn parse(bytes: &'b [u8], method: &str) -> Result<Target<'b>, HeadError> {
        // A target has no fragment (RFC 9112 section 3.2), and a URI has only visible ASCII.
        if !bytes.iter().all(|b| b.is_ascii_graphic() && *b != b'#') {
            return Err(HeadError::Target);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| HeadError::Target)?;
        if method == "CONNECT" {
            return match Authority::parse(bytes) {
                Ok(authority) if authority.port().is_some() && !authority.host().is_empty() => {
                    Ok(Target::Authority(authority))
                }
                _ => Err(HeadError::Target),
            };
        }
        if text.starts_with('/') {
            let (path, query) = split_query(text);
            return Ok(Target::Origin { path, query });
        }
        match text {
            "*" if method == "OPTIONS" => Ok(Target::Asterisk),
            _ => Target::absolute(text),
        }
    }

    fn absolute(text: &'b str) -> Result<Target<'b>, HeadError> {
        let (scheme, rest) = text.split_once("://").ok_or(HeadError::Target)?;
        let https = scheme.eq_ignore_ascii_case("https");
        if !https && !scheme.eq_ignore_ascii_case("http") {
            return Err(HeadError::Target);
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let authority = Authority::parse(&rest.as_bytes()[..end])?;
        if authority.host().is_empty() {
            return Err(HeadError::Host);
        }
        let (path, query) = split_query(&rest[end..]);
        Ok(Target::Absolute {
            https,
            authority,
            path,
            query,
        })
    }

    /// Returns the path as the client wrote it, if there is one in this form; may be empty in an absolute one.
    pub fn raw_path(&self) -> Option<&'b str> {
        match self {
            Target::Origin { path, .. } | Target::Absolute { path, .. } => Some(path),
            Target::Authority(_) | Target::Asterisk => None,
        }
    }

    /// Returns the query behind the question mark, if there is one.
    pub fn query(&self) -> Option<&'b str> {
        match self {
            Target::Origin { query, .. } | Target::Absolute { query, .. } => *query,
            Target::Authority(_) | Target::Asterisk => None,
        }
    }
}

fn split_query(text: &str) -> (&str, Option<&str>) {
    match text.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (text, None),
    }
}
