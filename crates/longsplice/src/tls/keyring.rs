//! Holds the certificates of a listener, and reads them again when their files change.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::{
    SignatureScheme,
    crypto::CryptoProvider,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{task::spawn_blocking, time};

use super::{
    certificate::{self, CertificateError, CertificateFiles, Loaded, Stamp},
    choice::Choice,
};

/// Interval between checks of the files.
const LOOK: Duration = Duration::from_secs(2);

/// Certificates of a listener.
#[derive(Debug)]
pub(super) struct Keyring {
    listener: String,
    files: Vec<CertificateFiles>,
    provider: Arc<CryptoProvider>,
    current: ArcSwap<Choice>,
    pairs: Mutex<Pairs>,
}

/// Certificates in use, in the order of their files.
#[derive(Debug)]
struct Pairs {
    loaded: Vec<Loaded>,
    /// Error of the last attempt to read each one's files, in its words; the log tells each once.
    last_errors: Vec<Option<String>>,
}

/// Stamps of all files.
pub(super) type Stamps = Vec<[Option<Stamp>; 2]>;

impl Keyring {
    /// Reads the certificates. Returns the stamps of their files, too.
    pub(super) fn open(
        listener: &str,
        files: &[CertificateFiles],
        provider: &Arc<CryptoProvider>,
    ) -> Result<(Arc<Keyring>, Stamps), CertificateError> {
        // Take the stamps before reading: a file that is written in between is then seen at the first check.
        let stamps = files.iter().map(stamps_of).collect();
        let loaded: Vec<_> = files
            .iter()
            .map(|files| load(listener, files, provider))
            .collect::<Result<_, _>>()?;
        let keyring = Keyring {
            listener: listener.to_owned(),
            files: files.to_owned(),
            provider: Arc::clone(provider),
            current: ArcSwap::from_pointee(Choice::new(&loaded)),
            pairs: Mutex::new(Pairs {
                loaded,
                last_errors: vec![None; files.len()],
            }),
        };
        Ok((Arc::new(keyring), stamps))
    }

    /// Returns the certificate for a client that names this server and can use these schemes.
    pub(super) fn find(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current.load().find(name, schemes)
    }

    /// Reads the files that differ from `before`, the stamps of those in use, and returns the stamps of those in use
    /// now. A certificate whose files cannot be used stays as it is, without harm to the others. They are read again at
    /// the next look: the fault may have been of the moment.
    pub(super) fn look(&self, mut stamps: Stamps) -> Stamps {
        let mut pairs = self.pairs.lock();
        let Pairs { loaded, last_errors } = &mut *pairs;
        let in_use = loaded.iter_mut().zip(last_errors).zip(&mut stamps);
        let mut has_changed = false;
        for (files, ((loaded, last_error), stamps)) in self.files.iter().zip(in_use) {
            let now = stamps_of(files);
            if now == *stamps {
                continue;
            }
            let (listener, certificate) = (&self.listener, files.certificate.display());
            match load(listener, files, &self.provider) {
                Ok(new) => {
                    (*loaded, *last_error, *stamps) = (new, None, now);
                    has_changed = true;
                    tracing::info!(
                        listener, %certificate,
                        "a certificate was read again, because its files changed"
                    );
                }
                Err(error) => {
                    let text = Some(error.to_string());
                    if *last_error != text {
                        *last_error = text;
                        tracing::warn!(
                            listener, %certificate, %error,
                            "files of a certificate changed and cannot be used: what is in use stays in use ({})", error.remedy()
                        );
                    }
                }
            }
        }
        if has_changed {
            self.current.store(Arc::new(Choice::new(&pairs.loaded)));
        }
        stamps
    }
}

/// Loads a certificate and its key, and warns if every user of this machine may read the key.
fn load(
    listener: &str,
    files: &CertificateFiles,
    provider: &CryptoProvider,
) -> Result<Loaded, CertificateError> {
    let loaded = certificate::load(files, provider)?;
    if loaded.exposed {
        tracing::warn!(
            listener, key = %files.key.display(),
            "every user of this machine may read the private key: chmod o-r"
        );
    }
    Ok(loaded)
}

/// Returns the stamps of both files as they are now.
fn stamps_of(files: &CertificateFiles) -> [Option<Stamp>; 2] {
    [Stamp::of(&files.certificate), Stamp::of(&files.key)]
}

/// Reads the certificates again whenever a file has changed.
pub(super) async fn watch(keyring: Arc<Keyring>, mut stamps: Stamps) {
    loop {
        time::sleep(LOOK).await;
        let keyring = Arc::clone(&keyring);
        // Block another thread: a file system may be slow.
        match spawn_blocking(move || keyring.look(stamps)).await {
            Ok(now) => stamps = now,
            // The runtime ends.
            Err(_) => return,
        }
    }
}

impl ResolvesServerCert for Keyring {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(hello.server_name(), hello.signature_schemes())
    }
}

#[cfg(test)]
mod tests;
