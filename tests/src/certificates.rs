//! Certificates that only a test trusts.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Self-signed certificate and its key, in files.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// Certificate, as PEM.
    pub certificate: PathBuf,
    /// Key, as PEM.
    pub key: PathBuf,
    /// Content of the certificate's file.
    pub pem: String,
}

impl Certificate {
    /// Writes a certificate for these names, as `file.pem` and `file.key`; replaces files that are there.
    pub fn write(dir: &Path, file: &str, names: &[&str]) -> Certificate {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let certificate = Certificate {
            certificate: dir.join(format!("{file}.pem")),
            key: dir.join(format!("{file}.key")),
            pem: made.cert.pem().replace("\r\n", "\n"),
        };
        for (path, text) in [
            (&certificate.key, made.signing_key.serialize_pem()),
            (&certificate.certificate, certificate.pem.clone()),
        ] {
            let new = path.with_extension("new");
            fs::write(&new, text).unwrap();
            fs::rename(&new, path).unwrap();
        }
        certificate
    }

    /// Returns the table of a listener that terminates TLS with it.
    pub fn listener_table(&self) -> String {
        let (certificate, key) = (self.certificate.display(), self.key.display());
        format!("[listener.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n")
    }

    /// Returns the lines of a listener that terminates TLS with these; the first is the default.
    pub fn table(all: &[&Certificate]) -> String {
        let one = |c: &&Certificate| {
            let (certificate, key) = (c.certificate.display(), c.key.display());
            format!("{{ certificate = \"{certificate}\", key = \"{key}\" }}")
        };
        let list: Vec<String> = all.iter().map(one).collect();
        format!("tls = {{ certificates = [{}] }}", list.join(", "))
    }
}
