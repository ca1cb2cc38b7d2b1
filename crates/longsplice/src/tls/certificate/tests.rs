use nix::{sys::stat::Mode, unistd::mkfifo};
use rcgen::KeyPair;

use super::*;
use crate::tls::{terminator::provider, testing};

#[test]
fn a_certificate_knows_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write(dir.path(), "a", &["A.example", "*.b.example", "192.0.2.1"]);
    let loaded = load(&files, &provider()).unwrap();
    assert_eq!(loaded.names, ["a.example", "*.b.example"]);
    // Write both into one file, the key first.
    let both = [&files.key, &files.certificate]
        .map(|f| fs::read_to_string(f).unwrap())
        .concat();
    let path = dir.path().join("both");
    fs::write(&path, both).unwrap();
    let one = CertificateFiles {
        certificate: path.clone(),
        key: path,
    };
    assert_eq!(load(&one, &provider()).unwrap().names, loaded.names);
}

#[test]
fn what_cannot_be_used_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let good = testing::write(dir.path(), "good", &["a.example"]);
    let other = testing::write(dir.path(), "other", &["b.example"]);
    let pem = |label: &str, body: &str| format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
    let none = dir.path().join("none");
    let empty = file("empty", "");
    let garbage = file("garbage", &pem("CERTIFICATE", "AAAA"));
    let cut = file("cut", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let bad_key = file("bad.key", &pem("PRIVATE KEY", "AAAA"));
    let encrypted = file("encrypted.key", &pem("ENCRYPTED PRIVATE KEY", "AAAA"));
    let pipe = dir.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let long = file("long", &"x".repeat(LONGEST as usize + 1));
    for (certificate, key, says, about_key) in [
        (&none, &good.key, "none: No such file", false),
        (&good.certificate, &none, "none: No such file", true),
        (&empty, &good.key, "there is no certificate in", false),
        (&good.key, &good.key, "there is no certificate in", false),
        (&garbage, &good.key, "garbage cannot be used", false),
        (&cut, &good.key, "cut is malformed", false),
        (&pipe, &good.key, "pipe is no regular file", false),
        (&good.certificate, &pipe, "pipe is no regular file", true),
        (&long, &good.key, "long is longer than 1048576 bytes", false),
        (
            &good.certificate,
            &good.certificate,
            "there is no private key in",
            true,
        ),
        (&good.certificate, &bad_key, "bad.key cannot be used", true),
        (&good.certificate, &encrypted, "encrypted.key is encrypted", true),
        (
            &good.certificate,
            &other.key,
            "other.key is not that of the certificate in",
            true,
        ),
    ] {
        let files = CertificateFiles {
            certificate: certificate.clone(),
            key: key.clone(),
        };
        let error = load(&files, &provider()).expect_err(says);
        assert!(error.to_string().contains(says), "{says}: {error}");
        assert_eq!(error.is_about_key(&files), about_key, "{error}");
        assert!(!error.remedy().is_empty());
    }
}

#[test]
fn who_may_read_a_key_is_looked_at() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write_with(dir.path(), "a", &["a.example"], &KeyPair::generate().unwrap());
    for (mode, exposed) in [(0o600, false), (0o640, false), (0o644, true)] {
        fs::set_permissions(&files.key, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(load(&files, &provider()).unwrap().exposed, exposed, "{mode:o}");
    }
}
