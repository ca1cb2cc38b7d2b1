//! Reads the head of a request.

use std::borrow::Cow;

use super::{
    Authority, Body, Field, Fields, HeadError, Limits, PathDoubt, Persistence, Scan, Scanned, Target,
    Version,
    connection::Options,
    connection_auth, cookie,
    fields::{Known, has_doubtful_tab},
    framing::{Framing, decimal},
    path, readings, text,
};

/// Request without its body. It borrows the bytes it was read from.
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
    /// True if the head has something that must not be sent on as it is, and that its fields do not show.
    pub(super) is_untidy: bool,
}

/// Properties of a request that are needed to read its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestKind {
    /// True for HEAD: the reply has no body, even if its fields announce one.
    pub is_head: bool,
    /// True if the client asked for another protocol, so the server may answer 101.
    pub upgrades: bool,
    /// Version of the client: one of HTTP/1.0 gets neither 1xx replies nor chunks.
    pub version: Version,
}

impl RequestKind {
    /// Kind of a GET with HTTP/1.1.
    pub const USUAL: RequestKind = RequestKind {
        is_head: false,
        upgrades: false,
        version: Version::Http11,
    };
}

impl<'b> RequestHead<'b> {
    /// Reads a head: all the bytes that [`Scan::find`] found to be one.
    ///
    /// # Errors
    /// The error of the head, and by [`HeadError::status`] the status of the answer to the client. `bytes` that are not
    /// exactly one head are a [`HeadError::StartLine`].
    pub fn parse(bytes: &'b [u8], limits: &Limits) -> Result<RequestHead<'b>, HeadError> {
        let mut scan = Scan::request();
        scan.find(bytes, limits)?;
        RequestHead::read(bytes, scan.scanned().ok_or(HeadError::StartLine)?, limits)
    }

    /// Reads a head whose end was found already: the first [`Scanned::length`] bytes of those that [`Scan::find`] was
    /// given, and its result.
    ///
    /// # Errors
    /// Those of [`RequestHead::parse`].
    pub fn read(bytes: &'b [u8], scanned: Scanned, limits: &Limits) -> Result<RequestHead<'b>, HeadError> {
        let (first, lines) = scanned.lines(true, bytes).ok_or(HeadError::StartLine)?;
        let raw = bytes.get(scanned.start()..).unwrap_or_default();
        let (method, raw_target, version) = request_line(first)?;
        let target = Target::parse(raw_target.as_bytes(), method)?;
        let fields = Fields::parse(lines, limits)?;
        if method == "CONNECT" {
            return Err(HeadError::Connect);
        }
        let authority = authority(&target, &fields, version)?;
        let path = target.raw_path().map(path::normalise).transpose()?;
        let framing = Framing::of(&fields, version)?;
        let options = Options::of(&fields)?;
        let is_old = version == Version::Http10;
        let expected = expectation(&fields)?;
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
            expects_continue: expected.is_some() && !is_old,
            is_untidy: expected == Some(Written::Oddly)
                || !first.ends_with(version.as_str().as_bytes())
                || has_doubtful_tab(lines),
            fields,
        })
    }

