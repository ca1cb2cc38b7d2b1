//! Reads the fields of a head.

use memchr::memchr;

use super::{HeadError, Limits};

/// Field line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'b> {
    /// Name as the peer wrote it: a token.
    pub name: &'b str,
    /// Value without the blanks around it. No control characters but tabs; bytes beyond ASCII are possible (RFC 9110
    /// section 5.5).
    pub value: &'b [u8],
    pub(super) known: Known,
}

/// Fields that this crate uses, so that a name is compared once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// WWW-Authenticate, Proxy-Authenticate.
    Challenge,
    Connection,
    ContentLength,
    Cookie,
    /// Authorization, Proxy-Authorization.
    Credentials,
    Date,
    Expect,
    Forwarded,
    Host,
    Http2Settings,
    KeepAlive,
    MaxForwards,
    ProxyConnection,
    Te,
    TransferEncoding,
    Upgrade,
    XForwardedFor,
    XForwardedHost,
    XForwardedProto,
    Other,
}

impl Field<'_> {
    pub(super) fn has_underscore(&self) -> bool {
        self.name.contains('_')
    }
}

impl Known {
    fn of(name: &str) -> Known {
        let candidates: &[(&str, Known)] = match name.len() {
            2 => &[("te", Known::Te)],
            4 => &[("host", Known::Host), ("date", Known::Date)],
            6 => &[("cookie", Known::Cookie), ("expect", Known::Expect)],
            7 => &[("upgrade", Known::Upgrade)],
            9 => &[("forwarded", Known::Forwarded)],
            10 => &[
                ("connection", Known::Connection),
                ("keep-alive", Known::KeepAlive),
            ],
            12 => &[("max-forwards", Known::MaxForwards)],
            13 => &[("authorization", Known::Credentials)],
            14 => &[
                ("content-length", Known::ContentLength),
                ("http2-settings", Known::Http2Settings),
            ],
            15 => &[("x-forwarded-for", Known::XForwardedFor)],
            16 => &[
                ("proxy-connection", Known::ProxyConnection),
                ("www-authenticate", Known::Challenge),
                ("x-forwarded-host", Known::XForwardedHost),
            ],
            17 => &[
                ("transfer-encoding", Known::TransferEncoding),
                ("x-forwarded-proto", Known::XForwardedProto),
            ],
            18 => &[("proxy-authenticate", Known::Challenge)],
            19 => &[("proxy-authorization", Known::Credentials)],
            _ => &[],
        };
        let found = candidates
            .iter()
            .find(|(known, _)| name.eq_ignore_ascii_case(known));
        found.map_or(Known::Other, |(_, known)| *known)
    }
}

/// Fields of a head, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields<'b>(Vec<Field<'b>>);

/// Number of fields that few heads exceed.
const USUAL: usize = 32;

impl<'b> Fields<'b> {
    /// Reads the fields behind the start line, up to and with the empty line; [`super::Scan`] has checked that lines
    /// end with CR LF.
    pub(super) fn parse(bytes: &'b [u8], limits: &Limits) -> Result<Fields<'b>, HeadError> {
        let mut few = [httparse::EMPTY_HEADER; USUAL];
        match httparse::parse_headers(bytes, &mut few) {
            Err(httparse::Error::TooManyHeaders) if limits.fields > USUAL => {
                let mut many = vec![httparse::EMPTY_HEADER; limits.fields];
                Fields::collect(bytes, httparse::parse_headers(bytes, &mut many))
            }
            parsed => Fields::collect(bytes, parsed),
        }
    }

    fn collect(
        bytes: &[u8],
        parsed: httparse::Result<(usize, &[httparse::Header<'b>])>,
    ) -> Result<Fields<'b>, HeadError> {
        let fields = match parsed {
            Ok(httparse::Status::Complete((length, fields))) if length == bytes.len() => fields,
            Ok(_) => return Err(HeadError::StartLine),
            Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooManyFields),
            Err(httparse::Error::HeaderValue) => return Err(HeadError::FieldValue),
            Err(httparse::Error::NewLine) => return Err(HeadError::BareCarriageReturn),
            Err(_) => return Err(HeadError::FieldName),
        };
        let field = |f: &httparse::Header<'b>| Field {
            name: f.name,
            value: f.value,
            known: Known::of(f.name),
        };
        Ok(Fields(fields.iter().map(field).collect()))
    }

    /// Returns all fields, in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, Field<'b>> {
        self.0.iter()
    }

    /// Returns the values of the fields of this name, in any case of its letters.
    pub fn values<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'b [u8]> + 'f {
        self.0
            .iter()
            .filter(move |f| f.name.eq_ignore_ascii_case(name))
            .map(|f| f.value)
    }

    /// Returns the value of the first field of this name.
    pub fn first(&self, name: &str) -> Option<&'b [u8]> {
        self.0
            .iter()
            .find(|f| f.name.eq_ignore_ascii_case(name))
            .map(|f| f.value)
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&Field<'b>) -> bool) {
        self.0.retain(keep);
    }

    pub(super) fn known(&self, known: Known) -> impl Iterator<Item = &'b [u8]> + '_ {
        self.0.iter().filter(move |f| f.known == known).map(|f| f.value)
    }
}

/// Returns true if a line on which the end of a body or the host depends has a tab, which some recipients take for a part of the
/// value.
pub(super) fn has_doubtful_tab(lines: &[u8]) -> bool {
    let is_doubtful = |line: &[u8]| {
        let name = line.split(|b| *b == b':').next().unwrap_or_default();
        let known = std::str::from_utf8(name).map_or(Known::Other, Known::of);
        let matters = matches!(
            known,
            Known::ContentLength | Known::TransferEncoding | Known::Host
        );
        matters && memchr(b'\t', line).is_some()
    };
    memchr(b'\t', lines).is_some() && lines.split(|b| *b == b'\n').any(is_doubtful)
}

impl<'f, 'b> IntoIterator for &'f Fields<'b> {
    type Item = &'f Field<'b>;
    type IntoIter = std::slice::Iter<'f, Field<'b>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
