//! Follows a chunked body while it passes (RFC 9112 section 7.1). The bytes go on unchanged, except for trailers that a
//! recipient might merge into the head.

mod extension;
mod trailer;

use extension::Extension;
use trailer::{Line, Trailer};

/// Limit of the digits of a size; leading zeros count.
const MOST_DIGITS: u8 = 16;
/// Limit of the bytes of the extensions of one chunk.
const MOST_EXTENSION: u32 = 256;
/// Limit of the bytes of all extensions of a body: they are traffic that carries no data.
const MOST_EXTENSIONS: u32 = 16 << 10;

/// Error for which a chunked body cannot be followed. The connection must be closed: the beginning of its next message
/// is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The size of a chunk is malformed (RFC 9112 section 7.1).
    #[error("the size of a chunk is not hexadecimal digits and CR LF (RFC 9112 section 7.1)")]
    Size,
    /// The size is beyond 2^63 − 1, or has too many digits.
    #[error("the size of a chunk is not below 2^63, in 16 digits at most")]
    TooLarge,
    /// An extension is malformed (RFC 9112 section 7.1.1).
    #[error("the extension of a chunk is not as it should be (RFC 9112 section 7.1.1)")]
    Extension,
    /// Blanks end the line of a size. Recipients do not agree on them, and a spliced chunk passes as it is.
    #[error("blanks stand behind the size of a chunk, with no `;` behind them (RFC 9112 section 7.1.1)")]
    Blanks,
    /// The extensions have too many bytes.
    #[error("the extensions of chunks are longer than is allowed here: 256 bytes for each, 16 KiB for all")]
    ExtensionTooLong,
    /// The data of a chunk has no CR LF behind it (RFC 9112 section 7.1).
    #[error("the data of a chunk is not followed by CR LF (RFC 9112 section 7.1)")]
    DataEnd,
    /// A trailer field is malformed (RFC 9112 section 7.1.2).
    #[error("a trailer field is not as it should be (RFC 9112 section 7.1.2)")]
    Trailer,
    /// The trailers have too many bytes.
    #[error("the trailers are longer than is allowed here: 8 KiB for all")]
    TrailerTooLong,
    /// A trailer field is allowed in a head only (RFC 9110 section 6.5.1).
    #[error("a trailer field says what only a head can say (RFC 9110 section 6.5.1)")]
    TrailerField,
    /// The caller reported more passed bytes than the chunk has.
    #[error("more passed than is left of the chunk: it was spliced without a budget of bytes")]
    PassedTooMuch,
}

/// Result of [`Chunks::feed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fed {
    /// Number of bytes that belong to this body, with sizes and trailers, and go on. If the body is complete, the bytes
    /// behind them are of the next message. Otherwise they are given again, with more behind them: a trailer line goes
    /// on when it is complete.
    pub length: usize,
    /// Number of bytes behind them that are a trailer that is not sent on: remove them before the next call.
    pub dropped: usize,
    /// True if the body is complete.
    pub ended: bool,
}

/// Follows one chunked body.
#[derive(Debug, Clone)]
pub struct Chunks {
    state: State,
    data: u64,
    extensions: u32,
    trailer: Trailer,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Size { digits: u8, size: u64 },
    Extension { size: u64, length: u32, at: Extension },
    SizeFeed { size: u64 },
    Data { left: u64 },
    DataReturn,
    DataFeed,
    Trailer,
    Ended,
    Failed(ChunkError),
}

const NEXT_CHUNK: State = State::Size { digits: 0, size: 0 };

impl Default for Chunks {
    fn default() -> Self {
        Chunks::new()
    }
}

impl Chunks {
    /// Begins before the first byte of the body.
    pub fn new() -> Chunks {
        Chunks {
            state: NEXT_CHUNK,
            data: 0,
            extensions: 0,
            trailer: Trailer::new(),
        }
    }

