//! Smooth weighted round robin: a server of weight 3 beside one of weight 1 gets a, a, b, a and not a, a, a, b.

use super::Candidate;

/// How much each server is owed. At each choice every eligible server is owed its weight more, and the chosen one, which is owed
/// most, all of these weights less.
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
        for (index, (candidate, owed)) in candidates.iter().zip(&mut self.owed).enumerate() {
            if !eligible(candidate) {
                // What it was owed before it went is no claim when it comes back.
                *owed = 0;
                continue;
            }
            let weight = i64::from(candidate.weight);
            total += weight;
            *owed += weight;
            if most.is_none_or(|(_, best)| *owed > best) {
                most = Some((index, *owed));
            }
        }
        let (index, _) = most?;
        if let Some(owed) = self.owed.get_mut(index) {
            *owed -= total;
        }
        Some(index)
    }
}
