//! Reads the TLS settings of a listener.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::{protocol::Protocol, settler::Settler};
use crate::tls::{self, CertificateFiles};

/// TLS that a listener terminates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsConfig {
    /// Certificates of the listener. The first serves clients that name no server, or one without a certificate of its
    /// own.
    pub certificates: Vec<CertificateFiles>,
    /// Protocols that it offers by ALPN, the preferred one first (RFC 7301). If empty, the extension is ignored.
    pub alpn: Vec<String>,
}

/// The table as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    certificate: Option<Spanned<PathBuf>>,
    key: Option<Spanned<PathBuf>>,
    certificates: Option<Spanned<Vec<Spanned<RawFiles>>>>,
    alpn: Option<Spanned<Vec<Spanned<String>>>>,
}

/// A certificate as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFiles {
    certificate: Spanned<PathBuf>,
    key: Option<Spanned<PathBuf>>,
}

/// HTTP protocols that a listener with `protocol = "http"` reads.
const HTTP: [&str; 2] = ["http/1.1", "http/1.0"];

/// Wrong names of protocols, with the registered ones (IANA: TLS ALPN Protocol IDs).
const SLIPS: [(&[&str], &str); 3] = [
    (&["http2", "http/2", "http/2.0", "http2.0"], "h2"),
    (&["http1.1", "http1", "http/1", "http", "h1"], "http/1.1"),
    (&["http1.0"], "http/1.0"),
];

impl Settler<'_> {
    /// Checks and converts the table of a listener. Reads its files to check them, and discards them.
    pub(super) fn tls(&mut self, given: Option<Spanned<Raw>>, protocol: Protocol) -> Option<TlsConfig> {
        let given = given?;
        let place = given.span();
        let Raw {
            certificate,
            key,
            certificates,
            alpn,
        } = given.into_inner();
        if protocol == Protocol::Tls {
            let message = "protocol = \"tls\" reads the ClientHello and passes it on: it terminates nothing";
            let help =
                "to decrypt here, use protocol = \"http\" or \"tcp\"; to pass on, leave [listener.tls] out";
            self.complain(place.clone(), message, help);
        }
        let mut all = Vec::new();
        match (certificate, certificates) {
            (Some(certificate), None) => all.extend(self.certificate(RawFiles { certificate, key })),
            (None, Some(list)) if key.is_none() && !list.get_ref().is_empty() => {
                for one in list.into_inner() {
                    all.extend(self.certificate(one.into_inner()));
                }
            }
            (Some(_), Some(list)) => {
                let help = "put all into `certificates`, that of clients without a server name first";
                self.complain(list.span(), "both `certificate` and `certificates`", help);
            }
            (None, _) => {
                let help = "add certificate = \"/etc/ssl/web.pem\" and key = \"/etc/ssl/private/web.key\"";
                self.complain(
                    place,
                    "TLS is terminated by a certificate, and there is none",
                    help,
                );
            }
        }
        Some(TlsConfig {
            certificates: all,
            alpn: self.alpn(alpn, protocol),
        })
    }

    fn certificate(&mut self, given: RawFiles) -> Option<CertificateFiles> {
        let certificate_place = given.certificate.span();
        // Certificate and key may be in one file.
        let key = given.key.unwrap_or_else(|| given.certificate.clone());
        let files = CertificateFiles {
            certificate: self.beside(given.certificate.get_ref()),
            key: self.beside(key.get_ref()),
        };
        if let Err(error) = tls::check(&files) {
            let at = match error.is_about_key(&files) {
                true => key.span(),
                false => certificate_place,
            };
            self.complain(at, error.to_string(), error.remedy());
            return None;
        }
        Some(files)
    }

    fn alpn(&mut self, given: Option<Spanned<Vec<Spanned<String>>>>, protocol: Protocol) -> Vec<String> {
        let http = protocol == Protocol::Http;
        let Some(given) = given else {
            return match http {
                true => HTTP.map(str::to_owned).to_vec(),
                false => Vec::new(),
            };
        };
        let mut all = Vec::new();
        for id in given.into_inner() {
            let name = id.get_ref();
            let meant = SLIPS
                .iter()
                .find(|(slips, _)| slips.contains(&name.to_ascii_lowercase().as_str()));
            if name.is_empty() || name.len() > 255 {
                let help = "use 1 to 255 bytes, such as \"http/1.1\"";
                self.complain(id.span(), "this is no ALPN protocol", help);
            } else if let Some((_, meant)) = meant {
                let message = format!("`{name}` is no ALPN protocol that clients know");
                self.complain(id.span(), message, &format!("write \"{meant}\""));
            } else if http && !HTTP.contains(&name.as_str()) {
                let message = format!("a client that chooses `{name}` would not be understood here");
                let help =
                    "protocol = \"http\" reads http/1.1 and http/1.0; h2 passes with protocol = \"tls\"";
                self.complain(id.span(), message, help);
            } else if all.contains(name) {
                self.complain(id.span(), format!("`{name}` is there twice"), "name each once");
            }
            all.push(id.into_inner());
        }
        all
    }
}

#[cfg(test)]
mod tests;
