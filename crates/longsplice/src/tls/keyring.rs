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
    certificate::{self, CertificateError, CertificateFiles, Stamp},
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
    /// Error of the last attempt to read the files, in its words; the log tells each once.
    last_error: Mutex<Option<String>>,
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
        let keyring = Keyring {
            listener: listener.to_owned(),
            files: files.to_owned(),
            provider: Arc::clone(provider),
            current: ArcSwap::default(),
            last_error: Mutex::default(),
        };
        // Take the stamps before reading: a file that is written in between is then seen at the first check.
        let stamps = keyring.stamps();
        keyring.load()?;
        Ok((Arc::new(keyring), stamps))
    }

    /// Loads all files as they are now. After an error the certificates stay unchanged.
    fn load(&self) -> Result<(), CertificateError> {
        let mut all = Vec::with_capacity(self.files.len());
        for files in &self.files {
            all.push(certificate::load(files, &self.provider)?);
        }
        for (files, _) in self.files.iter().zip(&all).filter(|(_, loaded)| loaded.exposed) {
            tracing::warn!(
                listener = self.listener, key = %files.key.display(),
                "everybody on this machine may read the private key: chmod o-r"
            );
        }
        self.current.store(Arc::new(Choice::new(&all)));
        Ok(())
    }

    /// Returns the certificate for a client that names this server and can use these schemes.
    pub(super) fn find(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current.load().find(name, schemes)
    }

    /// Returns the stamps of the files as they are now.
    pub(super) fn stamps(&self) -> Stamps {
        let stamps = |f: &CertificateFiles| [Stamp::of(&f.certificate), Stamp::of(&f.key)];
        self.files.iter().map(stamps).collect()
    }

    /// Reads the files if they differ from `before`, the stamps of those in use, and returns the stamps of those in use
    /// now. Files that cannot be used are read again at the next look: the fault may have been of the moment.
    pub(super) fn look(&self, before: Stamps) -> Stamps {
        let now = self.stamps();
        if now == before {
            return before;
        }
        let listener = &self.listener;
        let mut last_error = self.last_error.lock();
        match self.load() {
            Ok(()) => {
                *last_error = None;
                tracing::info!(
                    listener,
                    "certificates were read again, because their files changed"
                );
                now
            }
            Err(error) => {
                let text = Some(error.to_string());
                if *last_error != text {
                    *last_error = text;
                    tracing::warn!(
                        listener, %error,
                        "files of certificates changed and cannot be used: those in use stay in use ({})", error.remedy()
                    );
                }
                before
            }
        }
    }
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
