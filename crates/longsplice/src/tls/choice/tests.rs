use rcgen::KeyPair;

use super::*;
use crate::tls::{certificate, terminator::provider, testing};

#[test]
fn a_client_gets_the_certificate_of_its_server_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let load = |file: &str, names: &[&str], key: &KeyPair| {
        let files = testing::write_with(dir.path(), file, names, key);
        certificate::load(&files, &provider()).unwrap()
    };
    let p256 = || KeyPair::generate().unwrap();
    let ed25519 = || KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let all = [
        load("first", &["first.example"], &p256()),
        load("ed", &["a.example", "*.wild.example"], &ed25519()),
        load("p256", &["a.example", "b.wild.example"], &p256()),
    ];
    let choice = Choice::new(&all);
    let both = [SignatureScheme::ED25519, SignatureScheme::ECDSA_NISTP256_SHA256];
    let old = [SignatureScheme::ECDSA_NISTP256_SHA256];
    for (name, schemes, which) in [
        (Some("a.example"), &both[..], 1),
        (Some("A.Example."), &both, 1),
        (Some("a.example"), &old, 2),
        (Some("b.wild.example"), &both, 2),
        (Some("c.wild.example"), &both, 1),
        // No certificate of this name has a key that this client can use.
        (Some("c.wild.example"), &old, 0),
        // A wildcard stands for one label (RFC 6125 section 6.4.3).
        (Some("d.c.wild.example"), &both, 0),
        (Some("wild.example"), &both, 0),
        (Some("unknown.example"), &both, 0),
        (None, &both, 0),
    ] {
        let found = choice.find(name, schemes).unwrap();
        assert!(Arc::ptr_eq(&found, &all[which].key), "{name:?} with {schemes:?}");
    }
    assert!(Choice::default().find(None, &both).is_none());
}
