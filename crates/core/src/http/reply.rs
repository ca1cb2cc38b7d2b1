//! Reads the head of a reply.

use super::{
    Body, Fields, HeadError, Limits, Persistence, RequestKind, Scan, Scanned, Version,
    connection::Options,
    connection_auth,
    fields::{Known, has_doubtful_tab},
    framing::Framing,
};

/// Reply without its body. It borrows the bytes it was read from.
#[derive(Debug, Clone)]
pub struct ReplyHead<'b> {
    pub(super) raw: &'b [u8],
    pub(super) version: Version,
    pub(super) status: u16,
    pub(super) reason: &'b [u8],
    pub(super) fields: Fields<'b>,
    pub(super) framing: Framing,
    pub(super) options: Options,
    body: Body,
    /// True if its version or a blank must not be sent on as it is.
    pub(super) is_untidy: bool,
}

impl<'b> ReplyHead<'b> {
    /// Reads a head: all the bytes that [`Scan::find`] found to be one. `request` is the one that it answers.
    ///
    /// # Errors
    /// The error of the head: the client gets a 502, and the server's connection must be closed. `bytes` that are not
    /// exactly one head are a [`HeadError::StartLine`].
    pub fn parse(bytes: &'b [u8], request: RequestKind, limits: &Limits) -> Result<ReplyHead<'b>, HeadError> {
        let mut scan = Scan::reply();
        scan.find(bytes, limits)?;
        let scanned = scan.scanned().ok_or(HeadError::StartLine)?;
        ReplyHead::read(bytes, scanned, request, limits)
    }

    /// Reads a head whose end was found already: the first [`Scanned::length`] bytes of those that [`Scan::find`] was
    /// given, and its result.
    ///
    /// # Errors
    /// Those of [`ReplyHead::parse`].
    pub fn read(
        bytes: &'b [u8],
        scanned: Scanned,
        request: RequestKind,
        limits: &Limits,
    ) -> Result<ReplyHead<'b>, HeadError> {
        let (first, lines) = scanned.lines(false, bytes).ok_or(HeadError::StartLine)?;
        let (version, status, reason) = status_line(first)?;
        let fields = Fields::parse(lines, limits)?;
        let framing = Framing::of(&fields, version)?;
        if status == 101 && !request.upgrades {
            return Err(HeadError::UnaskedSwitch);
        }
        // Apply the rules in the order of RFC 9112 section 6.3.
        let body = match (status, framing.body) {
            (100..=199 | 204 | 304, _) => Body::None,
            _ if request.is_head => Body::None,
            // A client of HTTP/1.0 must not get chunks, which it could not read (RFC 9112 section 6.1).
            (_, Some(Body::Chunked)) if request.version == Version::Http10 => {
                return Err(HeadError::CodingInOldVersion);
            }
            (_, Some(body)) => body,
            (_, None) => Body::UntilClose,
        };
        Ok(ReplyHead {
            raw: bytes,
            version,
            status,
            reason,
            body,
            framing,
            options: Options::of(&fields)?,
            fields,
            is_untidy: !first.starts_with(version.as_str().as_bytes()) || has_doubtful_tab(lines),
        })
    }

    /// Returns the bytes of the head.
    pub fn raw(&self) -> &'b [u8] {
        self.raw
    }

    /// Returns the version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the status: 100 to 999.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the reason phrase; often empty.
    pub fn reason(&self) -> &'b [u8] {
        self.reason
    }

    /// Returns the fields.
    pub fn fields(&self) -> &Fields<'b> {
        &self.fields
    }

    /// Returns how the end of its body is determined.
    pub fn body(&self) -> Body {
        self.body
    }

    /// Returns whether another reply to the same request follows: 1xx except 101 (RFC 9110 section 15.2). A client of
    /// HTTP/1.0 does not get them.
    pub fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// Returns whether a challenge in it authenticates the connection: all later requests on it are the client's then.
    pub fn authenticates_connection(&self) -> bool {
        connection_auth::is_in(&self.fields, Known::Challenge)
    }

    /// Returns whether the connection is no longer HTTP after this head, both ways (RFC 9110 section 15.2.2).
    pub fn switches(&self) -> bool {
        self.status == 101
    }

    /// Returns whether the server's connection can carry another request after this reply.
    pub fn persistence(&self) -> Persistence {
        // Some servers send a length even if there cannot be a body.
        let is_doubtful =
            matches!(self.status, 100..=199 | 204) && self.framing.body.is_some_and(|body| !body.is_empty());
        match self.body {
            _ if self.switches() || is_doubtful => Persistence::Close,
            Body::UntilClose => Persistence::Close,
            _ => self.options.persistence(self.version),
        }
    }
}

/// Reads version, status and reason (RFC 9112 section 4). The space before an empty reason is often left out.
fn status_line(line: &[u8]) -> Result<(Version, u16, &[u8]), HeadError> {
    let (version, rest) = line.split_at_checked(8).ok_or(HeadError::StartLine)?;
    let version = Version::parse(version)?;
    let ([b' ', digits @ ..], reason) = rest.split_at_checked(4).ok_or(HeadError::StartLine)? else {
        return Err(HeadError::StartLine);
    };
    let status = digits.iter().try_fold(0_u16, |n, b| {
        b.is_ascii_digit().then(|| n * 10 + u16::from(b - b'0'))
    });
    let status = status.filter(|s| *s >= 100).ok_or(HeadError::StartLine)?;
    let reason = match reason {
        [] => reason,
        [b' ', reason @ ..] => reason,
        _ => return Err(HeadError::StartLine),
    };
    match reason.iter().all(|b| !b.is_ascii_control() || *b == b'\t') {
        true => Ok((version, status, reason)),
        false => Err(HeadError::StartLine),
    }
}
