//! `make bench`: measures Longsplice beside its peers.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    longsplice_bench::rows::main()
}
