//! The head of a request.

use std::borrow::Cow;

use super::{
    Authority, Body, Fields, HeadError, Limits, Persistence, Scan, Scanned, Target, Version,
    connection::Options, cookie, fields::Known, framing::Framing, path, text,
};

/// A request without its body. It borrows the bytes it was read from.
#[derive(Debug, Clone)]
pub struct RequestHead<'b> {
    pub(super) raw: &'b [u8],
    pub(super) method: &'b str,
    pub(super) target: Target<'b>,
    raw_target: &'b str,
    pub(super) version: Version,
    pub(super) fields: Fields<'b>,
    authority: Option<Authority<'b>>,
    path: Option<Cow<'b, str>>,
    pub(super) framing: Framing,
    pub(super) options: Options,
    upgrade: Option<&'b str>,
    expects_continue: bool,
}

/// What has to be known of a request to read its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestKind {
    /// HEAD: the reply has no body, whatever its fields say.
    pub is_head: bool,
    /// Another protocol was asked for, so the server may answer 101.
    pub upgrades: bool,
    /// The client's version: one of HTTP/1.0 gets neither 1xx replies nor chunks.
    pub version: Version,
}

impl RequestKind {
    /// Of a GET with HTTP/1.1.
    pub const USUAL: RequestKind = RequestKind {
        is_head: false,
        upgrades: false,
        version: Version::Http11,
    };
}

impl<'b> RequestHead<'b> {
    /// Reads a head: all the bytes that [`Scan::find`] said are one.
    ///
    /// # Errors
    /// What is wrong with it, and by [`HeadError::status`] what the client is to be answered. `bytes` that are not exactly one
    /// head are a [`HeadError::StartLine`].
    pub fn parse(bytes: &'b [u8], limits: &Limits) -> Result<RequestHead<'b>, HeadError> {
        let mut scan = Scan::request();
        scan.find(bytes, limits)?;
        RequestHead::read(bytes, scan.scanned().ok_or(HeadError::StartLine)?, limits)
    }

    /// The same of a head that was looked for already: the first [`Scanned::length`] bytes of those that [`Scan::find`] was given, and
    /// what it found.
    ///
    /// # Errors
    /// As there.
    pub fn read(bytes: &'b [u8], scanned: Scanned, limits: &Limits) -> Result<RequestHead<'b>, HeadError> {
        let (first, fields) = scanned.lines(true, bytes).ok_or(HeadError::StartLine)?;
        let raw = bytes.get(scanned.start()..).unwrap_or_default();
        let (method, raw_target, version) = request_line(first)?;
        let target = Target::parse(raw_target.as_bytes(), method)?;
        let fields = Fields::parse(fields, limits)?;
        if method == "CONNECT" {
            return Err(HeadError::Connect);
        }
        let authority = authority(&target, &fields, version)?;
        let path = target.raw_path().map(path::normalise).transpose()?;
        let framing = Framing::of(&fields, version)?;
        let options = Options::of(&fields)?;
        let is_old = version == Version::Http10;
        let may_upgrade = options.upgrade && !is_old && framing.body.is_none_or(Body::is_empty);
        Ok(RequestHead {
            raw,
            method,
            target,
            raw_target,
            version,
            authority,
            path,
            framing,
            options,
            upgrade: if may_upgrade { upgrade(&fields) } else { None },
            expects_continue: expects_continue(&fields)? && !is_old,
            fields,
        })
    }

    /// The bytes of the head, without empty lines before it.
    pub fn raw(&self) -> &'b [u8] {
        self.raw
    }

    /// The method: a token, case-sensitive.
    pub fn method(&self) -> &'b str {
        self.method
    }

