//! Terminates TLS: decrypts connections.

use std::{io, sync::Arc};

use longsplice_repair::options;
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::server::{StartHandshake, TlsStream};
use tokio_util::task::AbortOnDropHandle;

use super::{
    CertificateError, TIMEOUT, hello,
    keyring::{Keyring, watch},
};
use crate::{
    client::{Client, Hello, RejectReason, Stream},
    config::{ListenerConfig, TlsConfig},
};

/// Terminates the TLS of a listener's connections.
#[derive(Debug)]
pub(crate) struct Terminator {
    config: Arc<ServerConfig>,
    /// Looks at the files. It ends with the terminator: each connection keeps the certificates, but needs no others.
    _watch: AbortOnDropHandle<()>,
}

/// Reason why a listener cannot terminate TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TerminatorError {
    /// A certificate or key cannot be used.
    #[error("{error} ({})", error.remedy())]
    Certificate {
        #[from]
        error: CertificateError,
    },
    /// The library has no random numbers, or lacks a feature.
    #[error("cannot set up TLS: {0}")]
    Library(#[from] rustls::Error),
}

/// Returns the cryptography: ring, because it builds with a C compiler alone.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Terminator {
    /// Creates the terminator of a listener, if it terminates TLS. Fails if a file cannot be used. Panics outside of a
    /// tokio runtime.
    pub(crate) fn of(listener: &ListenerConfig) -> Result<Option<Arc<Terminator>>, TerminatorError> {
        let tls = listener.tls.as_ref();
        tls.map(|tls| Terminator::new(&listener.name, tls).map(Arc::new))
            .transpose()
    }

    /// Reads the certificates of a listener, and again when their files change. Supports TLS 1.2 and 1.3. Sessions are
    /// resumed by tickets, whose keys change every six hours and at each call. Fails if a file cannot be used. Panics outside
    /// of a tokio runtime.
    pub(crate) fn new(listener: &str, tls: &TlsConfig) -> Result<Terminator, TerminatorError> {
        let provider = provider();
        let (keyring, stamps) = Keyring::open(listener, &tls.certificates, &provider)?;
        let watch = AbortOnDropHandle::new(tokio::spawn(watch(Arc::clone(&keyring), stamps)));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(keyring);
        config.ticketer = ring::Ticketer::new()?;
        config.alpn_protocols = tls.alpn.iter().map(|id| id.clone().into_bytes()).collect();
        Ok(Terminator {
            config: Arc::new(config),
            _watch: watch,
        })
    }

    /// Performs the handshake of a connection, and replaces its stream by the decrypted one. With `resets`, a close resets
    /// the connection from then on. Fails if the handshake fails, or takes longer than [`TIMEOUT`]. If it fails, an
    /// alert tells the client the reason.
    pub(crate) async fn accept(&self, mut client: Client, resets: bool) -> Result<Client, RejectReason> {
        let Stream::Plain(socket) = client.stream else {
            return Ok(client);
        };
        let early = std::mem::take(&mut client.early);
        let (stream, hello) = timeout(TIMEOUT, self.handshake(socket, early))
            .await
            .unwrap_or(Err(RejectReason::HandshakeLate(TIMEOUT)))?;
        if resets {
            set_resets(stream.get_ref().0, true)?;
        }
        client.stream = Stream::Tls(Box::new(stream));
        client.hello = Some(hello);
        Ok(client)
    }

    async fn handshake(
        &self,
        mut socket: TcpStream,
        early: Vec<u8>,
    ) -> Result<(TlsStream<TcpStream>, Hello), RejectReason> {
        // Close with a FIN until the handshake is done: nothing can be lost yet, and an alert can arrive.
        set_resets(&socket, false)?;
        let read = hello::read(&mut socket, hello::Reader::new(early)).await?;
        let hello = read.hello();
        let hello::Read {
            accepted,
            bytes,
            seen,
        } = read;
        let mut rest = bytes.get(seen..).unwrap_or_default();
        let mut fed = Ok(());
        let handshake =
            StartHandshake::from_parts(accepted, socket).into_stream_with(Arc::clone(&self.config), |tls| {
                while fed.is_ok() && !rest.is_empty() {
                    fed = match tls.read_tls(&mut rest) {
                        Ok(0) => Err(io::ErrorKind::InvalidData.into()),
                        other => other.map(drop),
                    };
                }
            });
        fed.map_err(RejectReason::Handshake)?;
        let stream = handshake.await.map_err(RejectReason::Handshake)?;
        Ok((stream, hello))
    }
}

fn set_resets(socket: &TcpStream, on: bool) -> Result<(), RejectReason> {
    options::set_reset_on_close(socket, on).map_err(|error| RejectReason::Gone(error.into()))
}

#[cfg(test)]
mod tests;
