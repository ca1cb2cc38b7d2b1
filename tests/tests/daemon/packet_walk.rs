//! The functions, fields and verdicts that docs/packet-walk.md names exist.

use std::{collections::BTreeSet, fs, path::Path};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Collects every word of the kernel half and of the crate that loads it.
fn words() -> BTreeSet<String> {
    let files = ["bpf", "crates/dataplane/src"].map(|dir| fs::read_dir(root().join(dir)).unwrap());
    let files = files.into_iter().flatten().map(|entry| entry.unwrap().path());
    let text: String = files
        .filter(|path| path.is_file())
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.map(str::to_owned).collect()
}

#[test]
fn every_name_in_the_walk_is_one_of_the_code() {
    let (words, walk) = (
        words(),
        fs::read_to_string(root().join("docs/packet-walk.md")).unwrap(),
    );
    // Every second piece is in backquotes; one with a blank or a sign in it is more than a name.
    let names = walk.split('`').skip(1).step_by(2).filter(|span| {
        let mut letters = span.chars();
        !span.is_empty() && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
    });
    let unknown: Vec<_> = names
        .filter(|name| !words.contains(*name) && !words.contains(&format!("LS_V_{name}")))
        .collect();
    assert_eq!(unknown, Vec::<&str>::new());
}
