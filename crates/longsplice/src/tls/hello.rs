//! The first message of a TLS connection, in any number of segments and records.

use std::io;

use longsplice_repair::options;
use rustls::server::{Accepted, Acceptor};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::TIMEOUT;
use crate::client::{Client, Hello, Stream, Unfit};

/// How many bytes may come before the hello is complete: all that a handshake message of the sort can have.
pub const LONGEST: usize = 64 << 10;

/// What one read may bring: what the acceptor takes at once.
const CHUNK: usize = 4096;

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
    let read = timeout(TIMEOUT, read(socket, early))
        .await
        .unwrap_or(Err(HelloError::TooLate.into()))?;
    client.hello = Some(read.hello());
    client.early = read.bytes;
    Ok(client)
}

/// Reads on until the hello is complete; `bytes` have come already.
pub(super) async fn read(socket: &mut TcpStream, mut bytes: Vec<u8>) -> Result<Read, Unfit> {
    let mut acceptor = Acceptor::default();
    let mut seen = 0;
    loop {
        while let Some(rest) = bytes.get(seen..).filter(|rest| !rest.is_empty()) {
            // It takes no more than its own buffer may hold, which is less than `LONGEST`.
            match acceptor.read_tls(&mut &*rest) {
                Ok(n) if n > 0 => seen += n,
                _ => return Err(HelloError::TooLong.into()),
            }
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    return Ok(Read {
                        accepted,
                        bytes,
                        seen,
                    });
                }
                Ok(None) => {}
                Err((error, mut alert)) => {
                    let mut record = Vec::new();
                    if alert.write_all(&mut record).is_ok() {
                        tell(socket, &record).await;
                    }
                    return Err(HelloError::No(error).into());
                }
            }
        }
        if bytes.len() >= LONGEST {
            return Err(HelloError::TooLong.into());
        }
        bytes.reserve(CHUNK);
        match socket.read_buf(&mut bytes).await {
            Ok(0) if bytes.is_empty() => return Err(Unfit::Gone(io::ErrorKind::UnexpectedEof.into())),
            Ok(0) => return Err(HelloError::Cut.into()),
            Ok(_) => {}
            Err(error) => return Err(Unfit::Gone(error)),
        }
    }
}

/// Sends an alert, and has it arrive before the end. If it cannot be told, the close will have to do.
async fn tell(socket: &mut TcpStream, alert: &[u8]) {
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
