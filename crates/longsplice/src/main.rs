//! Starts `longsplice`: see [`longsplice::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    longsplice::cli::main()
}
