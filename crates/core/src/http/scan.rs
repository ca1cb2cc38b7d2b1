//! Where a head ends.

use memchr::memchr;

use super::{HeadError, Limits, text::is_token_byte};

/// What clients send that speak HTTP/2 without asking (RFC 9113 section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How many empty lines may stand before a request. RFC 9112 section 2.2 speaks of one at least: old clients send a CR LF
/// after the body of a POST.
const MOST_EMPTY_LINES: usize = 4;

/// What [`Scan::find`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The head is not whole yet.
    NeedMore,
    /// So many bytes are the head: with its empty line, and with empty lines before a request.
    Head(usize),
    /// The client speaks HTTP/2 without asking (RFC 9113 section 3.3); its preface is the first 24 bytes.
    Http2,
}

/// A head whose end a [`Scan`] has found, so that nobody has to look for it again: [`RequestHead::read`](super::RequestHead::read),
/// [`ReplyHead::read`](super::ReplyHead::read).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scanned {
    is_request: bool,
    start: usize,
    fields: usize,
    length: usize,
}

impl Scanned {
    /// How many bytes are the head, with its empty line, and with empty lines before a request.
    pub fn length(self) -> usize {
        self.length
    }

    /// The first line without its end, and the field lines with the empty one, of the bytes it was found in; `None`: they are others.
    pub(super) fn lines(self, is_request: bool, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let is_it =
            self.is_request == is_request && bytes.len() == self.length && bytes.ends_with(b"\r\n\r\n");
        let (first, fields) = bytes.split_at_checked(self.fields).filter(|_| is_it)?;
        Some((first.get(self.start..)?.strip_suffix(b"\r\n")?, fields))
    }

    /// Where the first line begins.
    pub(super) fn start(self) -> usize {
        self.start
    }
}

/// Looks for the end of one head while it comes in, and looks at each byte once.
#[derive(Debug, Clone)]
pub struct Scan {
    is_request: bool,
    /// Where the first line begins, …
    start: usize,
    /// … and the second one.
    fields: usize,
    /// Where the head ends, once that was found.
    end: Option<usize>,
    /// Where the line begins that is not whole yet, …
    line: usize,
    /// … and what of it is known to have no line feed.
    seen: usize,
    lines: usize,
    empty_lines: usize,
}

impl Scan {
    /// For the head of a request: empty lines before it are passed over.
    pub fn request() -> Scan {
        Scan {
            is_request: true,
            start: 0,
            fields: 0,
            end: None,
            line: 0,
            seen: 0,
            lines: 0,
            empty_lines: 0,
        }
    }

    /// For the head of a reply.
    pub fn reply() -> Scan {
        Scan {
            is_request: false,
            ..Scan::request()
        }
    }

    /// Whether a message has begun: something else than empty lines has come. `false` is a connection between two
    /// requests.
    pub fn has_begun(&self) -> bool {
        self.lines > 0 || self.seen > self.line
    }

    /// Looks on. `bytes` is all that came since the last message, what was given before included.
    ///
    /// # Errors
    /// A bare line feed, a first byte that no head has, or more than the limits allow.
    pub fn find(&mut self, bytes: &[u8], limits: &Limits) -> Result<Found, HeadError> {
        loop {
            if self.lines == 0 {
                self.check_first(bytes)?;
            }
            let unseen = bytes.get(self.seen..).unwrap_or_default();
            let Some(feed) = memchr(b'\n', unseen).map(|i| self.seen + i) else {
                self.seen = bytes.len();
                self.check_size(bytes.len(), limits)?;
                return Ok(Found::NeedMore);
            };
            self.seen = feed + 1;
            // The limits first: so it does not matter in what pieces the bytes come.
            self.check_size(self.seen, limits)?;
            let line = match bytes.get(self.line..feed) {
                Some([line @ .., b'\r']) => line,
                _ => return Err(HeadError::BareLineFeed),
            };
            if self.lines == 0 && line.is_empty() {
                self.pass_empty_line()?;
                continue;
            }
            self.line = self.seen;
            if !line.is_empty() {
                if self.lines == 0 {
                    self.check_first_line(line)?;
                    self.fields = self.seen;
                }
                self.lines += 1;
                if self.lines - 1 > limits.fields {
                    return Err(HeadError::TooManyFields);
                }
                continue;
            }
            return Ok(match self.preface(bytes) {
                Some(found) => found,
                None => {
                    self.end = Some(self.seen);
                    Found::Head(self.seen)
                }
            });
        }
    }

    /// The head that [`Scan::find`] found; `None` before.
    pub fn scanned(&self) -> Option<Scanned> {
        let &Scan {
            is_request,
            start,
            fields,
            ..
        } = self;
        self.end.map(|length| Scanned {
            is_request,
            start,
            fields,
            length,
        })
    }

    fn pass_empty_line(&mut self) -> Result<(), HeadError> {
        self.empty_lines += 1;
        if !self.is_request || self.empty_lines > MOST_EMPTY_LINES {
            return Err(HeadError::StartLine);
        }
        self.line = self.seen;
        self.start = self.seen;
        Ok(())
    }

    /// What is not HTTP at all is seen at its first byte, and not when the time for the head is over.
    fn check_first(&self, bytes: &[u8]) -> Result<(), HeadError> {
        match bytes.get(self.start) {
            Some(b'\r') | None => Ok(()),
            Some(b) if is_token_byte(*b) => Ok(()),
            Some(_) => Err(HeadError::StartLine),
        }
    }

    /// Who speaks another protocol in lines is not waited for either: SMTP, SSH.
    fn check_first_line(&self, line: &[u8]) -> Result<(), HeadError> {
        let version = match self.is_request {
            true => line.rsplit(|b| *b == b' ').next().unwrap_or_default(),
            false => line,
        };
        match memchr(b'\r', line) {
            Some(_) => Err(HeadError::BareCarriageReturn),
            None if version.starts_with(b"HTTP/") => Ok(()),
            None => Err(HeadError::StartLine),
        }
    }

    fn check_size(&self, end: usize, limits: &Limits) -> Result<(), HeadError> {
        let length = end.saturating_sub(self.start);
        if self.lines == 0 && length > limits.line.min(limits.head) {
            return Err(HeadError::LineTooLong);
        }
        match length > limits.head {
            true => Err(HeadError::TooLong),
            false => Ok(()),
        }
    }

    /// `PRI * HTTP/2.0` and an empty line could be a head; what follows decides.
    fn preface(&mut self, bytes: &[u8]) -> Option<Found> {
        let bytes = bytes.get(self.start..)?;
        let n = bytes.len().min(HTTP2_PREFACE.len());
        if !self.is_request || bytes.get(..n) != HTTP2_PREFACE.get(..n) {
            return None;
        }
        if n == HTTP2_PREFACE.len() {
            return Some(Found::Http2);
        }
        // The empty line is looked at again.
        self.line -= 2;
        self.seen = self.line;
        Some(Found::NeedMore)
    }
}
