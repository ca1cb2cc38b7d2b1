//! The README's commands work as they stand there.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use longsplice_lab::Namespace;
use longsplice_tests::binary;

/// Mark of a block of the README that is to be run.
const MARK: &str = "<!-- tested: tests/tests/daemon/readme.rs runs this block -->\n```sh\n";

/// Writes a program `name` that runs `script`.
fn write_program(folder: &Path, name: &str, script: &str) {
    let program = folder.join(name);
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a block in a namespace of its own, with a `longsplice` on the path that has an instance name of its own. The servers are slower
/// than the daemon to start, as on a busy machine.
fn run(block: &str) -> String {
    let net = Namespace::new("readme").expect("this test needs root");
    let bin = tempfile::tempdir().unwrap();
    let instance = net.name().to_owned();
    let longsplice = format!("exec {} \"$@\" --instance {instance}", binary().display());
    write_program(bin.path(), "longsplice", &longsplice);
    // This folder is the first of the path.
    write_program(
        bin.path(),
        "python3",
        "sleep 1; PATH=${PATH#*:}; exec python3 \"$@\"",
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap());
    // The trap kills the background jobs of a block: they would keep the pipe open.
    let script = format!(
        "set -eu -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\ncd {}\n{block}",
        root.display()
    );
    let output = net
        .command("timeout")
        .args(["60", "bash", "-c", &script])
        .env("PATH", path)
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(format!("/sys/fs/bpf/longsplice-{instance}"));
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success(),
        "the README's block\n{block}\nended with {}:\n{text}",
        output.status
    );
    text
}

/// Asserts that one connection was enough, but for those that came before there was a server.
fn expect_one(text: &str) {
    let refused = text.matches("INFO connection refused").count();
    let accepted = format!("accepted      {}\n", refused + 1);
    assert!(text.contains(&accepted), "{accepted}{text}");
}

#[test]
fn the_quick_start_works_as_it_stands() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
    let blocks: Vec<&str> = readme
        .split(MARK)
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), 3, "the README's marks");
    let forwarded = run(blocks[0]);
    assert!(
        forwarded.contains("<!DOCTYPE"),
        "the web server's page:\n{forwarded}"
    );
    expect_one(&forwarded);
    let switched = run(blocks[1]);
    for says in ["a page", "a program", "photo.jpg"] {
        assert!(switched.contains(says), "{says}:\n{switched}");
    }
    assert!(
        switched.contains("spliced       1"),
        "the reply was spliced:\n{switched}"
    );
    expect_one(&run(blocks[2]));
}
