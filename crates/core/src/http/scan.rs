//! Finds the end of a head.

use memchr::memchr;

use super::{HeadError, Limits, text::is_token_byte};

/// Preface of clients that speak HTTP/2 without asking (RFC 9113 section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Limit of the empty lines before a request. RFC 9112 section 2.2 recommends one at least: old clients send a CR LF after
/// the body of a POST.
const MOST_EMPTY_LINES: usize = 4;

/// Result of [`Scan::find`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The head is not complete yet.
    NeedMore,
    /// The head has this many bytes: with its empty line, and with empty lines before a request.
    Head(usize),
    /// The client speaks HTTP/2 without asking (RFC 9113 section 3.3); its preface is the first 24 bytes.
    Http2,
}

/// Head whose end a [`Scan`] has found, so that [`RequestHead::read`](super::RequestHead::read) and
/// [`ReplyHead::read`](super::ReplyHead::read) need not search for it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scanned {
    is_request: bool,
    start: usize,
    fields: usize,
    length: usize,
}

impl Scanned {
    /// Returns the bytes of the head, with its empty line, and with empty lines before a request.
    pub fn length(self) -> usize {
        self.length
    }

    /// Returns the first line without its end, and the field lines with the empty one, of the bytes in which they were
    /// found; `None` for other bytes.
    pub(super) fn lines(self, is_request: bool, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let is_it =
            self.is_request == is_request && bytes.len() == self.length && bytes.ends_with(b"\r\n\r\n");
        let (first, fields) = bytes.split_at_checked(self.fields).filter(|_| is_it)?;
        Some((first.get(self.start..)?.strip_suffix(b"\r\n")?, fields))
    }

    /// Returns the offset of the first line.
    pub(super) fn start(self) -> usize {
        self.start
    }
}

/// Searches for the end of one head while it comes in, and reads each byte once.
#[derive(Debug, Clone)]
pub struct Scan {
    is_request: bool,
    /// Offset of the first line.
    start: usize,
    /// Offset of the second line.
    fields: usize,
    /// Length of the head, once its end was found.
    end: Option<usize>,
    /// Offset of the line that is not complete yet.
    line: usize,
    /// End of the part of that line that is known to have no line feed.
    seen: usize,
    lines: usize,
    empty_lines: usize,
}

impl Scan {
    /// Begins with the head of a request: empty lines before it are skipped.
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

    /// Begins with the head of a reply.
    pub fn reply() -> Scan {
        Scan {
            is_request: false,
            ..Scan::request()
        }
    }

    /// Returns whether a message has begun: more than empty lines has come. `false` is a connection between two
    /// requests.
    pub fn has_begun(&self) -> bool {
        self.lines > 0 || self.seen > self.line
    }

    /// Continues the search. `bytes` are all that came since the last message, including those given before.
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
            // Check the limits first, so that the result does not depend on the pieces in which the bytes come.
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

    /// Returns the head that [`Scan::find`] found; `None` before.
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

    /// Rejects other protocols at their first byte, without waiting for the time limit of the head.
    fn check_first(&self, bytes: &[u8]) -> Result<(), HeadError> {
        match bytes.get(self.start) {
            Some(b'\r') | None => Ok(()),
            Some(b) if is_token_byte(*b) => Ok(()),
            Some(_) => Err(HeadError::StartLine),
        }
    }

    /// Rejects other protocols that have lines, such as SMTP and SSH, without waiting, too.
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

    /// Recognizes the preface of HTTP/2. `PRI * HTTP/2.0` and an empty line could be a head; the bytes behind them
    /// decide.
    fn preface(&mut self, bytes: &[u8]) -> Option<Found> {
        let bytes = bytes.get(self.start..)?;
        let n = bytes.len().min(HTTP2_PREFACE.len());
        if !self.is_request || bytes.get(..n) != HTTP2_PREFACE.get(..n) {
            return None;
        }
        if n == HTTP2_PREFACE.len() {
            return Some(Found::Http2);
        }
        // Read the empty line again.
        self.line -= 2;
        self.seen = self.line;
        Some(Found::NeedMore)
    }
}
