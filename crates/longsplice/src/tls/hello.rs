//! Reads the first message of a TLS connection, in any number of segments and records.

use std::io;

use longsplice_repair::options;
use rustls::{
    PeerIncompatible,
    server::{Accepted, Acceptor},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{LONGEST, TIMEOUT, supplement};
use crate::client::{Client, Hello, HelloError, RejectReason, Stream};

/// Limit of one read: the acceptor takes so many bytes at once.
const CHUNK: usize = 4096;

/// Content type of alerts (RFC 8446 section 5.1).
const ALERT: u8 = 0x15;

/// Record with a fatal alert `unexpected_message` (RFC 8446 section 6.2).
const UNEXPECTED_MESSAGE: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 10];

/// Record with a fatal alert `protocol_version`, for clients that support nothing later than TLS 1.1 (RFC 8446 section
/// 6.2).
const PROTOCOL_VERSION: [u8; 7] = [ALERT, 3, 1, 0, 2, 2, 70];

/// Position of a ClientHello's version in its record (RFC 8446 section 4.1.2).
const VERSION: std::ops::Range<usize> = 9..11;
/// TLS 1.2, the oldest version that is supported.
const OLDEST: [u8; 2] = [3, 3];

/// A ClientHello that was read.
pub(super) struct Read {
    /// ClientHello, and the state after it.
    pub(super) accepted: Accepted,
    /// All bytes that were read.
    pub(super) bytes: Vec<u8>,
    /// Number of bytes that `accepted` has seen.
    pub(super) seen: usize,
}

/// Reads a ClientHello, and leaves it unchanged in `early`. Answers anything else with an alert. Fails if there is no
/// valid ClientHello.
pub(crate) async fn peek(mut client: Client) -> Result<Client, RejectReason> {
    let Stream::Plain(socket) = &mut client.stream else {
        return Ok(client);
    };
    let early = std::mem::take(&mut client.early);
    let read = timeout(TIMEOUT, read(socket, Reader::of_any(early)))
        .await
        .unwrap_or(Err(HelloError::TooLate.into()))?;
    client.hello = Some(read.hello());
    client.early = read.bytes;
    Ok(client)
}

/// Reads until the hello is complete.
pub(super) async fn read(socket: &mut TcpStream, mut reader: Reader) -> Result<Read, RejectReason> {
    loop {
        match reader.step() {
            Step::NeedMore => {}
            Step::Yes(accepted) => {
                return Ok(Read {
                    accepted: *accepted,
                    bytes: reader.bytes,
                    seen: reader.seen,
                });
            }
            Step::No { error, alert } => {
                tell(socket, &alert).await;
                return Err(error.into());
            }
            Step::TooLong => return Err(HelloError::TooLong.into()),
        }
        reader.bytes.reserve(CHUNK);
        match socket.read_buf(&mut reader.bytes).await {
            Ok(0) | Err(_) if !reader.bytes.is_empty() => return Err(HelloError::Cut.into()),
            Ok(0) => return Err(RejectReason::Gone(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return Err(RejectReason::Gone(error)),
        }
    }
}

/// Searches the bytes so far for a ClientHello.
pub(super) struct Reader {
    acceptor: Acceptor,
    /// True if hellos that rustls could not answer are accepted, too.
    any: bool,
    bytes: Vec<u8>,
    /// Number of bytes that the acceptor has taken.
    seen: usize,
}

/// Result of parsing the bytes so far.
enum Step {
    /// The hello is incomplete.
    NeedMore,
    /// The hello is complete.
    Yes(Box<Accepted>),
    /// The bytes are no valid hello.
    No { error: HelloError, alert: Vec<u8> },
    /// The hello is incomplete after [`LONGEST`] bytes.
    TooLong,
}

impl Reader {
    /// Reads hellos that are answered here; `bytes` have come already.
    pub(super) fn new(bytes: Vec<u8>) -> Reader {
        Reader {
            acceptor: Acceptor::default(),
            any: false,
            bytes,
            seen: 0,
        }
    }

    /// Reads hellos that are only passed on.
    fn of_any(bytes: Vec<u8>) -> Reader {
        Reader {
            any: true,
            ..Reader::new(bytes)
        }
    }

    /// Parses a hello that rustls refused only because its signature algorithms are missing. Clients that support
    /// nothing later than TLS 1.1, or that use keys shared with the server, send none.
    fn supplemented(&self, error: &rustls::Error) -> Option<Accepted> {
        let missing = PeerIncompatible::SignatureAlgorithmsExtensionRequired;
        if !self.any || *error != rustls::Error::PeerIncompatible(missing) {
            return None;
        }
        let bytes = supplement::with_signature_algorithms(self.bytes.get(..self.seen)?)?;
        let mut acceptor = Acceptor::default();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest).ok().filter(|n| *n > 0)?;
            if let Some(accepted) = acceptor.accept().ok()? {
                return Some(accepted);
            }
        }
        None
    }

    fn step(&mut self) -> Step {
        while let Some(rest) = self.bytes.get(self.seen..).filter(|rest| !rest.is_empty()) {
            // The acceptor takes no more than its own buffer holds, which is less than `LONGEST`.
            match self.acceptor.read_tls(&mut &*rest) {
                Ok(n) if n > 0 => self.seen += n,
                _ => return Step::TooLong,
            }
            match self.acceptor.accept() {
                Ok(Some(accepted)) => return Step::Yes(Box::new(accepted)),
                Ok(None) => {}
                Err((error, mut told)) => {
                    if let Some(accepted) = self.supplemented(&error) {
                        return Step::Yes(Box::new(accepted));
                    }
                    let mut alert = Vec::new();
                    // Writing to memory cannot fail.
                    let _ = told.write_all(&mut alert);
                    // Name an old client's version as the reason: the acceptor names another missing feature.
                    let version = self.bytes.get(VERSION);
                    let is_old = matches!(error, rustls::Error::PeerIncompatible(_))
                        && version.is_some_and(|v| v < OLDEST.as_slice());
                    if is_old {
                        let alert = PROTOCOL_VERSION.to_vec();
                        return Step::No {
                            error: HelloError::OldVersion,
                            alert,
                        };
                    }
                    // Add an alert for bytes that are no handshake: the acceptor has none. An alert gets no answer.
                    if alert.is_empty() && self.bytes.first() != Some(&ALERT) {
                        alert.extend(UNEXPECTED_MESSAGE);
                    }
                    let error = HelloError::No(error);
                    return Step::No { error, alert };
                }
            }
        }
        match self.bytes.len() < LONGEST {
            true => Step::NeedMore,
            false => Step::TooLong,
        }
    }
}

/// Sends an alert, and lets it arrive before the end. Errors are ignored: the connection closes anyway.
async fn tell(socket: &mut TcpStream, alert: &[u8]) {
    if alert.is_empty() {
        return;
    }
    let _ = options::set_reset_on_close(&*socket, false);
    let _ = socket.write_all(alert).await;
}

impl Read {
    /// Returns its contents.
    pub(super) fn hello(&self) -> Hello {
        let hello = self.accepted.client_hello();
        let name = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
        Hello {
            sni: hello.server_name().map(name),
            alpn: hello
                .alpn()
                .map(|all| all.map(<[u8]>::to_vec).collect())
                .unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
