//! Chooses the server of an upstream for a connection or request.
//!
//! A choice has three steps. It takes the lowest tier that has a ready server, so that backups wait for their turn. It
//! leaves out servers that are full, drained, down or tried already. Among the rest the algorithm decides, by weight.
//! Servers that are out because connections failed ([`Eligibility::Doubtful`]) are only chosen if no other server is left
//! in any tier: their state is a guess, and a doubtful server is better than none.

mod load;
mod maglev;
mod round_robin;
mod sticky;

use maglev::Maglev;
use round_robin::RoundRobin;
pub use sticky::sticky_id;

/// Unit of candidates' weights, so that a slow start can give a server a fraction of its weight.
pub const FULL_SHARE: u32 = 256;
/// Largest weight that a server may have.
pub const MAX_WEIGHT: u32 = 1000;

/// Algorithm that chooses a server of one tier.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case", parse_err_ty = ParseAlgorithmError, parse_err_fn = ParseAlgorithmError::of)]
pub enum Algorithm {
    /// Takes the servers in turn, interleaved smoothly by weight.
    #[default]
    RoundRobin,
    /// Takes the server with the fewest connections for its weight.
    LeastConnections,
    /// Draws two servers by weight, and takes the one with fewer connections for its weight.
    P2c,
    /// Hashes a key: the same server for the same key (Maglev: Eisenbud et al., NSDI 2016, section 3.4).
    Hash,
    /// Takes the first server that has room, independently of the weights.
    First,
}

/// Configured properties of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Unique name of the server, the same on all switches that are to distribute keys alike.
    pub identity: String,
    /// Weight, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Tier of the server.
    pub tier: u32,
}

/// State of a server when a choice is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Weight in parts: [`FULL_SHARE`] times [`Backend::weight`], less in a slow start, never 0.
    pub weight: u32,
    /// Number of connections in use.
    pub open: u32,
    /// Tier of the server: lower ones are preferred. With [`Algorithm::First`] the order.
    pub tier: u32,
    /// Eligibility of the server.
    pub eligibility: Eligibility,
    /// True if the server has as many connections as it may.
    pub full: bool,
}

/// Eligibility of a server, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Eligibility {
    /// The server is in order.
    Ready,
    /// Connections to the server failed lately.
    Doubtful,
    /// The server is down, drained, or was tried already.
    Excluded,
}

/// Result of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The server of this index.
    Server(usize),
    /// No server has room now: the caller can wait for one.
    Full,
    /// No server can be chosen.
    NoneEligible,
}

/// Servers of an upstream, with the state of the algorithm.
#[derive(Debug, Clone)]
pub struct Balancer {
    algorithm: Algorithm,
    backends: Vec<Backend>,
    turns: RoundRobin,
    table: Option<Maglev>,
}

impl Balancer {
    /// Makes the balancer of these servers; candidates come in the same order.
    pub fn new(algorithm: Algorithm, backends: Vec<Backend>) -> Balancer {
        Balancer {
            algorithm,
            turns: RoundRobin::new(backends.len()),
            table: (algorithm == Algorithm::Hash).then(|| Maglev::new(&backends)),
            backends,
        }
    }

    /// Chooses a server. `candidates` are the listed servers in their present state; `key` is the text that
    /// [`Algorithm::Hash`] hashes, without which it takes turns; `random` gives evenly distributed numbers.
    pub fn choose(
        &mut self,
        candidates: &[Candidate],
        key: Option<&[u8]>,
        random: &mut dyn FnMut() -> u64,
    ) -> Choice {
        for eligibility in [Eligibility::Ready, Eligibility::Doubtful] {
            let of_it = || candidates.iter().filter(move |c| c.eligibility == eligibility);
            // In order, a full server passes connections on to the next; otherwise a full server is no reason to use a
            // backup.
            let tier = match self.algorithm {
                Algorithm::First => of_it().filter(|c| !c.full).map(|c| c.tier).min(),
                _ => of_it().map(|c| c.tier).min(),
            };
            let Some(tier) = tier.or_else(|| of_it().map(|c| c.tier).min()) else {
                continue;
            };
            let eligible = |c: &Candidate| c.eligibility == eligibility && c.tier == tier && !c.full;
            return match self.among(candidates, &eligible, key, random) {
                Some(index) => Choice::Server(index),
                None => Choice::Full,
            };
        }
        Choice::NoneEligible
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
                table.choose(&self.backends, candidates, eligible, key)
            }
            (Algorithm::RoundRobin | Algorithm::Hash, ..) => self.turns.choose(candidates, eligible),
            (Algorithm::LeastConnections, ..) => load::least(candidates, eligible, random),
            (Algorithm::P2c, ..) => load::of_two(candidates, eligible, random),
            (Algorithm::First, ..) => candidates.iter().position(eligible),
        }
    }
}

crate::named!(pub Algorithm);

/// Error of a name that no algorithm has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no way to balance: use round_robin, least_connections, p2c, first, hash=client, hash=header:NAME or hash=cookie:NAME"
)]
pub struct ParseAlgorithmError(pub String);

impl ParseAlgorithmError {
    fn of(name: &str) -> ParseAlgorithmError {
        ParseAlgorithmError(name.to_owned())
    }
}

#[cfg(test)]
mod tests;
