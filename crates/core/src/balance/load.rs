//! Balances by connections in use: the least loaded server of all, or of two that are drawn.

use std::cmp::Ordering;

use super::Candidate;

/// Returns the server with the fewest connections for its weight, the new one counted; one of several equal ones at
/// random.
pub(super) fn least(
    candidates: &[Candidate],
    eligible: &dyn Fn(&Candidate) -> bool,
    random: &mut dyn FnMut() -> u64,
) -> Option<usize> {
    let mut alike = 0;
    let mut best: Option<(usize, &Candidate)> = None;
    for (index, candidate) in candidates.iter().enumerate().filter(|(_, c)| eligible(c)) {
        let order = best.map_or(Ordering::Less, |(_, best)| load(candidate, best));
        alike = match order {
            Ordering::Less => 1,
            Ordering::Equal => alike + 1,
            Ordering::Greater => continue,
        };
        // Each of the equal servers is kept with the same chance.
        if alike == 1 || random().is_multiple_of(alike) {
            best = Some((index, candidate));
        }
    }
    best.map(|(index, _)| index)
}

/// Returns the less loaded of two servers that are drawn by weight.
pub(super) fn of_two(
    candidates: &[Candidate],
    eligible: &dyn Fn(&Candidate) -> bool,
    random: &mut dyn FnMut() -> u64,
) -> Option<usize> {
    let first = draw(candidates, eligible, None, random)?;
    let Some(second) = draw(candidates, eligible, Some(first), random) else {
        return Some(first);
    };
    let (a, b) = (candidates.get(first)?, candidates.get(second)?);
    Some(match load(b, a) {
        Ordering::Less => second,
        _ => first,
    })
}

fn draw(
    candidates: &[Candidate],
    eligible: &dyn Fn(&Candidate) -> bool,
    but: Option<usize>,
    random: &mut dyn FnMut() -> u64,
) -> Option<usize> {
    let drawn = || {
        candidates
            .iter()
            .enumerate()
            .filter(move |(index, c)| Some(*index) != but && eligible(c))
    };
    let total: u64 = drawn().map(|(_, c)| u64::from(c.weight)).sum();
    let mut ticket = random().checked_rem(total)?;
    for (index, candidate) in drawn() {
        match ticket.checked_sub(candidate.weight.into()) {
            None => return Some(index),
            Some(rest) => ticket = rest,
        }
    }
    None
}

/// Compares connections by weight, without division.
fn load(a: &Candidate, b: &Candidate) -> Ordering {
    let crossed = |one: &Candidate, other: &Candidate| (u64::from(one.open) + 1) * u64::from(other.weight);
    crossed(a, b).cmp(&crossed(b, a))
}
