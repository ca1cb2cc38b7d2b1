//! Balancing: which server of an upstream a connection or request gets.
//!
//! A choice has three steps. The lowest tier that has a server in order is taken, so that backups wait for their turn. Servers
//! that are full, drained, down or tried already are left out. Among the rest the algorithm decides, by weight. Servers that are
//! out because connections failed ([`Standing::Doubtful`]) are only chosen where no other server is left in any tier: that they
//! are out is a guess, and a doubtful server is better than none.

mod load;
mod maglev;
mod round_robin;
mod sticky;

use std::{fmt, str::FromStr};

use maglev::Maglev;
use round_robin::RoundRobin;
pub use sticky::sticky_id;

/// Weights of candidates are counted in these parts, so that a slow start can give a server a fraction of its weight.
pub const FULL_SHARE: u32 = 256;
/// The largest weight that a server may have.
pub const MAX_WEIGHT: u32 = 1000;

/// How a server is chosen among those of one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// In turn, interleaved smoothly by weight.
    #[default]
    RoundRobin,
    /// The one with the fewest connections for its weight.
    LeastConnections,
    /// The one with fewer connections for its weight, of two that are drawn by weight.
    RandomOfTwo,
    /// By a key, the same server for the same key (Maglev: Eisenbud et al., NSDI 2016, section 3.4).
    Hash,
    /// The first that can take it, whatever the weights.
    InOrder,
}

/// What a choice knows of one server beforehand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What it is called wherever keys are to be distributed alike; one of a kind.
    pub identity: String,
    /// 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Its tier.
    pub tier: u32,
}

/// A server as it stands when a choice is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its weight in parts: [`FULL_SHARE`] times [`Listed::weight`], less in a slow start, never 0.
    pub weight: u32,
    /// Its connections in use.
    pub open: u32,
    /// Its tier: lower ones are preferred. With [`Algorithm::InOrder`] the order.
    pub tier: u32,
    /// Whether it can be chosen.
    pub standing: Standing,
    /// Whether it has as many connections as it may.
    pub full: bool,
}

/// Whether a server can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is in order.
    Ready,
    /// Connections to it failed lately.
    Doubtful,
    /// It is down, drained, or was tried already.
    Excluded,
}

/// What was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The server of this index.
    Server(usize),
    /// None has a place now: one that has can be waited for.
    Full,
    /// None can be chosen.
    Nobody,
}

/// The servers of an upstream, and whose turn it is.
#[derive(Debug, Clone)]
pub struct Balancer {
    algorithm: Algorithm,
    listed: Vec<Listed>,
    turns: RoundRobin,
    table: Option<Maglev>,
}

impl Balancer {
    /// Of these servers; candidates come in the same order.
    pub fn new(algorithm: Algorithm, listed: Vec<Listed>) -> Balancer {
        Balancer {
            algorithm,
            turns: RoundRobin::new(listed.len()),
            table: (algorithm == Algorithm::Hash).then(|| Maglev::new(&listed)),
            listed,
        }
    }

    /// Chooses. `candidates` are the listed servers as they stand; `key` is what [`Algorithm::Hash`] hashes, without which it
    /// takes turns; `random` gives evenly distributed numbers.
    pub fn choose(
        &mut self,
        candidates: &[Candidate],
        key: Option<&[u8]>,
        random: &mut dyn FnMut() -> u64,
    ) -> Choice {
        for standing in [Standing::Ready, Standing::Doubtful] {
            let of_it = || candidates.iter().filter(move |c| c.standing == standing);
            // In order, a full server passes connections on to the next; otherwise it is no reason to bother a backup.
            let tier = match self.algorithm {
                Algorithm::InOrder => of_it().filter(|c| !c.full).map(|c| c.tier).min(),
                _ => of_it().map(|c| c.tier).min(),
            };
            let Some(tier) = tier.or_else(|| of_it().map(|c| c.tier).min()) else {
                continue;
            };
            let eligible = |c: &Candidate| c.standing == standing && c.tier == tier && !c.full;
            return match self.among(candidates, &eligible, key, random) {
                Some(index) => Choice::Server(index),
                None => Choice::Full,
            };
        }
        Choice::Nobody
    }

    fn among(
        &mut self,
        candidates: &[Candidate],
        eligible: &dyn Fn(&Candidate) -> bool,
        key: Option<&[u8]>,
        random: &mut dyn FnMut() -> u64,
    ) -> Option<usize> {
        match (self.algorithm, key, &self.table) {
            (Algorithm::Hash, Some(key), Some(table)) => {
                table.choose(&self.listed, candidates, eligible, key)
            }
            (Algorithm::RoundRobin | Algorithm::Hash, ..) => self.turns.choose(candidates, eligible),
            (Algorithm::LeastConnections, ..) => load::least(candidates, eligible, random),
            (Algorithm::RandomOfTwo, ..) => load::of_two(candidates, eligible, random),
            (Algorithm::InOrder, ..) => candidates.iter().position(eligible),
        }
    }
}

impl Algorithm {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Algorithm::RoundRobin => "round_robin",
            Algorithm::LeastConnections => "least_connections",
            Algorithm::RandomOfTwo => "random_of_two",
            Algorithm::Hash => "hash",
            Algorithm::InOrder => "in_order",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No algorithm has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no way to balance: use round_robin, least_connections, random_of_two, in_order, hash=client, hash=header:NAME or hash=cookie:NAME"
)]
pub struct ParseAlgorithmError(pub String);

/// A name without what is hashed.
impl FromStr for Algorithm {
    type Err = ParseAlgorithmError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        [
            Algorithm::RoundRobin,
            Algorithm::LeastConnections,
            Algorithm::RandomOfTwo,
            Algorithm::Hash,
            Algorithm::InOrder,
        ]
        .into_iter()
        .find(|a| a.as_str() == s)
        .ok_or_else(|| ParseAlgorithmError(s.to_owned()))
    }
}

#[cfg(test)]
mod tests;
