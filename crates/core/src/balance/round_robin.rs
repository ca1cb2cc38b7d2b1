//! Balances by smooth weighted round robin: a server of weight 3 beside one of weight 1 gets a, a, b, a and not a, a,
//! a, b.

use super::Candidate;

/// Credit of each server. At each choice every eligible server's credit grows by its weight, and the chosen one, which
/// has the highest credit, loses the sum of these weights. A server that is full, or less preferred by this client, keeps
/// its credit: it takes part in other choices meanwhile.
#[derive(Debug, Clone)]
pub(super) struct RoundRobin {
    owed: Vec<i64>,
}

impl RoundRobin {
    pub(super) fn new(servers: usize) -> RoundRobin {
        RoundRobin {
            owed: vec![0; servers],
        }
    }

    pub(super) fn choose(
        &mut self,
        candidates: &[Candidate],
        eligible: &dyn Fn(&Candidate) -> bool,
    ) -> Option<usize> {
        let mut total = 0;
        let mut most: Option<(usize, i64)> = None;
        let all = candidates.iter().zip(&mut self.owed).enumerate();
        for (index, (candidate, owed)) in all.filter(|(_, (candidate, _))| eligible(candidate)) {
            let weight = i64::from(candidate.weight);
            total += weight;
            *owed += weight;
            if most.is_none_or(|(_, best)| *owed > best) {
                most = Some((index, *owed));
            }
        }
        let (index, _) = most?;
        let chosen = candidates.get(index)?.eligibility;
        for (candidate, owed) in candidates.iter().zip(&mut self.owed) {
            // A server that comes back must not claim its old credit.
            if candidate.eligibility > chosen {
                *owed = 0;
            }
        }
        if let Some(owed) = self.owed.get_mut(index) {
            *owed -= total;
        }
        Some(index)
    }
}
