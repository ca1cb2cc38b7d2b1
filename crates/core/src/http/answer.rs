//! Makes replies of our own: errors and redirects.

use std::{fmt::Write, time::SystemTime};

use super::{Persistence, Version};

/// Reply without a server. Its body is plain text for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Status: 200, or 300 to 599.
    pub status: u16,
    /// Error and its remedy, which become the body. Line breaks and control characters become spaces.
    pub why: &'a str,
    /// Destination of a redirect: a URI. Bytes that no URI has are percent-encoded.
    pub location: Option<&'a str>,
    /// Methods that are answered here, for Allow: of a 405, and of an OPTIONS.
    pub allow: Option<&'a str>,
    /// Seconds after which a retry is useful, of a 503.
    pub retry_after: Option<u32>,
}

/// Recipient of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerTo {
    /// True for HEAD: there is no body, and Content-Length has the length that it would have.
    pub is_head: bool,
    /// Persistence of the client's connection. Never keep it after a head that could not be read.
    pub persistence: Persistence,
    /// Version of the client's request, or HTTP/1.1 if it could not be read.
    pub version: Version,
    /// Time for Date (RFC 9110 section 6.6.1); a time before 1970 or after 9999 is left out.
    pub now: SystemTime,
}

impl<'a> Answer<'a> {
    /// Makes an answer with this status and explanation.
    pub fn new(status: u16, why: &'a str) -> Answer<'a> {
        Answer {
            status,
            why,
            location: None,
            allow: None,
            retry_after: None,
        }
    }

    /// Makes a permanent redirect that keeps method and body (RFC 9110 section 15.4.9).
    pub fn redirect(location: &'a str) -> Answer<'a> {
        Answer {
            location: Some(location),
            ..Answer::new(308, "what you asked for is at the address in Location")
        }
    }

    /// Returns the whole reply: head, and body unless it is for a HEAD.
    pub fn to_bytes(&self, to: &AnswerTo) -> Vec<u8> {
        let reason = reason(self.status);
        let why: String = self
            .why
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let body = format!("{} {reason}: {why}\n", self.status);
        let mut out = format!("{} {} {reason}\r\n", Version::Http11.as_str(), self.status);
        // Writing to a string cannot fail.
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(out, "{name}: {value}\r\n");
        };
        if let Some(now) = http_date(to.now) {
            line("Date", &now);
        }
        line("Content-Type", &"text/plain; charset=utf-8");
        line("Content-Length", &body.len());
        line("Cache-Control", &"no-store");
        if let Some(location) = self.location {
            line(
                "Location",
                &percent_encoding::utf8_percent_encode(location, NOT_IN_URIS),
            );
        }
        if let Some(methods) = self.allow {
            line("Allow", &methods);
        }
        if let Some(seconds) = self.retry_after {
            line("Retry-After", &seconds);
        }
        match (to.persistence, to.version) {
            (Persistence::Close, _) => line("Connection", &"close"),
            (Persistence::KeepAlive, Version::Http10) => line("Connection", &"keep-alive"),
            (Persistence::KeepAlive, Version::Http11) => {}
        }
        out.push_str("\r\n");
        if !to.is_head {
            out.push_str(&body);
        }
        out.into_bytes()
    }
}

/// Characters that a URI cannot have: blanks, control characters and others; all characters beyond ASCII are encoded.
const NOT_IN_URIS: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Returns the time in the form of Date; `None` before 1970 and after 9999.
pub(super) fn http_date(now: SystemTime) -> Option<httpdate::HttpDate> {
    // Begin of the year 10000: httpdate panics from there on.
    const END: u64 = 253_402_300_800;
    let since = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    (since.as_secs() < END).then(|| now.into())
}

/// Returns the reason phrase of a status (RFC 9110 section 15, RFC 6585).
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        410 => "Gone",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Answered By The Switch",
    }
}