    /// Returns the bytes of the head, without empty lines before it.
    pub fn raw(&self) -> &'b [u8] {
        self.raw
    }

    /// Returns the method: a token, case-sensitive.
    pub fn method(&self) -> &'b str {
        self.method
    }

    /// Returns the target, in its form.
    pub fn target(&self) -> Target<'b> {
        self.target
    }

    /// Returns the target as the client wrote it: visible ASCII without `#`.
    pub fn raw_target(&self) -> &'b str {
        self.raw_target
    }

    /// Returns the version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the fields.
    pub fn fields(&self) -> &Fields<'b> {
        &self.fields
    }

    /// Returns the requested host and port: the target's if that has one, or the Host field's. `None` in HTTP/1.0 only.
    pub fn authority(&self) -> Option<Authority<'b>> {
        self.authority
    }

    /// Returns the path for rules to compare: unreserved characters decoded (RFC 3986 section 6.2.2), digits of
    /// triplets in upper case, without dot segments; `//` and `%2F` are left. `None` for `OPTIONS *`.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Lists the readings of the path by more liberal servers: each differs from [`RequestHead::path`]. Mostly none.
    ///
    /// # Errors
    /// The readings cannot be listed: there are too many, or they are unknown.
    pub fn other_paths(&self) -> Result<Vec<String>, PathDoubt> {
        self.target.raw_path().map_or(Ok(Vec::new()), readings::readings)
    }

    /// Returns the query behind the question mark, as the client wrote it, if there is one.
    pub fn query(&self) -> Option<&'b str> {
        self.target.query()
    }

    /// Returns the text behind the last dot of the path's last segment, in the case in which it was written.
    pub fn extension(&self) -> Option<&str> {
        path::extension(self.path()?)
    }

    /// Returns names and values of the cookies, in their order, without the blanks around them; a piece without an
    /// equals sign is a value without a name.
    pub fn cookies(&self) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + '_ {
        cookie::cookies(&self.fields)
    }

    /// Returns the value of the first cookie of this name (case-sensitive).
    pub fn cookie(&self, name: &str) -> Option<&'b [u8]> {
        self.cookies()
            .find(|(n, _)| *n == name.as_bytes())
            .map(|(_, value)| value)
    }

    /// Returns how the end of its body is determined; never [`Body::UntilClose`].
    pub fn body(&self) -> Body {
        self.framing.body.unwrap_or(Body::None)
    }

    /// Returns whether the client sends another request after this one.
    pub fn persistence(&self) -> Persistence {
        self.options.persistence(self.version)
    }

    /// Returns whether the client waits for `100 Continue` before it sends the body (RFC 9110 section 10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Returns whether its credentials authenticate the connection: all later requests on it are the client's then.
    pub fn authenticates_connection(&self) -> bool {
        connection_auth::is_in(&self.fields, Known::Credentials)
    }

    /// Returns how many intermediaries may still forward the request: of TRACE and OPTIONS only, if there is one such
    /// field with a decimal number (RFC 9110 section 7.6.2). 0: it must be answered here.
    pub fn max_forwards(&self) -> Option<u64> {
        let mut given = self.fields.known(Known::MaxForwards);
        let (Some(text), None, "TRACE" | "OPTIONS") = (given.next(), given.next(), self.method) else {
            return None;
        };
        decimal(text)
    }

    /// Returns whether a field has an underscore in its name. A server that hands fields to programs reads it as the
    /// one with a hyphen (RFC 3875 section 4.1.18).
    pub fn has_underscores(&self) -> bool {
        self.fields.iter().any(Field::has_underscore)
    }

    /// Removes the fields with an underscore in their names, as if the client had not sent them.
    pub fn drop_underscores(&mut self) {
        self.is_untidy |= self.has_underscores();
        self.fields.retain(|field| !field.has_underscore());
    }

    /// Returns the protocols that the client asks for, as the client wrote them. Never `h2c`: it would carry requests
    /// past the switch. `None` in HTTP/1.0, and beside a body.
    pub fn upgrade(&self) -> Option<&'b str> {
        self.upgrade
    }

    /// Returns the properties that are needed to read the reply.
    pub fn kind(&self) -> RequestKind {
        RequestKind {
            is_head: self.method == "HEAD",
            upgrades: self.upgrade.is_some(),
            version: self.version,
        }
    }
}

/// Reads method, target and version, with one space between them (RFC 9112 section 3).
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

/// Returns the authority: one Host field in HTTP/1.1, never two; the authority of the target wins (RFC 9112 section
/// 3.2).
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

/// Form of an expression that can be written in several ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// The form in which it is sent on.
    Plainly,
    Oddly,
}

/// Reads Expect. The one expectation may be there several times; others are refused (417), as servers do not agree
/// about them (RFC 9110 section 10.1.1).
fn expectation(fields: &Fields<'_>) -> Result<Option<Written>, HeadError> {
    let mut found = None;
    for line in fields.known(Known::Expect) {
        for expectation in text::list(line) {
            if !expectation.eq_ignore_ascii_case(b"100-continue") {
                return Err(HeadError::Expectation);
            }
            found = Some(match found {
                None => Written::Plainly,
                Some(_) => Written::Oddly,
            });
        }
    }
    Ok(found)
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