    /// Follows the next bytes, up to the end of the body at the most.
    ///
    /// # Errors
    /// The error of the body. None of these bytes may be sent on then, and every later call returns the same error.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Fed, ChunkError> {
        let mut rest = bytes;
        while !matches!(self.state, State::Ended) {
            rest = match (self.state, rest) {
                (State::Failed(e), _) => return Err(e),
                (_, []) => break,
                (State::Trailer, _) => match self.trailer.line(rest) {
                    Ok(Line::Partial) => break,
                    Ok(Line::Kept(line)) => &rest[line..],
                    Ok(Line::Dropped(dropped)) => {
                        return Ok(Fed {
                            length: bytes.len() - rest.len(),
                            dropped,
                            ended: false,
                        });
                    }
                    Ok(Line::Last(line)) => {
                        self.state = State::Ended;
                        &rest[line..]
                    }
                    Err(error) => {
                        self.state = State::Failed(error);
                        return Err(error);
                    }
                },
                (State::Data { left }, _) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    self.advance(left, here as u64);
                    &rest[here..]
                }
                (_, [b, tail @ ..]) => {
                    self.state = self.step(*b).unwrap_or_else(State::Failed);
                    tail
                }
            };
        }
        if let State::Failed(e) = self.state {
            return Err(e);
        }
        Ok(Fed {
            length: bytes.len() - rest.len(),
            dropped: 0,
            ended: matches!(self.state, State::Ended),
        })
    }

    /// Returns the data bytes that are left of the present chunk: so many may pass unseen. 0 between chunks.
    pub fn left(&self) -> u64 {
        match self.state {
            State::Data { left } => left,
            _ => 0,
        }
    }

    /// Notes data bytes of this chunk that passed unseen.
    ///
    /// # Errors
    /// [`ChunkError::PassedTooMuch`] if there were more than [`Chunks::left`].
    pub fn passed(&mut self, bytes: u64) -> Result<(), ChunkError> {
        let left = self.left();
        if bytes > left {
            self.state = State::Failed(ChunkError::PassedTooMuch);
            return Err(ChunkError::PassedTooMuch);
        }
        if bytes > 0 {
            self.advance(left, bytes);
        }
        Ok(())
    }

    /// Returns whether the body is complete.
    pub fn ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Returns the data bytes so far, without sizes and trailers.
    pub fn data(&self) -> u64 {
        self.data
    }

    fn advance(&mut self, left: u64, bytes: u64) {
        self.data = self.data.saturating_add(bytes);
        self.state = match left - bytes {
            0 => State::DataReturn,
            left => State::Data { left },
        };
    }

    fn step(&mut self, b: u8) -> Result<State, ChunkError> {
        Ok(match self.state {
            State::Size { digits, size } => return size_step(digits, size, b),
            State::Extension { size, length, at } => {
                self.extensions += 1;
                if length >= MOST_EXTENSION || self.extensions > MOST_EXTENSIONS {
                    return Err(ChunkError::ExtensionTooLong);
                }
                match at.step(b) {
                    None if b == b'\r' && matches!(at, Extension::Blank | Extension::NameBlank) => {
                        return Err(ChunkError::Blanks);
                    }
                    None => return Err(ChunkError::Extension),
                    Some(Extension::Ended) => State::SizeFeed { size },
                    Some(at) => State::Extension {
                        size,
                        length: length + 1,
                        at,
                    },
                }
            }
            State::SizeFeed { size } => match (b, size) {
                (b'\n', 0) => State::Trailer,
                (b'\n', left) => State::Data { left },
                _ => return Err(ChunkError::Size),
            },
            State::DataReturn if b == b'\r' => State::DataFeed,
            State::DataFeed if b == b'\n' => NEXT_CHUNK,
            State::DataReturn | State::DataFeed => return Err(ChunkError::DataEnd),
            // Data and trailers have no steps, and there are none after the end.
            same @ (State::Data { .. } | State::Trailer | State::Ended | State::Failed(_)) => same,
        })
    }
}

fn size_step(digits: u8, size: u64, b: u8) -> Result<State, ChunkError> {
    if let Some(digit) = char::from(b).to_digit(16) {
        let size = (size << 4) | u64::from(digit);
        return match digits < MOST_DIGITS && i64::try_from(size).is_ok() {
            true => Ok(State::Size {
                digits: digits + 1,
                size,
            }),
            false => Err(ChunkError::TooLarge),
        };
    }
    match b {
        _ if digits == 0 => Err(ChunkError::Size),
        b'\r' => Ok(State::SizeFeed { size }),
        _ => match Extension::begin(b) {
            Some(at) => Ok(State::Extension { size, length: 1, at }),
            None => Err(ChunkError::Size),
        },
    }
}
