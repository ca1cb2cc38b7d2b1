//! Decides when the old bytes of a direction are delivered, so that its sockets are no longer needed.
//!
//! While a pair drains, new segments already pass translated, and the local sockets deliver the bytes that they still
//! hold. Queue lengths alone do not show the end of that: a segment may sit in a socket's backlog, in no count. The far
//! end's acknowledgement, which the data plane sees, shows it. The acknowledgement alone does not either: the data
//! plane may count one that the socket refuses, for example by its timestamp. If the two contradict each other the
//! socket is believed, which holds the bytes.

use crate::seq::{Offset, Seq};

/// State of one direction, from the end x to the end o, at one moment: the daemon's and the data plane's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionSnapshot {
    /// Bytes that the daemon has read from x's socket and not yet written to o's.
    pub held: u64,
    /// Bytes that wait in the receive queue of x's socket.
    pub unread: u32,
    /// Next byte that the daemon will read from x's socket, in x's sequence space.
    pub copied: Seq,
    /// Highest end of payload that was shown to x's local socket, in x's sequence space.
    pub cut: Seq,
    /// Highest acknowledgement seen from o, in o's sequence space.
    pub acknowledged: Seq,
    /// Translation from x's sequence space to o's.
    pub offset: Offset,
    /// Bytes in the send queue of o's socket, sent or not, that o's socket itself counts as unacknowledged.
    pub send_queue: u32,
}

/// Returns whether the local sockets are no longer needed in this direction: the far end has acknowledged each byte
/// that a local socket or the daemon ever had, and user space holds none.
///
/// In a sane state the other conditions follow from the acknowledgement; they are checked because an error here loses
/// bytes. Ask for both directions with the record in drain mode, in which the cut no longer moves.
#[must_use]
pub fn drained(direction: &DirectionSnapshot) -> bool {
    direction.held == 0 && direction.unread == 0 && direction.send_queue == 0 && acknowledged(direction)
}

/// Returns whether the far end has acknowledged each byte, by the data plane's state alone.
#[must_use]
pub fn acknowledged(direction: &DirectionSnapshot) -> bool {
    let old_end = direction.cut.max(direction.copied);
    direction.acknowledged.at_or_after(old_end + direction.offset)
}

/// Returns whether the data plane's state says that all is acknowledged, while the socket toward the far end still
/// holds bytes. The socket may only be behind, for a moment.
#[must_use]
pub fn contradicted(direction: &DirectionSnapshot) -> bool {
    direction.send_queue != 0 && acknowledged(direction)
}

/// Returns whether the sockets of this direction may be parked (dormant), to be woken later where the segments stopped.
///
/// Beyond [`drained`], x's socket must have received exactly up to the cut, without a hole below it. A direction that is drained but
/// not parkable can be detached.
#[must_use]
pub fn parkable(direction: &DirectionSnapshot) -> bool {
    drained(direction) && direction.copied == direction.cut
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a direction in which all of 1,000 bytes are delivered; x's space starts at `start`, o's at `start +
    /// offset`.
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
    fn a_socket_that_holds_bytes_is_believed() {
        let d = DirectionSnapshot {
            send_queue: 1,
            ..through(5, 77)
        };
        assert!(!drained(&d) && !parkable(&d) && contradicted(&d));
        let acknowledged = d.acknowledged - 1;
        assert!(!contradicted(&DirectionSnapshot { acknowledged, ..d }));
        assert!(!contradicted(&through(5, 77)));
    }

    #[test]
    fn a_socket_that_would_wake_in_another_place_is_not_parked() {
        let d = through(5, 77);
        for d in [
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
