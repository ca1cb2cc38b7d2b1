//! The daemon and the command line.
#![forbid(unsafe_code)]
fn main() {}
