//! Limits the instructions that the verifier follows, at most a million: the next compiler or kernel would refuse a
//! program near that.

use std::collections::BTreeSet;

use libbpf_rs::query::ProgInfoIter;

use crate::support::{net::Net, plane::Plane};

#[test]
fn the_verifier_has_little_to_follow() {
    let _net = Net::new();
    let before: BTreeSet<u32> = ProgInfoIter::default().map(|p| p.id).collect();
    let _plane = Plane::open();
    let ours: Vec<_> = ProgInfoIter::default()
        .filter(|p| !before.contains(&p.id))
        .map(|p| (p.name.to_string_lossy().into_owned(), p.verified_insns))
        .collect();
    for name in ["ingress", "egress", "demote", "inspect"] {
        let (_, followed) = ours.iter().find(|p| p.0 == name).expect(name);
        println!("{name}: {followed}");
        assert!(*followed < 400_000, "{name}: {followed} of 1,000,000");
    }
}
