//! Replies of our own: errors and redirects.

use std::{fmt::Write, time::SystemTime};

use super::{Persistence, Version};

/// A reply that no server gave. Its body is plain text for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The status: 300 to 599.
    pub status: u16,
    /// What was wrong, and what to do about it: becomes the body. Line breaks and control characters become spaces.
    pub why: &'a str,
    /// Where to go instead: a URI, of a redirect. Bytes that no URI has are percent-encoded.
    pub location: Option<&'a str>,
    /// In how many seconds it is worth trying again, of a 503.
    pub retry_after: Option<u32>,
}

/// Whom an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerTo {
    /// HEAD: there is no body, and Content-Length says how long it would be.
    pub is_head: bool,
    /// Whether the client's connection is kept. Never after a head that could not be read.
    pub persistence: Persistence,
    /// The version of the client's request, or HTTP/1.1 if it could not be read.
    pub version: Version,
    /// The time, for Date (RFC 9110 section 6.6.1); a time before 1970 or after 9999 is left out.
    pub now: SystemTime,
}

impl<'a> Answer<'a> {
    /// An answer with this status and explanation.
    pub fn new(status: u16, why: &'a str) -> Answer<'a> {
        Answer {
            status,
            why,
            location: None,
            retry_after: None,
        }
    }

    /// A permanent redirect that keeps method and body (RFC 9110 section 15.4.9).
    pub fn redirect(location: &'a str) -> Answer<'a> {
        Answer {
            location: Some(location),
            ..Answer::new(308, "what you asked for is at the address in Location")
        }
    }

    /// The whole reply: head, and body unless it is for a HEAD.
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

/// Blanks, control characters and what else a URI cannot have; beyond ASCII all are encoded.
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

fn http_date(now: SystemTime) -> Option<httpdate::HttpDate> {
    // The year 10000: httpdate panics from there on.
    const END: u64 = 253_402_300_800;
    let since = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    (since.as_secs() < END).then(|| now.into())
}

/// The reason phrase of a status (RFC 9110 section 15, RFC 6585).
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
