//! Compiles the kernel half and generates its skeletons; Rust types of the shared structures come from its BTF.

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let bpf = manifest.join("../../bpf");
    println!("cargo::rerun-if-changed={}", bpf.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-16".into());
    let layout = match env::var_os("CARGO_FEATURE_OTHER_LAYOUT") {
        Some(_) => "-DLS_OTHER_LAYOUT",
        None => "-ULS_OTHER_LAYOUT",
    };
    for name in [
        "ask_ecn", "bare", "flow_ops", "forward", "inject", "inspect", "rules", "table", "xdp",
    ] {
        SkeletonBuilder::new()
            .source(bpf.join(format!("{name}.bpf.c")))
            .clang(&clang)
            // Refer to the objects: spelt as arrays they cost the compiler half a minute.
            .reference_obj(true)
            .clang_args([
                "-Wall",
                "-Werror",
                "-Wno-missing-declarations",
                "-mcpu=v3",
                layout,
                &format!("-I/usr/include/{arch}-linux-gnu"),
            ])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|e| {
                panic!("cannot build bpf/{name}.bpf.c with {clang} (`make deps` installs it): {e:#}")
            });
    }
}
