//! The code and tests that the threat model and the table of RFCs name exist under these names.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use longsplice_core::reason::RelayReason;
use strum::VariantArray;

const DOCUMENTS: [&str; 2] = ["docs/threat-model.md", "docs/rfc.md"];

/// Folders in which a file named without them is searched.
const FOLDERS: [&str; 6] = [
    "",
    "tests/tests/",
    "tests/tests/splice/",
    "tests/tests/daemon/",
    "crates/dataplane/tests/",
    "crates/",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads the text of all C and Rust files.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path
            .extension()
            .is_some_and(|e| ["rs", "c", "h"].iter().any(|k| e == *k))
        {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// Finds words that look like a file of source code, without the characters around them.
fn files(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| c.is_whitespace() || "()|;,`[]".contains(c));
    words
        .map(|word| word.trim_end_matches(['.', ':']))
        .filter(|word| [".rs", ".h", ".c"].iter().any(|end| word.ends_with(end)))
        .collect()
}

/// Finds names in code style that can only be those of functions, types and fields: lower case, with an underscore.
fn names(text: &str) -> BTreeSet<&str> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted
        .filter(|name| name.contains('_'))
        .filter(|name| {
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        })
        .collect()
}

#[test]
fn what_they_name_is_there() {
    let mut code = String::new();
    for folder in ["bpf", "crates", "tests"] {
        sources(&root().join(folder), &mut code);
    }
    let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    // Names of reasons are derived from their variants.
    let reasons = RelayReason::VARIANTS.iter().map(|reason| reason.as_str());
    let known: BTreeSet<&str> = words.chain(reasons).collect();
    let mut missing = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let (files, names) = (files(&text), names(&text));
        assert!(
            files.len() > 10 && names.len() > 5,
            "{document}: {files:?} {names:?}"
        );
        for file in files {
            if !FOLDERS
                .iter()
                .any(|folder| root().join(folder).join(file).is_file())
            {
                missing.push(format!("{document}: {file}"));
            }
        }
        for name in names {
            if !known.contains(name) {
                missing.push(format!("{document}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
