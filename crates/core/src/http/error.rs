//! Names the errors of a head.

/// Error for which a head is not read. The connection has to be closed after each: the beginning of the next message is
/// unknown.
///
/// The text is for the peer's developer: it names what was found and the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum HeadError {
    /// A line ends with a line feed alone (RFC 9112 section 2.2).
    #[error("a line ends with a line feed alone: lines of a head end with CR LF (RFC 9112 section 2.2)")]
    BareLineFeed,
    /// A carriage return stands alone (RFC 9112 section 2.2).
    #[error("a carriage return stands alone: lines of a head end with CR LF (RFC 9112 section 2.2)")]
    BareCarriageReturn,
    /// The head exceeds `Limits::head`.
    #[error("the head is longer than is allowed here: send fewer or shorter fields, or smaller cookies")]
    TooLong,
    /// The fields exceed `Limits::fields`.
    #[error("the head has more fields than are allowed here: send fewer of them")]
    TooManyFields,
    /// The first line exceeds `Limits::line`.
    #[error("the first line is longer than is allowed here: send a shorter target, or its data in a body")]
    LineTooLong,
    /// The first line is malformed (RFC 9112 sections 3 and 4).
    #[error("the first line is not as HTTP/1.1 has it (RFC 9112 sections 3 and 4)")]
    StartLine,
    /// The method is not a token (RFC 9110 section 9.1).
    #[error("the method is not a token (RFC 9110 section 9.1)")]
    Method,
    /// The target has none of the known forms (RFC 9112 section 3.2).
    #[error(
        "the target of the request is in none of the forms of RFC 9112 section 3.2, or has bytes that no URI has"
    )]
    Target,
    /// A percent sign is not followed by two digits (RFC 3986 section 2.1).
    #[error("a percent sign in the path is not followed by two hexadecimal digits (RFC 3986 section 2.1)")]
    PercentTriplet,
    /// The version is another one (RFC 9110 section 15.6.6).
    #[error("only HTTP/1 is spoken here")]
    Version,
    /// A field's name is no token (RFC 9110 section 5.1). A blank before the colon and a folded line are this, too (RFC
    /// 9112 sections 5.1 and 5.2).
    #[error(
        "a field has a name that is no token: blanks before the colon and folded lines are not allowed (RFC 9112 section 5)"
    )]
    FieldName,
    /// A value has control characters (RFC 9110 section 5.5).
    #[error("the value of a field has control characters (RFC 9110 section 5.5)")]
    FieldValue,
    /// HTTP/1.1 without a Host field (RFC 9112 section 3.2).
    #[error("there is no Host field: HTTP/1.1 requires one (RFC 9112 section 3.2)")]
    NoHost,
    /// More than one Host field (RFC 9112 section 3.2).
    #[error("there is more than one Host field (RFC 9112 section 3.2)")]
    SeveralHosts,
    /// The host is malformed (RFC 9110 section 7.2).
    #[error("the host is not a name or an address with an optional port (RFC 9110 section 7.2)")]
    Host,
    /// Content-Length is not one decimal number (RFC 9112 section 6.3).
    #[error("Content-Length is not one decimal number (RFC 9112 section 6.3)")]
    ContentLength,
    /// Both Content-Length and Transfer-Encoding are there, which allows request smuggling (RFC 9112 section 6.1).
    #[error("there are both Content-Length and Transfer-Encoding (RFC 9112 section 6.1)")]
    TwoLengths,
    /// Transfer-Encoding is not one `chunked` (RFC 9112 section 6.1).
    #[error("Transfer-Encoding is not one `chunked`, on one line (RFC 9112 section 6.1)")]
    TransferEncoding,
    /// The transfer coding is unknown (RFC 9112 section 6.1).
    #[error(
        "this transfer coding is not known here: send `chunked` or Content-Length (RFC 9112 section 6.1)"
    )]
    UnknownCoding,
    /// Transfer-Encoding in HTTP/1.0 (RFC 9112 section 6.1).
    #[error("HTTP/1.0 has no Transfer-Encoding (RFC 9112 section 6.1)")]
    CodingInOldVersion,
    /// The expectation is another one than `100-continue` (RFC 9110 section 10.1.1).
    #[error("the only expectation is `100-continue` (RFC 9110 section 10.1.1)")]
    Expectation,
    /// Connection has more options than any peer needs.
    #[error("Connection has more options than are allowed here: 64 at most")]
    TooManyOptions,
    /// The method is CONNECT (RFC 9110 section 9.3.6).
    #[error("CONNECT is not served here: this is not a proxy that tunnels (RFC 9110 section 9.3.6)")]
    Connect,
    /// The server switches protocols unasked (RFC 9110 section 15.2.2).
    #[error("the server switches protocols, without a request to do so (RFC 9110 section 15.2.2)")]
    UnaskedSwitch,
}

impl HeadError {
    /// Returns the status of the answer to a client whose request has the error: 400, 414, 417, 431, 501 or 505. An
    /// error in a reply is always a 502 for the client.
    pub fn status(self) -> u16 {
        match self {
            HeadError::TooLong | HeadError::TooManyFields | HeadError::TooManyOptions => 431,
            HeadError::LineTooLong => 414,
            HeadError::Version => 505,
            HeadError::UnknownCoding | HeadError::Connect => 501,
            HeadError::Expectation => 417,
            _ => 400,
        }
    }
}
