//! `make demo`: shows the main job on real traffic.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    longsplice_bench::demo::main()
}
