//! When the old bytes of a direction are through, so that its sockets are no longer needed.
//!
//! While a pair drains, new segments already pass translated, and what the local sockets still hold is delivered by
//! them. Queue lengths cannot tell the end of that: a segment may sit in a socket's backlog, acknowledged by nobody's
//! count. What tells it is the far end's acknowledgement, which the data plane sees.

use crate::seq::{Offset, Seq};

/// One direction, from the end x to the end o, at one moment: what the daemon knows and what the data plane recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionSnapshot {
    /// Bytes that the daemon has read from x's socket and not yet written to o's.
    pub held: u64,
    /// Bytes that wait in the receive queue of x's socket.
    pub unread: u32,
    /// The next byte that the daemon will read from x's socket, in x's sequence space.
    pub copied: Seq,
    /// The highest end of payload that was shown to x's local socket, in x's sequence space.
    pub cut: Seq,
    /// The highest acknowledgement seen from o, in o's sequence space.
    pub acknowledged: Seq,
    /// The translation from x's sequence space to o's.
    pub offset: Offset,
    /// Bytes in the send queue of o's socket, sent or not, that o's socket itself holds for unacknowledged.
    pub send_queue: u32,
}

/// Whether nothing in this direction depends on the local sockets any more: the far end has acknowledged each byte that
/// a local socket or the daemon has ever had, and none is left in user space.
///
/// The first two conditions follow from the third in a sane state; they are checked because to be wrong here loses
/// bytes. Ask for both directions with the record in drain mode, in which the cut no longer moves.
#[must_use]
pub fn drained(direction: &DirectionSnapshot) -> bool {
    let old_end = direction.cut.max(direction.copied);
    direction.held == 0
        && direction.unread == 0
        && direction.acknowledged.at_or_after(old_end + direction.offset)
}

/// Whether the sockets of this direction may be parked (dormant), to be woken later where the segments stopped.
///
/// Beyond [`drained`], x's socket must have received exactly up to the cut, without a hole below it, and o's socket
/// must know that all it sent was acknowledged: it would retransmit on waking. A direction that is drained but not
/// parkable can be detached.
#[must_use]
pub fn parkable(direction: &DirectionSnapshot) -> bool {
    drained(direction) && direction.send_queue == 0 && direction.copied == direction.cut
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All of 1,000 bytes went through; x's space starts at `start`, o's at `start + offset`.
    fn through(start: u32, offset: u32) -> DirectionSnapshot {
        let (start, offset) = (Seq::new(start), Offset::new(offset));
        DirectionSnapshot {
            held: 0,
            unread: 0,
            copied: start + 1000,
            cut: start + 1000,
            acknowledged: start + 1000 + offset,
            offset,
            send_queue: 0,
        }
    }

    #[test]
    fn all_acknowledged_is_drained_and_parkable() {
        let d = through(5, 77);
        assert!(drained(&d) && parkable(&d));
        // New segments were forwarded and acknowledged meanwhile.
        let d = DirectionSnapshot {
            acknowledged: d.acknowledged + 50_000,
            ..d
        };
        assert!(drained(&d) && parkable(&d));
    }

    #[test]
    fn bytes_in_the_daemon_or_the_receive_queue_are_not_through() {
        let d = through(5, 77);
        assert!(!drained(&DirectionSnapshot { held: 1, ..d }));
        assert!(!drained(&DirectionSnapshot { unread: 1, ..d }));
    }

    #[test]
    fn an_acknowledgement_short_of_the_cut_is_not_enough() {
        let d = through(5, 77);
        assert!(!drained(&DirectionSnapshot {
            acknowledged: d.acknowledged - 1,
            ..d
        }));
        // The daemon copied bytes that the record of the cut lags behind: they count, too.
        assert!(!drained(&DirectionSnapshot {
            copied: d.cut + 1,
            ..d
        }));
        // The socket was shown more than the daemon could read, beyond a hole.
        assert!(!drained(&DirectionSnapshot {
            cut: d.copied + 1,
            ..d
        }));
    }

    #[test]
    fn a_socket_that_would_wake_in_another_place_is_not_parked() {
        let d = through(5, 77);
        for d in [
            DirectionSnapshot { send_queue: 1, ..d },
            DirectionSnapshot {
                copied: d.cut - 1,
                ..d
            },
            DirectionSnapshot { cut: d.cut - 1, ..d },
        ] {
            assert!(drained(&d) && !parkable(&d), "{d:?}");
        }
    }

    proptest! {
        #[test]
        fn the_wrap_changes_nothing(start: u32, offset: u32, short in 1..1_000_000u32, more in 0..1_000_000u32) {
            let d = through(start, offset);
            prop_assert!(drained(&d) && parkable(&d));
            let acknowledged = |acknowledged| DirectionSnapshot { acknowledged, ..d };
            prop_assert!(!drained(&acknowledged(d.acknowledged - short)));
            prop_assert!(drained(&acknowledged(d.acknowledged + more)));
            let behind = DirectionSnapshot { copied: d.copied - short, ..d };
            prop_assert!(!parkable(&behind));
        }
    }
}
