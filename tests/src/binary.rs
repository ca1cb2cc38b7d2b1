//! Program under test.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

/// Returns the path of `longsplice`: the value of `LONGSPLICE_BIN`, or the program that cargo builds, with the profile
/// and into the folder of the running test.
pub fn path() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| match env::var_os("LONGSPLICE_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    });
    &PATH
}

fn build() -> PathBuf {
    let test = env::current_exe().unwrap();
    // Path of the test: TARGET/PROFILE/deps/TEST.
    let profile = test.ancestors().nth(2).unwrap();
    let target = profile.parent().unwrap();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--quiet",
        "--package",
        "longsplice",
        "--bin",
        "longsplice",
    ]);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env("CARGO_TARGET_DIR", target);
    let status = command.status().unwrap();
    assert!(status.success(), "cargo cannot build longsplice");
    profile.join("longsplice")
}