    /// The target, in its form.
    pub fn target(&self) -> Target<'b> {
        self.target
    }

    /// The target as the client wrote it: visible ASCII without `#`.
    pub fn raw_target(&self) -> &'b str {
        self.raw_target
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The fields.
    pub fn fields(&self) -> &Fields<'b> {
        &self.fields
    }

    /// The host and port it is for: the target's if that has one, or the Host field's. `None` in HTTP/1.0 only.
    pub fn authority(&self) -> Option<Authority<'b>> {
        self.authority
    }

    /// The path for rules to compare: unreserved characters decoded (RFC 3986 section 6.2.2), digits of triplets in upper
    /// case, without dot segments; `//` and `%2F` are left. `None` for `OPTIONS *`.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// What follows the question mark, as the client wrote it, if there is one.
    pub fn query(&self) -> Option<&'b str> {
        self.target.query()
    }

    /// What follows the last dot of the path's last segment, in the case it was written in.
    pub fn extension(&self) -> Option<&str> {
        path::extension(self.path()?)
    }

    /// Names and values of the cookies, in their order, blanks around them taken off; a piece without an equals sign is a value without
    /// a name.
    pub fn cookies(&self) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + '_ {
        cookie::cookies(&self.fields)
    }

    /// The value of the first cookie of this name (case-sensitive).
    pub fn cookie(&self, name: &str) -> Option<&'b [u8]> {
        self.cookies()
            .find(|(n, _)| *n == name.as_bytes())
            .map(|(_, value)| value)
    }

    /// How the end of its body is known; never [`Body::UntilClose`].
    pub fn body(&self) -> Body {
        self.framing.body.unwrap_or(Body::None)
    }

    /// Whether the client sends another request after this one.
    pub fn persistence(&self) -> Persistence {
        self.options.persistence(self.version)
    }

    /// Whether the client waits for `100 Continue` before it sends the body (RFC 9110 section 10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// The protocols it asks for, as the client wrote them. Never `h2c`: it would carry requests past the switch. None in
    /// HTTP/1.0, nor beside a body.
    pub fn upgrade(&self) -> Option<&'b str> {
        self.upgrade
    }

    /// What has to be known to read the reply.
    pub fn kind(&self) -> RequestKind {
        RequestKind {
            is_head: self.method == "HEAD",
            upgrades: self.upgrade.is_some(),
            version: self.version,
        }
    }
}

/// Method, target and version, with one space between them (RFC 9112 section 3).
fn request_line(line: &[u8]) -> Result<(&str, &str, Version), HeadError> {
    let mut parts = line.split(|b| *b == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(HeadError::StartLine);
    };
    if !text::is_token(method) {
        return Err(HeadError::Method);
    }
    let method = std::str::from_utf8(method).map_err(|_| HeadError::Method)?;
    let target = std::str::from_utf8(target).map_err(|_| HeadError::Target)?;
    Ok((method, target, Version::parse(version)?))
}

/// RFC 9112 section 3.2: one Host field in HTTP/1.1, never two; the authority of the target wins.
fn authority<'b>(
    target: &Target<'b>,
    fields: &Fields<'b>,
    version: Version,
) -> Result<Option<Authority<'b>>, HeadError> {
    let mut hosts = fields.known(Known::Host);
    let host = hosts.next().map(Authority::parse).transpose()?;
    if hosts.next().is_some() {
        return Err(HeadError::SeveralHosts);
    }
    if host.is_none() && version == Version::Http11 {
        return Err(HeadError::NoHost);
    }
    Ok(match target {
        Target::Absolute { authority, .. } => Some(*authority),
        _ => host,
    })
}

/// RFC 9110 section 10.1.1. Others are refused (417): servers do not agree what to make of them.
fn expects_continue(fields: &Fields<'_>) -> Result<bool, HeadError> {
    let mut expectations = fields.known(Known::Expect);
    match (expectations.next(), expectations.next()) {
        (None, _) => Ok(false),
        (Some(e), None) if e.eq_ignore_ascii_case(b"100-continue") => Ok(true),
        _ => Err(HeadError::Expectation),
    }
}

fn upgrade<'b>(fields: &Fields<'b>) -> Option<&'b str> {
    let mut protocols = fields.known(Known::Upgrade);
    let (Some(protocol), None) = (protocols.next(), protocols.next()) else {
        return None;
    };
    let is_h2c = text::list_has(protocol, "h2c");
    std::str::from_utf8(protocol)
        .ok()
        .filter(|p| !p.is_empty() && !is_h2c)
}
