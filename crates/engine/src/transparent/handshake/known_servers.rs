//! Remembers servers that have accepted connections, and what they offered: a client can be answered in their name before
//! they answer themselves (paper 004, algorithm 1).

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use longsplice_core::seq::Seq;
use longsplice_dataplane::monotonic;
use parking_lot::Mutex;

use super::{Ends, opening::Offer};

/// Largest number of servers that are remembered.
const MOST: usize = 4_096;

/// Time for which a server is remembered since its last answer.
const FRESH: Duration = Duration::from_secs(600);

/// Window scale of an answer in the name of an unknown server.
const SCALE: u8 = 7;

/// MSS of an answer in the name of an unknown server: that of Ethernet.
const fn usual_mss(v4: bool) -> u16 {
    if v4 { 1_460 } else { 1_440 }
}

/// Servers that have accepted connections lately. All clones share one state.
#[derive(Debug, Clone, Default)]
pub struct KnownServers {
    offers: Arc<Mutex<HashMap<SocketAddr, (Offer, Instant)>>>,
    secret: RandomState,
}

impl KnownServers {
    /// Returns true if a server has accepted a connection lately.
    pub fn contains(&self, server: SocketAddr) -> bool {
        self.offers
            .lock()
            .get(&server)
            .is_some_and(|(_, at)| at.elapsed() < FRESH)
    }

    /// Forgets a server that did not accept a connection.
    pub fn forget(&self, server: SocketAddr) {
        self.offers.lock().remove(&server);
    }

    /// Notes the answer of a server.
    pub(super) fn note(&self, server: SocketAddr, offer: Offer) {
        let mut offers = self.offers.lock();
        if offers.len() >= MOST && !offers.contains_key(&server) {
            offers.retain(|_, (_, at)| at.elapsed() < FRESH);
            if offers.len() >= MOST {
                return;
            }
        }
        offers.insert(server, (offer, Instant::now()));
    }

    /// Returns the offer of an answer in the name of a server: what it offered last, or what is usual.
    pub(super) fn offer(&self, server: SocketAddr) -> Offer {
        let known = self.offers.lock().get(&server).map(|(offer, _)| *offer);
        let offer = known.unwrap_or(Offer {
            mss: Some(usual_mss(server.is_ipv4())),
            scale: Some(SCALE),
            sack: true,
            clock: Some(0),
            has_unknown: false,
            class: 0,
        });
        Offer {
            // The clock counts milliseconds from an unpredictable number.
            clock: offer
                .clock
                .map(|_| (self.secret.hash_one(server) as u32).wrapping_add(millis())),
            ..offer
        }
    }

    /// Returns the initial sequence number of an answer: it cannot be guessed, and grows for the same ends (RFC 6528).
    pub(super) fn initial_sequence(&self, ends: Ends) -> Seq {
        // A step every 4 µs.
        let clock = (monotonic() / 4_000) as u32;
        Seq::new((self.secret.hash_one(ends) as u32).wrapping_add(clock))
    }
}

/// Returns milliseconds since the start of the machine, modulo 2^32.
fn millis() -> u32 {
    (monotonic() / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16) -> SocketAddr {
        ([198, 18, 0, 1], port).into()
    }

    #[test]
    fn a_server_is_known_by_its_last_answer_until_it_refuses() {
        let known = KnownServers::default();
        assert!(!known.contains(server(80)));
        let offer = Offer {
            mss: Some(536),
            ..Offer::default()
        };
        known.note(server(80), offer);
        assert!(known.contains(server(80)));
        assert_eq!(known.offer(server(80)), offer);
        known.forget(server(80));
        assert!(!known.contains(server(80)));
        assert_eq!(known.offer(server(80)).mss, Some(1_460));
    }

    #[test]
    fn the_number_of_servers_is_limited() {
        let known = KnownServers::default();
        for port in 0..=MOST as u16 {
            known.note(server(port), Offer::default());
        }
        assert_eq!(known.offers.lock().len(), MOST);
        assert!(!known.contains(server(MOST as u16)));
    }

    #[test]
    fn initial_numbers_of_the_same_ends_grow() {
        let known = KnownServers::default();
        let ends = (server(1), server(2));
        let first = known.initial_sequence(ends);
        std::thread::sleep(Duration::from_millis(1));
        assert!(known.initial_sequence(ends).after(first));
    }
}
