//! Leaves instructions for a later process of the same instance that meets a trap of this one.

use crate::skel::types::ls_successor;

/// Unit, in bytes, of a budget's distance beyond its trap.
const FURTHER: u64 = 1 << 29;

/// Greatest distance of a trap, in bytes: sequence numbers are compared modulo 2^32. It is two of these units.
const FARTHEST: u64 = 2 * FURTHER;

/// Greatest number of units that a record has room for.
const MOST_FURTHER: u32 = u32::MAX / ls_successor::LS_SUCCESSOR_FURTHER.0;

/// Says what a later process does with a pair that meets a trap, if the process that set it is gone. That one may have
/// known more of the streams than their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SuccessorAction {
    /// Relays on, and splices again: the two connections are joined as they are. Choose it if no handler would have read
    /// more of either stream.
    #[default]
    Join,
    /// Delivers the rest of the budgets, and nothing beyond them; then ends both connections in order. Choose it if later
    /// data was to be read before it is forwarded, and the data up to then is a whole.
    End,
    /// Delivers the rest of the budgets and later data, up to payload beyond a budget that waits for payload; there it
    /// ends both connections in order. Choose it if a budget is a part of a message whose end only the handler would have
    /// seen, and whose recipient can tell that it is cut.
    Follow,
}

/// Record's form of these instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SuccessorPlan {
    /// Action of the later process.
    pub action: SuccessorAction,
    /// True if payload beyond the budget meets the trap, rather than the end of the budget.
    is_data: bool,
    /// Distance of the budget's end beyond the trap, in units of [`FURTHER`] bytes.
    further: u32,
}

impl SuccessorPlan {
    /// Returns the plan for a side of which `left` bytes more may pass, 0 to 2^64 − 1; with `is_data`, payload beyond
    /// them is trapped, rather than the last one of them. Also returns the distance of its trap: 1 to 2^30 bytes from the
    /// next one on. A trap that would be farther is approached in steps.
    pub fn of(action: SuccessorAction, left: u64, is_data: bool) -> (SuccessorPlan, u32) {
        let is_data = is_data || left == 0;
        let all = left.saturating_add(is_data.into());
        let (distance, further) = match all <= FARTHEST {
            true => (all, 0),
            false => (FURTHER + all % FURTHER, all / FURTHER - 1),
        };
        let further = u32::try_from(further).unwrap_or(u32::MAX).min(MOST_FURTHER);
        let plan = SuccessorPlan {
            action,
            is_data,
            further,
        };
        // It fits: it is at most FARTHEST.
        (plan, distance as u32)
    }

    /// Returns the number of bytes that are left when the trap is this far away.
    pub fn remaining(self, distance: u32) -> u64 {
        let all = u64::from(distance) + u64::from(self.further) * FURTHER;
        all.saturating_sub(self.is_data.into())
    }

    /// Returns true if payload beyond the budget is trapped (see [`SuccessorPlan::of`]); always true if nothing is left.
    pub fn is_data(self) -> bool {
        self.is_data
    }

    pub(crate) fn raw(self) -> u32 {
        let action = match self.action {
            SuccessorAction::Join => 0,
            SuccessorAction::End => ls_successor::LS_SUCCESSOR_END.0,
            SuccessorAction::Follow => ls_successor::LS_SUCCESSOR_FOLLOW.0,
        };
        let data = if self.is_data {
            ls_successor::LS_SUCCESSOR_DATA.0
        } else {
            0
        };
        action | data | (self.further * ls_successor::LS_SUCCESSOR_FURTHER.0)
    }

    pub(crate) fn from_raw(raw: u32) -> SuccessorPlan {
        let has = |flag: ls_successor| raw & flag.0 != 0;
        SuccessorPlan {
            action: match (
                has(ls_successor::LS_SUCCESSOR_FOLLOW),
                has(ls_successor::LS_SUCCESSOR_END),
            ) {
                (true, _) => SuccessorAction::Follow,
                (false, true) => SuccessorAction::End,
                (false, false) => SuccessorAction::Join,
            },
            is_data: has(ls_successor::LS_SUCCESSOR_DATA),
            further: raw / ls_successor::LS_SUCCESSOR_FURTHER.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_knows_how_much_is_left() {
        let lengths = [
            1,
            1448,
            FARTHEST - 1,
            FARTHEST,
            FARTHEST + 1,
            3 * FURTHER - 1,
            3 * FURTHER,
            (1 << 40) + 12_345,
        ];
        for left in lengths {
            for is_data in [false, true] {
                for action in [
                    SuccessorAction::Join,
                    SuccessorAction::End,
                    SuccessorAction::Follow,
                ] {
                    let (plan, distance) = SuccessorPlan::of(action, left, is_data);
                    assert!((1..=FARTHEST).contains(&distance.into()), "{left}: {distance}");
                    let read = SuccessorPlan::from_raw(plan.raw());
                    assert_eq!((read, read.action), (plan, action), "{left}");
                    assert_eq!((read.remaining(distance), read.is_data()), (left, is_data));
                    // Some of it has passed.
                    assert_eq!(read.remaining(distance - 1), left - 1);
                }
            }
        }
    }

    #[test]
    fn where_nothing_is_left_the_next_byte_is_beyond() {
        for is_data in [false, true] {
            let (plan, distance) = SuccessorPlan::of(SuccessorAction::End, 0, is_data);
            assert_eq!((distance, plan.remaining(1), plan.is_data()), (1, 0, true));
        }
    }

    #[test]
    fn more_than_there_is_room_for_is_more_than_will_ever_pass() {
        let (plan, distance) = SuccessorPlan::of(SuccessorAction::End, u64::MAX, true);
        assert!(u64::from(distance) <= FARTHEST);
        assert!(SuccessorPlan::from_raw(plan.raw()).remaining(distance) >= 1 << 57);
    }

    #[test]
    fn a_record_that_says_nothing_has_the_pair_joined() {
        assert_eq!(SuccessorPlan::from_raw(0), SuccessorPlan::default());
        assert_eq!(SuccessorPlan::default().action, SuccessorAction::Join);
    }
}
