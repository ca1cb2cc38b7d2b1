//! Helpers of the end-to-end tests: a daemon under test ([`Daemon`]) in a laboratory ([`Bed`]), connections through it
//! whose bytes are checked ([`Pair`]), and patience ([`eventually`]).
//!
//! The tests are in `tests/`, one behaviour per file. They need root, and fail without it. They run the program
//! `longsplice` of the same build, or the one that `LONGSPLICE_BIN` names. A failed test prints the seed of its random
//! numbers; `LONGSPLICE_SEED` repeats it. With `LONGSPLICE_FAMILY=6` they run over IPv6. `LONGSPLICE_PATIENCE` is a
//! factor for limits of time ([`patient`]). `LONGSPLICE_RECORDS` sets the number of flows of
//! tests/splice/many_records.rs.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a helper of a test fails as the test does"
)]

mod bed;
pub mod beyond;
mod binary;
pub mod blind;
mod certificates;
mod config;
mod curl;
mod daemon;
mod family;
mod hello;
pub mod library;
mod load;
mod local;
mod nginx;
mod pair;
mod raw;
mod seed;
pub mod silent;
mod status;
pub mod switch;
mod times;
mod wait;

pub use bed::{Bed, Policy, capture, emulated, nft, veth_line};
pub use binary::{of_other_layout as other_layout, path as binary};
pub use certificates::Certificate;
pub use config::Config;
pub use curl::curl;
pub use daemon::{Daemon, Exit};
pub use family::{addr, family, ip, ip_in, line, nodad};
pub use hello::client_hello;
pub use load::Load;
pub use local::{connect_again, connect_from, expect_refused_at_once};
pub use nginx::Nginx;
pub use pair::{End, Pair};
pub use seed::rng;
pub use status::{Flow, Status};
pub use times::times;
pub use wait::{Raise, SOON, accept, eventually, eventually_or, patient, soon, stop_listening};

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

/// Fails unless each end received everything or saw a reset: an orderly end before the last byte, or an endless wait,
/// is a failure. Returns the number of lost connections.
pub fn assert_whole_or_reset(outcome: &longsplice_lab::Outcome, round: u64) -> usize {
    use longsplice_lab::traffic::Failure;
    let mut lost = 0;
    for (n, connection) in outcome.connections.iter().enumerate() {
        let server = connection.server.as_ref().unwrap();
        let what = format!(
            "round {round}, connection {n} from {:?}: client {:?}, server {:?}",
            connection.client.local, connection.client.failure, server.failure
        );
        match (&connection.client.failure, &server.failure) {
            (None, None) => continue,
            // The daemon died before it had connected, or before the server received a byte.
            (
                Some(Failure::Reset { .. } | Failure::Connect(_) | Failure::Other(_)),
                Some(Failure::Silent),
            ) => {}
            (Some(Failure::Reset { .. }), Some(Failure::Reset { .. })) => {}
            // One end had received everything, the other's end too, and was gone when its last bytes got lost.
            (None, Some(Failure::Reset { .. })) | (Some(Failure::Reset { .. }), None) => {}
            _ => panic!("{what}"),
        }
        lost += 1;
    }
    lost
}
