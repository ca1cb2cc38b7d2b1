//! What the end-to-end tests share: a daemon under test ([`Daemon`]) in a laboratory ([`Bed`]), connections through it
//! whose bytes are checked ([`Pair`]), and patience ([`eventually`]).
//!
//! The tests are in `tests/`, one behaviour per file. They need root, and fail without it. They run the program
//! `longsplice` of the same build, or the one that `LONGSPLICE_BIN` names. What is random in them is printed as a seed
//! when a test fails; `LONGSPLICE_SEED` repeats it.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a helper of a test fails as the test does"
)]

mod bed;
mod binary;
mod daemon;
pub mod library;
mod luck;
mod pair;
mod status;
mod wait;

pub use bed::{Bed, Policy, emulated, three};
pub use binary::path as binary;
pub use daemon::{Config, Daemon, Exit};
pub use luck::Luck;
pub use pair::{End, Pair};
pub use status::{Flow, Status};
pub use wait::{SOON, eventually, soon};

/// Fails unless every byte of every connection arrived, once and in order, at both ends.
pub fn assert_all_ok(outcome: &longsplice_lab::Outcome) {
    let failures: Vec<String> = outcome
        .connections
        .iter()
        .enumerate()
        .filter(|(_, c)| c.failure().is_some())
        .map(|(n, c)| {
            let server = c.server.as_ref();
            format!(
                "connection {n} from {:?} (seen by the server: {:?}): client: {:?}; server: {:?}; received {} and {:?}",
                c.client.local,
                server.and_then(|s| s.peer),
                c.client.failure,
                server.and_then(|s| s.failure.as_ref()),
                c.client.received,
                server.map(|s| s.received),
            )
        })
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} connections failed:\n{}",
        failures.len(),
        outcome.connections.len(),
        failures.join("\n")
    );
}
