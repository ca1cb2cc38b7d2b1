//! Balances by Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4): a table whose slots the servers take in turn,
//! each in an order of its own.
//!
//! The table is built from all listed servers, also those that are down: a server that goes down takes no slot from
//! another. Only its keys go to the others, by rendezvous hashing (Thaler and Ravishankar, 1998), and come back with
//! it.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::{Backend, Candidate, FULL_SHARE};

/// Sizes of a table, which are primes; it has at least a hundred slots for each server (section 5.3 of the paper), or
/// the last of these.
const SIZES: [usize; 2] = [65_537, 655_373];
const SLOTS_EACH: usize = 100;

/// Purposes of hashes, which are kept apart. The keys are fixed: several switches distribute alike.
#[derive(Clone, Copy)]
enum Purpose {
    Offset,
    Skip,
    Key,
    Rendezvous,
    Share,
}

/// Table of the server of each slot.
#[derive(Debug, Clone)]
pub(super) struct Maglev {
    slots: Vec<u16>,
}

impl Maglev {
    /// Builds the table of the servers of the lowest tier.
    pub(super) fn new(backends: &[Backend]) -> Maglev {
        let lowest = backends.iter().map(|s| s.tier).min();
        let servers: Vec<_> = (0..=u16::MAX)
            .zip(backends)
            .filter(|(_, s)| Some(s.tier) == lowest)
            .collect();
        let enough = |size: &usize| *size >= servers.len() * SLOTS_EACH;
        let [small, large] = SIZES;
        let size = Some(small).filter(enough).unwrap_or(large);
        Maglev {
            slots: fill(&servers, size),
        }
    }

    /// Returns the server of the key, or its replacement.
    pub(super) fn choose(
        &self,
        backends: &[Backend],
        candidates: &[Candidate],
        eligible: &dyn Fn(&Candidate) -> bool,
        key: &[u8],
    ) -> Option<usize> {
        let key = hash(Purpose::Key, &[key]);
        let slot = key.checked_rem(self.slots.len() as u64)?;
        let owner = usize::from(*self.slots.get(slot as usize)?);
        let takes = |owner: usize| {
            let (candidate, backend) = (candidates.get(owner)?, backends.get(owner)?);
            // A server in a slow start gets a growing share of its keys.
            let share = candidate.weight / backend.weight.max(1);
            let part = hash(Purpose::Share, &[&key.to_le_bytes()]) % u64::from(FULL_SHARE);
            (eligible(candidate) && part < share.into()).then_some(owner)
        };
        takes(owner).or_else(|| stand_in(backends, candidates, eligible, key))
    }
}

/// Lets the servers take slots in turn; one of half the weight takes one at every other turn (section 3.4 of the
/// paper).
fn fill(servers: &[(u16, &Backend)], size: usize) -> Vec<u16> {
    let prime = size as u64;
    let heaviest = servers.iter().map(|(_, s)| s.weight).max().unwrap_or(0).max(1);
    let mut takers: Vec<_> = servers
        .iter()
        .map(|(index, server)| Taker {
            index: *index,
            weight: server.weight.max(1),
            credit: 0,
            next: hash(Purpose::Offset, &[server.identity.as_bytes()]) % prime,
            skip: hash(Purpose::Skip, &[server.identity.as_bytes()]) % (prime - 1) + 1,
        })
        .collect();
    // The table must not depend on the order in which servers are listed.
    takers.sort_by_key(|t| (t.next, t.skip));
    let mut slots: Vec<Option<u16>> = vec![None; size];
    let mut free = if takers.is_empty() { 0 } else { size };
    while free > 0 {
        for taker in &mut takers {
            taker.credit += taker.weight;
            if taker.credit < heaviest || free == 0 {
                continue;
            }
            taker.credit -= heaviest;
            taker.take(&mut slots, prime);
            free -= 1;
        }
    }
    slots.into_iter().flatten().collect()
}

/// Server on its way through its permutation of the slots.
struct Taker {
    index: u16,
    weight: u32,
    credit: u32,
    next: u64,
    skip: u64,
}

impl Taker {
    /// Takes its next free slot; there must be one.
    fn take(&mut self, slots: &mut [Option<u16>], prime: u64) {
        // The size is prime, so the walk reaches every slot.
        for _ in 0..slots.len() {
            let here = self.next as usize;
            self.next = (self.next + self.skip) % prime;
            if let Some(slot) = slots.get_mut(here).filter(|slot| slot.is_none()) {
                *slot = Some(self.index);
                return;
            }
        }
    }
}

/// Chooses by weighted rendezvous: each server draws a number of the key and itself, and the highest for its weight
/// wins.
fn stand_in(
    backends: &[Backend],
    candidates: &[Candidate],
    eligible: &dyn Fn(&Candidate) -> bool,
    key: u64,
) -> Option<usize> {
    let score = |server: &Backend, candidate: &Candidate| {
        let drawn = hash(
            Purpose::Rendezvous,
            &[&key.to_le_bytes(), server.identity.as_bytes()],
        );
        // The number is in the open interval from 0 to 1: its logarithm is negative and finite.
        let unit = ((drawn >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
        -f64::from(candidate.weight) / unit.ln()
    };
    backends
        .iter()
        .zip(candidates)
        .enumerate()
        .filter(|(_, (_, candidate))| eligible(candidate))
        .map(|(index, (server, candidate))| (index, score(server, candidate)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(index, _)| index)
}

fn hash(purpose: Purpose, parts: &[&[u8]]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, purpose as u64);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}
