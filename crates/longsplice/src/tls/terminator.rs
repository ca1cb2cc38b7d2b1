//! Connections that are decrypted here.

use std::{io, sync::Arc};

use rustls::ServerConfig;
use tokio::time::timeout;
use tokio_rustls::server::StartHandshake;

use super::{TIMEOUT, hello};
use crate::client::{Client, Stream, Unfit};

/// Terminates the TLS of a listener's connections.
#[derive(Debug)]
pub struct Terminator {
    config: Arc<ServerConfig>,
}

impl Terminator {
    /// Does the handshake of a connection, and leaves its decrypted stream in its place.
    ///
    /// # Errors
    /// It failed, or took longer than [`TIMEOUT`]. Its reason was told to the client by an alert.
    pub async fn accept(&self, mut client: Client) -> Result<Client, Unfit> {
        timeout(TIMEOUT, async {
            let Stream::Plain(mut socket) = client.stream else {
                return Ok(client);
            };
            let early = std::mem::take(&mut client.early);
            let read = hello::read(&mut socket, early).await?;
            client.hello = Some(read.hello());
            let hello::Read {
                accepted,
                bytes,
                seen,
            } = read;
            let mut rest = bytes.get(seen..).unwrap_or_default();
            let mut fed = Ok(());
            let handshake = StartHandshake::from_parts(accepted, socket).into_stream_with(
                Arc::clone(&self.config),
                |connection| {
                    while fed.is_ok() && !rest.is_empty() {
                        fed = connection.read_tls(&mut rest).and_then(|n| match n {
                            0 => Err(io::ErrorKind::InvalidData.into()),
                            _ => Ok(()),
                        });
                    }
                },
            );
            fed.map_err(Unfit::Handshake)?;
            let stream = handshake.await.map_err(Unfit::Handshake)?;
            client.stream = Stream::Tls(Box::new(stream));
            Ok(client)
        })
        .await
        .unwrap_or(Err(Unfit::HandshakeLate(TIMEOUT)))
    }
}
