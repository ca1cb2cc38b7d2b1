//! `longsplice`: see [`longsplice::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Gives memory back to the system after a burst of connections: docs/decisions/0006-mimalloc.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    longsplice::cli::main()
}
