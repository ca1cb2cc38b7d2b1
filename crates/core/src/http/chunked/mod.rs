//! A chunked body (RFC 9112 section 7.1), followed while it passes. Nothing is taken out: the bytes go on as they are.

mod extension;
mod trailer;

use extension::Extension;
use trailer::Trailer;

/// Digits of a size; leading zeros count.
const MOST_DIGITS: u8 = 16;
/// Bytes of the extensions of one chunk, …
const MOST_EXTENSION: u32 = 256;
/// … and of all the chunks of a body: nobody pays for kilobytes of extensions of chunks of one byte.
const MOST_EXTENSIONS: u32 = 16 << 10;

/// Why a chunked body cannot be followed. The connection is to be closed: nobody knows where its next message begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// RFC 9112 section 7.1.
    #[error("the size of a chunk is not hexadecimal digits and CR LF (RFC 9112 section 7.1)")]
    Size,
    /// Beyond 2^63 − 1, or with too many digits.
    #[error("the size of a chunk is not below 2^63, in 16 digits at most")]
    TooLarge,
    /// RFC 9112 section 7.1.1.
    #[error("the extension of a chunk is not as it should be (RFC 9112 section 7.1.1)")]
    Extension,
    /// Too many bytes of them.
    #[error("the extensions of chunks are longer than is allowed here: 256 bytes for each, 16 KiB for all")]
    ExtensionTooLong,
    /// RFC 9112 section 7.1.
    #[error("the data of a chunk is not followed by CR LF (RFC 9112 section 7.1)")]
    DataEnd,
    /// RFC 9112 section 7.1.2.
    #[error("a trailer field is not as it should be (RFC 9112 section 7.1.2)")]
    Trailer,
    /// Too many bytes of it.
    #[error("the trailers are longer than is allowed here: 8 KiB for all")]
    TrailerTooLong,
    /// RFC 9110 section 6.5.1.
    #[error("a trailer field says what only a head can say (RFC 9110 section 6.5.1)")]
    TrailerField,
    /// More was said to have passed than the chunk has.
    #[error("more passed than is left of the chunk: it was spliced without a budget of bytes")]
    PassedTooMuch,
}

/// What [`Chunks::feed`] saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fed {
    /// So many of the bytes belong to this body, with sizes and trailers; what follows is of the next message.
    pub length: usize,
    /// The body is whole.
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
    /// Before the first byte of the body.
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
    /// What is wrong with the body. None of these bytes is to be sent on then, and every later call says the same.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Fed, ChunkError> {
        let mut rest = bytes;
        while !matches!(self.state, State::Ended) {
            rest = match (self.state, rest) {
                (State::Failed(e), _) => return Err(e),
                (_, []) => break,
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
            ended: matches!(self.state, State::Ended),
        })
    }

    /// How many data bytes are left of the chunk that is passing: so many may go by unseen. 0 between chunks.
    pub fn left(&self) -> u64 {
        match self.state {
            State::Data { left } => left,
            _ => 0,
        }
    }

    /// So many data bytes of this chunk went by unseen.
    ///
    /// # Errors
    /// [`ChunkError::PassedTooMuch`] if that is more than [`Chunks::left`].
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

    /// Whether the body is whole.
    pub fn ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// How many data bytes there were so far, without sizes and trailers.
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
                match at.step(b).ok_or(ChunkError::Extension)? {
                    Extension::Ended => State::SizeFeed { size },
                    at => State::Extension {
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
            State::Trailer => match self.trailer.step(b)? {
                true => State::Ended,
                false => State::Trailer,
            },
            // Data has no steps, and there are none after the end.
            same @ (State::Data { .. } | State::Ended | State::Failed(_)) => same,
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
