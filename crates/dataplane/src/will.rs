//! What a process leaves to a later one of the same instance that meets a trap of its.

use crate::skel::types::ls_will;

/// How much further than its trap a budget may reach is counted in this many bytes.
const FURTHER: u64 = 1 << 29;

/// How far away a trap may be, in bytes: sequence numbers are compared modulo 2^32. Two of the above.
const FARTHEST: u64 = 2 * FURTHER;

/// The most that a record has room for.
const MOST_FURTHER: u32 = u32::MAX / ls_will::LS_WILL_FURTHER.0;

/// What a later process does with a pair that meets a trap, where the process that set it is gone. That one may have known more
/// of the streams than where they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Successor {
    /// Relays on, and splices again: the two connections are joined as they are. Right where nobody would have read more of
    /// either stream.
    #[default]
    Joins,
    /// Delivers what is left of the budgets, and nothing beyond them; then it ends both connections in order. Right where what
    /// follows was to be read before it is forwarded, and what has passed by then is a whole.
    Ends,
    /// The same, but what follows passes, too, up to payload beyond a budget of those that wait for payload: it ends there. Right
    /// where a budget is a part of something whose end only the handler would have seen, and that tells its recipient
    /// when it is cut.
    Follows,
}

/// What a record says of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Will {
    /// What is to be done.
    pub successor: Successor,
    /// It is payload beyond the budget that meets the trap, not the end of the budget.
    is_data: bool,
    /// The budget reaches so many times [`FURTHER`] bytes beyond the trap.
    further: u32,
}

impl Will {
    /// For a side of which `left` bytes more may pass, 0 to 2^64 − 1; `is_data`: and of which it is payload beyond them that
    /// is trapped, not the last one of them. With it, how far away its trap is to be: 1 to 2^30 bytes from the next one on. A
    /// trap that would be farther is approached in steps.
    pub fn of(successor: Successor, left: u64, is_data: bool) -> (Will, u32) {
        let is_data = is_data || left == 0;
        let all = left.saturating_add(is_data.into());
        let (distance, further) = match all <= FARTHEST {
            true => (all, 0),
            false => (FURTHER + all % FURTHER, all / FURTHER - 1),
        };
        let further = u32::try_from(further).unwrap_or(u32::MAX).min(MOST_FURTHER);
        let will = Will {
            successor,
            is_data,
            further,
        };
        // At most FARTHEST.
        (will, distance as u32)
    }

    /// How many bytes are left where the trap is this far away.
    pub fn left(self, distance: u32) -> u64 {
        let all = u64::from(distance) + u64::from(self.further) * FURTHER;
        all.saturating_sub(self.is_data.into())
    }

    /// See [`Will::of`]: where nothing is left, it is payload beyond.
    pub fn is_data(self) -> bool {
        self.is_data
    }

    pub(crate) fn raw(self) -> u32 {
        let successor = match self.successor {
            Successor::Joins => 0,
            Successor::Ends => ls_will::LS_WILL_END.0,
            Successor::Follows => ls_will::LS_WILL_FOLLOW.0,
        };
        let data = if self.is_data { ls_will::LS_WILL_DATA.0 } else { 0 };
        successor | data | (self.further * ls_will::LS_WILL_FURTHER.0)
    }

    pub(crate) fn from_raw(raw: u32) -> Will {
        let has = |flag: ls_will| raw & flag.0 != 0;
        Will {
            successor: match (has(ls_will::LS_WILL_FOLLOW), has(ls_will::LS_WILL_END)) {
                (true, _) => Successor::Follows,
                (false, true) => Successor::Ends,
                (false, false) => Successor::Joins,
            },
            is_data: has(ls_will::LS_WILL_DATA),
            further: raw / ls_will::LS_WILL_FURTHER.0,
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
                for successor in [Successor::Joins, Successor::Ends, Successor::Follows] {
                    let (will, distance) = Will::of(successor, left, is_data);
                    assert!((1..=FARTHEST).contains(&distance.into()), "{left}: {distance}");
                    let read = Will::from_raw(will.raw());
                    assert_eq!((read, read.successor), (will, successor), "{left}");
                    assert_eq!((read.left(distance), read.is_data()), (left, is_data));
                    // Some of it has passed.
                    assert_eq!(read.left(distance - 1), left - 1);
                }
            }
        }
    }

    #[test]
    fn where_nothing_is_left_the_next_byte_is_beyond() {
        for is_data in [false, true] {
            let (will, distance) = Will::of(Successor::Ends, 0, is_data);
            assert_eq!((distance, will.left(1), will.is_data()), (1, 0, true));
        }
    }

    #[test]
    fn more_than_there_is_room_for_is_more_than_will_ever_pass() {
        let (will, distance) = Will::of(Successor::Ends, u64::MAX, true);
        assert!(u64::from(distance) <= FARTHEST);
        assert!(Will::from_raw(will.raw()).left(distance) >= 1 << 57);
    }

    #[test]
    fn a_record_that_says_nothing_has_the_pair_joined() {
        assert_eq!(Will::from_raw(0), Will::default());
        assert_eq!(Will::default().successor, Successor::Joins);
    }
}
