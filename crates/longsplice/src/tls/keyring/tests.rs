//! Tests what becomes of certificates whose files change.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use rustls::pki_types::CertificateDer;

use super::*;
use crate::tls::{
    terminator::provider,
    testing::{self, trusted},
};

/// Replaces a file like a program that renews certificates.
fn replace(with: &Path, file: &Path) {
    let new = file.with_extension("new");
    fs::copy(with, &new).unwrap();
    fs::rename(new, file).unwrap();
}

/// Returns the certificate that clients get which name no server.
fn current(keyring: &Keyring) -> CertificateDer<'static> {
    named(keyring, None)
}

/// Returns the certificate for this name.
fn named(keyring: &Keyring, name: Option<&str>) -> CertificateDer<'static> {
    let schemes = [rustls::SignatureScheme::ECDSA_NISTP256_SHA256];
    keyring.find(name, &schemes).unwrap().cert[0].clone()
}

#[tokio::test]
async fn changed_files_are_taken_and_broken_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write(dir.path(), "a", &["a.example"]);
    let next = testing::write(dir.path(), "next", &["a.example"]);
    let [old, new] = [&files, &next].map(trusted);
    let (keyring, mut stamps) = Keyring::open("test", std::slice::from_ref(&files), &provider()).unwrap();
    let current = || current(&keyring);
    assert_eq!(current(), old);
    // In the middle of a change, the key does not belong to the certificate yet.
    replace(&next.certificate, &files.certificate);
    stamps = keyring.look(stamps);
    assert_eq!(current(), old);
    replace(&next.key, &files.key);
    stamps = keyring.look(stamps);
    assert_eq!(current(), new);
    fs::write(&files.certificate, "broken").unwrap();
    stamps = keyring.look(stamps);
    assert_eq!(current(), new);
    fs::remove_file(&files.certificate).unwrap();
    stamps = keyring.look(stamps);
    assert_eq!(current(), new);
    replace(&next.certificate, &files.certificate);
    assert_ne!(keyring.look(stamps.clone()), stamps);
    assert_eq!(current(), new);
}

#[tokio::test]
async fn a_broken_certificate_does_not_keep_others_from_being_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, name: &str| testing::write(dir.path(), file, &[name]);
    let pairs = [write("a", "a.example"), write("b", "b.example")];
    let next = [write("next-a", "a.example"), write("next-b", "b.example")];
    let (old, new) = (pairs.each_ref().map(trusted), next.each_ref().map(trusted));
    let (keyring, stamps) = Keyring::open("test", &pairs, &provider()).unwrap();
    let both = || ["a.example", "b.example"].map(|name| named(&keyring, Some(name)));
    let renew = |n: usize| {
        replace(&next[n].certificate, &pairs[n].certificate);
        replace(&next[n].key, &pairs[n].key);
    };
    fs::write(&pairs[1].certificate, "broken").unwrap();
    let stamps = keyring.look(stamps);
    assert_eq!(both(), old);
    renew(0);
    let stamps = keyring.look(stamps);
    assert_eq!(both(), [new[0].clone(), old[1].clone()]);
    // The default is still the first of the list.
    assert_eq!(named(&keyring, None), new[0]);
    renew(1);
    let stamps = keyring.look(stamps);
    assert_eq!(both(), new);
    assert_eq!(keyring.look(stamps.clone()), stamps);
    // A start is strict.
    fs::write(&pairs[1].certificate, "broken").unwrap();
    assert!(Keyring::open("test", &pairs, &provider()).is_err());
}

/// Runs this in a thread that may not read files of mode 0.
fn without_rights<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let unprivileged = move || {
        let mut sets = capabilities(None).unwrap();
        sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        set_capabilities(None, sets).unwrap();
        run()
    };
    std::thread::scope(|threads| threads.spawn(unprivileged).join().unwrap())
}

#[tokio::test]
async fn files_that_cannot_be_read_at_a_moment_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write(dir.path(), "a", &["a.example"]);
    let next = testing::write(dir.path(), "next", &["a.example"]);
    let new = trusted(&next);
    let (keyring, stamps) = Keyring::open("test", std::slice::from_ref(&files), &provider()).unwrap();
    replace(&next.certificate, &files.certificate);
    replace(&next.key, &files.key);
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o0)).unwrap();
    let stamps = without_rights(|| keyring.look(stamps));
    assert_ne!(current(&keyring), new);
    if fs::File::open(&files.key).is_err() {
        // This user needs the mode.
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let stamps = keyring.look(stamps);
    assert_eq!(current(&keyring), new);
    assert_eq!(keyring.look(stamps.clone()), stamps);
}

#[tokio::test]
async fn files_that_keep_their_time_and_size_are_seen_to_change() {
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write(dir.path(), "a", &["a.example"]);
    let next = testing::write(dir.path(), "next", &["a.example"]);
    let time = fs::metadata(&files.key).unwrap().modified().unwrap();
    // Write all in place, with one size and one time.
    let overwrite = |with: &CertificateFiles| {
        for (from, to) in [(&with.certificate, &files.certificate), (&with.key, &files.key)] {
            let text = format!("{:2000}", fs::read_to_string(from).unwrap());
            fs::write(to, text).unwrap();
            fs::File::options()
                .write(true)
                .open(to)
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
    };
    overwrite(&files.clone());
    let (keyring, stamps) = Keyring::open("test", std::slice::from_ref(&files), &provider()).unwrap();
    let new = trusted(&next);
    // The clock of a file system has ticks: wait for the next one.
    let now = |file: &Path| fs::metadata(file).map(|m| (m.ctime(), m.ctime_nsec())).unwrap();
    let clock = dir.path().join("clock");
    while fs::write(&clock, "").is_ok() && now(&clock) == now(&files.key) {}
    overwrite(&next);
    keyring.look(stamps);
    assert_eq!(current(&keyring), new);
}
