//! The first message of a TLS connection, in any number of segments and records.

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

use super::{TIMEOUT, supplement};
use crate::client::{Client, Hello, Stream, Unfit};

/// How many bytes may come before the hello is complete: all that a handshake message of the sort can have.
pub const LONGEST: usize = 64 << 10;

/// What one read may bring: what the acceptor takes at once.
const CHUNK: usize = 4096;

/// The content type of alerts (RFC 8446 section 5.1).
const ALERT: u8 = 0x15;

/// A fatal alert of this kind, as a record (RFC 8446 section 6.2).
const UNEXPECTED_MESSAGE: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 10];

/// Why a connection has no ClientHello that can be read.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// It is something else, or is malformed.
    #[error("no TLS ClientHello: {0}")]
    No(rustls::Error),
    /// It goes on and on.
    #[error("its TLS ClientHello is longer than {LONGEST} bytes")]
    TooLong,
    /// It did not come, or not all of it.
    #[error("no TLS ClientHello came within {}s", TIMEOUT.as_secs())]
    TooLate,
    /// The connection ended within it.
    #[error("it ended within its TLS ClientHello")]
    Cut,
}

/// A ClientHello that was read.
pub(super) struct Read {
    /// It, and the state after it.
    pub(super) accepted: Accepted,
    /// All bytes that were read.
    pub(super) bytes: Vec<u8>,
    /// How many of them `accepted` has seen.
    pub(super) seen: usize,
}

/// Reads a ClientHello and leaves it in `early`, as it came. What is none is refused with an alert.
///
/// # Errors
/// There is none.
pub async fn peek(mut client: Client) -> Result<Client, Unfit> {
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

/// Reads on until the hello is complete.
pub(super) async fn read(socket: &mut TcpStream, mut reader: Reader) -> Result<Read, Unfit> {
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
                return Err(HelloError::No(error).into());
            }
            Step::TooLong => return Err(HelloError::TooLong.into()),
        }
        reader.bytes.reserve(CHUNK);
        match socket.read_buf(&mut reader.bytes).await {
            Ok(0) if reader.bytes.is_empty() => {
                return Err(Unfit::Gone(io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(0) => return Err(HelloError::Cut.into()),
            Ok(_) => {}
            Err(error) => return Err(Unfit::Gone(error)),
        }
    }
}

/// Looks for a ClientHello in what has come so far.
pub(super) struct Reader {
    acceptor: Acceptor,
    /// One that rustls could not answer will do, too.
    any: bool,
    bytes: Vec<u8>,
    /// How many of them the acceptor has taken.
    seen: usize,
}

/// What is known after some of the bytes.
enum Step {
    /// It may become one.
    NeedMore,
    /// It is complete.
    Yes(Box<Accepted>),
    /// It will never be one.
    No { error: rustls::Error, alert: Vec<u8> },
    /// It is not complete after [`LONGEST`] bytes.
    TooLong,
}

impl Reader {
    /// Of hellos that are to be answered here; `bytes` have come already.
    pub(super) fn new(bytes: Vec<u8>) -> Reader {
        Reader {
            acceptor: Acceptor::default(),
            any: false,
            bytes,
            seen: 0,
        }
    }

    /// Of hellos that are only passed on.
    fn of_any(bytes: Vec<u8>) -> Reader {
        Reader {
            any: true,
            ..Reader::new(bytes)
        }
    }

    /// What a hello says that rustls refused for this reason, if only its signature algorithms are missing: clients that know
    /// nothing later than TLS 1.1, or that use keys they share with the server, send none.
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
            // It takes no more than its own buffer may hold, which is less than `LONGEST`.
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
                    // Into memory: this cannot fail.
                    let _ = told.write_all(&mut alert);
                    // The acceptor has none for what is no handshake; an alert has no answer.
                    if alert.is_empty() && self.bytes.first() != Some(&ALERT) {
                        alert.extend(UNEXPECTED_MESSAGE);
                    }
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

/// Sends an alert, and has it arrive before the end. If it cannot be told, the close will have to do.
async fn tell(socket: &mut TcpStream, alert: &[u8]) {
    if alert.is_empty() {
        return;
    }
    let _ = options::set_reset_on_close(&*socket, false);
    let _ = socket.write_all(alert).await;
}

impl Read {
    /// What it says.
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
