//! Loads a certificate and its key from their files.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::libc::{O_NOCTTY, O_NONBLOCK};
use rustls::{
    InconsistentKeys,
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    sign::CertifiedKey,
};
use webpki::EndEntityCert;

/// Limit of a file, in bytes: chains have some thousands.
const LONGEST: u64 = 1 << 20;

/// Paths of a certificate and its key. Both may be in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFiles {
    /// PEM file with the server's certificate first, then those that lead to a root.
    pub certificate: PathBuf,
    /// PEM file with its private key (PKCS #8, PKCS #1 or SEC1), not encrypted.
    pub key: PathBuf,
}

/// Reason why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file is a folder, a pipe or a device.
    #[error("{} is no regular file", .0.display())]
    NoFile(PathBuf),
    /// A file is longer than any certificate.
    #[error("{} is longer than {LONGEST} bytes", .0.display())]
    TooLong(PathBuf),
    /// A file is no valid PEM (RFC 7468).
    #[error("{} is malformed: {source}", path.display())]
    Pem {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: pem::Error,
    },
    /// The file has no certificate.
    #[error("there is no certificate in {}", .0.display())]
    NoCertificate(PathBuf),
    /// The file has no private key.
    #[error("there is no private key in {}", .0.display())]
    NoKey(PathBuf),
    /// The key can only be read with a password.
    #[error("the private key in {} is encrypted", .0.display())]
    EncryptedKey(PathBuf),
    /// The certificate is malformed, or of a version that TLS does not use.
    #[error("the certificate in {} cannot be used: {source}", path.display())]
    Certificate {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: webpki::Error,
    },
    /// The key is malformed, or of a kind that TLS does not use.
    #[error("the private key in {} cannot be used: {source}", path.display())]
    Key {
        /// Path of the file.
        path: PathBuf,
        /// Error of the library.
        source: rustls::Error,
    },
    /// The key belongs to another certificate.
    #[error("the private key in {} is not that of the certificate in {}", .0.key.display(), .0.certificate.display())]
    Mismatch(CertificateFiles),
}

/// A certificate that can be used.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) key: Arc<CertifiedKey>,
    /// Names of servers in the certificate, in lower case; a wildcard is `*.` and a name (RFC 6125).
    pub(super) names: Vec<String>,
    /// True if every user of this machine may read the key.
    pub(super) exposed: bool,
}

/// Properties that tell whether a file has changed, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Device and inode: a replaced file has another inode, whatever its times are.
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    /// Time of the last change of the content, the mode or the owner: no program can set it back.
    changed: (i64, i64),
}

impl CertificateError {
    /// Returns whether it concerns the file of the key, and not that of the certificate.
    pub(crate) fn is_about_key(&self, files: &CertificateFiles) -> bool {
        use CertificateError as E;
        match self {
            E::Read { path, .. } | E::NoFile(path) | E::TooLong(path) | E::Pem { path, .. } => {
                *path == files.key && *path != files.certificate
            }
            E::NoCertificate(_) | E::Certificate { .. } => false,
            E::NoKey(_) | E::EncryptedKey(_) | E::Key { .. } | E::Mismatch(_) => true,
        }
    }

    pub(crate) fn remedy(&self) -> &'static str {
        use CertificateError as E;
        match self {
            E::Read { .. } => {
                "a path is relative to the folder of this file; the daemon must be allowed to read it"
            }
            E::NoFile(_) => "name a PEM file: it is read at each reload, and when it has changed",
            E::TooLong(_) => {
                "name a PEM file of the certificate and those that lead to its root, without the roots"
            }
            E::Pem { .. } => "PEM is text with lines such as -----BEGIN CERTIFICATE-----",
            E::NoCertificate(_) => {
                "it needs a section -----BEGIN CERTIFICATE-----; one in DER: openssl x509 -inform der"
            }
            E::NoKey(_) => {
                "it needs a section -----BEGIN PRIVATE KEY-----; key = names the file, if it is another one"
            }
            E::EncryptedKey(_) => {
                "a daemon cannot ask for the password: openssl pkey -in FILE -out DECRYPTED"
            }
            E::Certificate { .. } => "TLS needs an X.509 certificate of version 3",
            E::Key { .. } => "use RSA of 2048 bits or more, ECDSA (P-256, P-384) or Ed25519",
            E::Mismatch(_) => {
                "give each certificate the key it was made with, and the server's certificate before others"
            }
        }
    }
}

/// Reads both files, and checks that certificate and key match.
pub(super) fn load(files: &CertificateFiles, provider: &CryptoProvider) -> Result<Loaded, CertificateError> {
    let CertificateFiles { certificate, key } = files;
    let chain = chain(certificate)?;
    let names = match chain.first() {
        Some(first) => names(first).map_err(|source| CertificateError::Certificate {
            path: certificate.clone(),
            source,
        })?,
        None => return Err(CertificateError::NoCertificate(certificate.clone())),
    };
    let unusable = |source| CertificateError::Key {
        path: key.clone(),
        source,
    };
    let signing = provider
        .key_provider
        .load_private_key(private_key(key)?)
        .map_err(unusable)?;
    let certified = CertifiedKey::new(chain, signing);
    match certified.keys_match() {
        // Some keys cannot tell their public half; the handshake would find a mismatch.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(_) => return Err(CertificateError::Mismatch(files.clone())),
    }
    Ok(Loaded {
        key: Arc::new(certified),
        names,
        exposed: fs::metadata(key).is_ok_and(|m| m.mode() & 0o004 != 0),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let unreadable = |source| CertificateError::Read {
        path: path.to_owned(),
        source,
    };
    // Open without blocking: a pipe must not stop the daemon.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(O_NONBLOCK | O_NOCTTY);
    let file = options.open(path).map_err(unreadable)?;
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(CertificateError::NoFile(path.to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    match bytes.len() as u64 > LONGEST {
        true => Err(CertificateError::TooLong(path.to_owned())),
        false => Ok(bytes),
    }
}

fn malformed(path: &Path) -> impl Fn(pem::Error) -> CertificateError {
    move |source| CertificateError::Pem {
        path: path.to_owned(),
        source,
    }
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<_, _>>()
        .map_err(malformed(path))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let bytes = read(path)?;
    let encrypted = |marker: &[u8]| bytes.windows(marker.len()).any(|w| w == marker);
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(_) | Err(pem::Error::NoItemsFound)
            if encrypted(b"BEGIN ENCRYPTED PRIVATE KEY") || encrypted(b"Proc-Type: 4,ENCRYPTED") =>
        {
            Err(CertificateError::EncryptedKey(path.to_owned()))
        }
        Err(pem::Error::NoItemsFound) => Err(CertificateError::NoKey(path.to_owned())),
        key => key.map_err(malformed(path)),
    }
}

fn names(certificate: &CertificateDer<'_>) -> Result<Vec<String>, webpki::Error> {
    let parsed = EndEntityCert::try_from(certificate)?;
    Ok(parsed.valid_dns_names().map(str::to_ascii_lowercase).collect())
}

impl Stamp {
    /// Returns the stamp of the file that is there now; `None` if there is none.
    pub(super) fn of(path: &Path) -> Option<Stamp> {
        let m = fs::metadata(path).ok()?;
        Some(Stamp {
            inode: (m.dev(), m.ino()),
            size: m.size(),
            modified: (m.mtime(), m.mtime_nsec()),
            changed: (m.ctime(), m.ctime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests;
