//! Parses a request that is given on the command line.

use std::net::IpAddr;

use longsplice_core::http::{Authority, HeadError, Limits, RequestHead};

/// A request to be explained. It is converted into the head that a client would send, so that it is read as the daemon
/// reads it.
#[derive(Debug)]
pub(super) struct Asked {
    url: String,
    https: bool,
    host: String,
    port: Option<u16>,
    bytes: Vec<u8>,
}

impl Asked {
    /// Parses `METHOD URL` or `URL`, and header fields `NAME: VALUE`. A URL without a scheme is one of HTTP; a URL that
    /// begins with a slash has no host.
    pub(super) fn read(text: &str, fields: &[String]) -> Result<Asked, String> {
        let mut words = text.split_ascii_whitespace();
        let (method, url) = match (words.next(), words.next(), words.next()) {
            (Some(url), None, _) => ("GET", url),
            (Some(method), Some(url), None) => (method, url),
            _ => {
                return Err(format!(
                    "`{}` is no request: write such as 'GET http://www.example/path?query'",
                    text.escape_debug()
                ));
            }
        };
        let (https, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, _)) if !scheme.contains(['/', '?']) => {
                return Err(format!(
                    "`{scheme}` is not read here: write a URL of http or https"
                ));
            }
            _ => (false, url),
        };
        // Remove the fragment, which a client does not send.
        let rest = rest.split('#').next().unwrap_or_default();
        let (host, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let authority = Authority::parse(host.as_bytes());
        let authority = authority.map_err(|_| format!("`{host}` in {url} is no host"))?;
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Asked {
            url: url.to_owned(),
            https,
            host: authority.host().to_owned(),
            port: authority.port(),
            bytes: head(method, host, &format!("{slash}{target}"), fields)?,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the port that a client would connect to.
    pub(super) fn port(&self) -> u16 {
        self.port.unwrap_or(if self.https { 443 } else { 80 })
    }

    /// Returns the address that a client would connect to, if the host is an address.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.host.trim_matches(['[', ']']).parse().ok()
    }

    /// Returns the name that a client would put into its ClientHello; an address is none (RFC 6066 section 3).
    pub(super) fn name_for_sni(&self) -> Option<&str> {
        let named = self.https && !self.host.is_empty() && self.address().is_none();
        named.then_some(self.host.trim_end_matches('.'))
    }

    pub(super) fn head(&self) -> Result<RequestHead<'_>, String> {
        RequestHead::parse(&self.bytes, &Limits::default()).map_err(|e: HeadError| {
            format!(
                "{} asks for something that is answered with {} before any route is looked at: {e}",
                self.url,
                e.status()
            )
        })
    }
}

fn head(method: &str, host: &str, target: &str, fields: &[String]) -> Result<Vec<u8>, String> {
    let mut has_host = false;
    let mut lines = String::new();
    for field in fields {
        let Some((name, value)) = field.split_once(':') else {
            return Err(format!(
                "`{}` is no header field: write 'Name: value'",
                field.escape_debug()
            ));
        };
        if field.contains(['\r', '\n']) {
            return Err(format!(
                "`{}` has a line break, which no header field can have",
                field.escape_debug()
            ));
        }
        has_host |= name.eq_ignore_ascii_case("host");
        lines.push_str(&format!("{name}: {}\r\n", value.trim()));
    }
    // Use HTTP/1.0 without a host: only that version permits it.
    let (version, own) = match (host.is_empty(), has_host) {
        (_, true) => ("HTTP/1.1", String::new()),
        (false, false) => ("HTTP/1.1", format!("Host: {host}\r\n")),
        (true, false) => ("HTTP/1.0", String::new()),
    };
    Ok(format!("{method} {target} {version}\r\n{own}{lines}\r\n").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_becomes_the_head_of_one() {
        for (text, fields, head) in [
            (
                "GET http://a.test:81/x?y#z",
                &[][..],
                "GET /x?y HTTP/1.1\r\nHost: a.test:81\r\n\r\n",
            ),
            ("https://a.test", &[], "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"),
            ("a.test?q", &[], "GET /?q HTTP/1.1\r\nHost: a.test\r\n\r\n"),
            ("  POST   /x ", &[], "POST /x HTTP/1.0\r\n\r\n"),
            (
                "http://127.0.0.1/",
                &["host:b.test", "Cookie: a=b: c"],
                "GET / HTTP/1.1\r\nhost: b.test\r\nCookie: a=b: c\r\n\r\n",
            ),
            ("http://[::1]:8/", &[], "GET / HTTP/1.1\r\nHost: [::1]:8\r\n\r\n"),
        ] {
            let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
            let asked = Asked::read(text, &fields).unwrap();
            assert_eq!(String::from_utf8(asked.bytes.clone()).unwrap(), head);
            asked.head().unwrap();
        }
        let asked = Asked::read("http://[::1]:8/", &[]).unwrap();
        assert_eq!((asked.address(), asked.port()), (Some("::1".parse().unwrap()), 8));
        let asked = Asked::read("https://www.test./", &[]).unwrap();
        assert_eq!((asked.name_for_sni(), asked.port()), (Some("www.test"), 443));
    }

    #[test]
    fn what_is_no_request_is_explained() {
        for (text, field, says) in [
            ("", "a: b", "is no request"),
            ("GET http://a b", "a: b", "is no request"),
            ("ftp://a/", "a: b", "http or https"),
            ("http://a b@c/", "a: b", "is no host"),
            ("http://a@b/", "a: b", "is no host"),
            ("http://a/", "Cookie", "write 'Name: value'"),
            ("http://a/", "a: b\r\nc: d", "has a line break"),
            ("http://a/%zz", "a: b", "answered with 400"),
            ("http://a/", "a b: c", "answered with 400"),
            ("http://a/", "Transfer-Encoding: x, chunked", "answered with 501"),
        ] {
            let asked = Asked::read(text, &[field.to_owned()]);
            let error = asked.and_then(|asked| asked.head().map(|_| ())).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
