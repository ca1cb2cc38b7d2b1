//! The page of benchmarks, its pictures and the README's table are what `bench report` makes of the committed samples.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::Command;

#[test]
fn the_page_follows_from_the_committed_samples() {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["report", "--check"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "run `make bench-report` and commit:\n{said}"
    );
}
