//! Creates certificates for tests.

use std::{fs, path::Path};

use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::{CertificateFiles, terminator::provider};

/// Writes a self-signed certificate for these names, and its key, as `file.pem` and `file.key`.
pub(crate) fn write(dir: &Path, file: &str, names: &[&str]) -> CertificateFiles {
    write_with(dir, file, names, &KeyPair::generate().unwrap())
}

/// Writes a self-signed certificate with this key, and the key, as `file.pem` and `file.key`.
pub(crate) fn write_with(dir: &Path, file: &str, names: &[&str], key: &KeyPair) -> CertificateFiles {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().self_signed(key).unwrap();
    let files = CertificateFiles {
        certificate: dir.join(format!("{file}.pem")),
        key: dir.join(format!("{file}.key")),
    };
    fs::write(&files.certificate, certificate.pem()).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}

/// Reads the certificate of these files.
pub(crate) fn trusted(files: &CertificateFiles) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(&files.certificate).unwrap()
}

/// Returns a client that trusts these certificates, and offers these protocols.
pub(crate) fn client(trusted: &[CertificateDer<'static>], alpn: &[&str]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate.clone()).unwrap();
    }
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|id| id.as_bytes().to_vec()).collect();
    config
}
