//! Limits the instructions that the verifier follows: near a million, the next compiler or kernel would refuse the
//! program.

use std::collections::BTreeSet;

use libbpf_rs::query::ProgInfoIter;

use crate::ways::Ways;

#[test]
fn the_verifier_has_little_to_follow() {
    let before: BTreeSet<u32> = ProgInfoIter::default().map(|p| p.id).collect();
    let _ways = Ways::new(&[]);
    let followed = ProgInfoIter::default()
        .find(|p| !before.contains(&p.id) && p.name.to_string_lossy() == "rules")
        .map(|p| p.verified_insns)
        .expect("it is loaded");
    println!("rules: {followed}");
    assert!(followed < 200_000, "{followed} of 1,000,000");
}
