//! Starts `longsplice` built with another layout of its records, for the tests of upgrades: see [`longsplice::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    longsplice::cli::main()
}
