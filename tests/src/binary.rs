//! Program under test.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    time::Duration,
};

use crate::eventually;

/// Longest time of a build, beside tests.
const BUILD: Duration = Duration::from_secs(600);

/// Returns the path of `longsplice`: the value of `LONGSPLICE_BIN`, or the program that cargo builds, with the profile
/// and into the folder of the running test.
pub fn path() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| match env::var_os("LONGSPLICE_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(&["--package", "longsplice", "--bin", "longsplice"]).join("longsplice"),
    });
    &PATH
}

/// Returns the path of `longsplice` with another layout of its records (`LS_OTHER_LAYOUT` in bpf/abi.h): the value of
/// `LONGSPLICE_OTHER_LAYOUT_BIN`, which may still be being built, or the program that cargo builds.
pub fn of_other_layout() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(path) = env::var_os("LONGSPLICE_OTHER_LAYOUT_BIN") {
            let path = PathBuf::from(path);
            eventually("the daemon with another layout", BUILD, || {
                path.exists().then_some(())
            });
            return path;
        }
        // Build in the workspace: for one package dependencies would have fewer features, and be built once more.
        let words = [
            "--workspace",
            "--example",
            "other_layout",
            "--features",
            "longsplice/other-layout",
        ];
        build(&words).join("examples/other_layout")
    });
    &PATH
}

/// Builds a program as the running test was built. Returns the folder of that profile.
fn build(what: &[&str]) -> PathBuf {
    let test = env::current_exe().unwrap();
    // Path of the test: TARGET/PROFILE/deps/TEST.
    let profile = test.ancestors().nth(2).unwrap();
    let target = profile.parent().unwrap();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet"]).args(what);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env("CARGO_TARGET_DIR", target);
    let status = command.status().unwrap();
    assert!(status.success(), "cargo cannot build {what:?}");
    profile.to_owned()
}
