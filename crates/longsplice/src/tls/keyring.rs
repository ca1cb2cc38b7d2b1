//! The certificates of a listener, read again when their files change.

use std::{
    sync::{Arc, PoisonError, RwLock, Weak},
    time::Duration,
};

use rustls::{
    crypto::CryptoProvider,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{task::spawn_blocking, time};

use super::{
    certificate::{self, CertificateError, CertificateFiles, Stamp},
    choice::Choice,
};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// The certificates of a listener.
#[derive(Debug)]
pub(super) struct Keyring {
    listener: String,
    files: Vec<CertificateFiles>,
    provider: Arc<CryptoProvider>,
    current: RwLock<Choice>,
}

/// The state of all files.
type Stamps = Vec<[Option<Stamp>; 2]>;

impl Keyring {
    /// Reads them, and again whenever a file has changed; ends when it is dropped. Needs a tokio runtime.
    pub(super) fn open(
        listener: &str,
        files: &[CertificateFiles],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<Keyring>, CertificateError> {
        let keyring = Keyring {
            listener: listener.to_owned(),
            files: files.to_owned(),
            provider: Arc::clone(provider),
            current: RwLock::default(),
        };
        // Before they are read: what is written in between is seen at the first look.
        let stamps = keyring.stamps();
        keyring.load()?;
        let keyring = Arc::new(keyring);
        tokio::spawn(watch(Arc::downgrade(&keyring), stamps));
        Ok(keyring)
    }

    /// Takes all files as they are now, or stays with what it has.
    fn load(&self) -> Result<(), CertificateError> {
        let mut all = Vec::with_capacity(self.files.len());
        for files in &self.files {
            let loaded = certificate::load(files, &self.provider)?;
            if loaded.exposed {
                tracing::warn!(
                    listener = self.listener, key = %files.key.display(),
                    "everybody on this machine may read the private key: chmod o-r"
                );
            }
            all.push(loaded);
        }
        let choice = Choice::new(&all);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = choice;
        Ok(())
    }

    fn stamps(&self) -> Stamps {
        let stamps = |f: &CertificateFiles| [Stamp::of(&f.certificate), Stamp::of(&f.key)];
        self.files.iter().map(stamps).collect()
    }

    /// Reads the files if they are not as they were at `before`; answers how they are now.
    fn look(&self, before: Stamps) -> Stamps {
        let now = self.stamps();
        if now != before {
            let listener = &self.listener;
            match self.load() {
                Ok(()) => tracing::info!(
                    listener,
                    "certificates were read again, because their files changed"
                ),
                Err(error) => tracing::warn!(
                    listener, %error,
                    "files of certificates changed and cannot be used: those in use stay in use ({})", error.remedy()
                ),
            }
        }
        now
    }
}

async fn watch(keyring: Weak<Keyring>, mut stamps: Stamps) {
    loop {
        time::sleep(LOOK).await;
        let Some(keyring) = keyring.upgrade() else { return };
        // A file system may take its time.
        match spawn_blocking(move || keyring.look(stamps)).await {
            Ok(now) => stamps = now,
            // The runtime ends.
            Err(_) => return,
        }
    }
}

impl ResolvesServerCert for Keyring {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .find(hello.server_name(), hello.signature_schemes())
    }
}
