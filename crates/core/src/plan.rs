//! Matches two legs, and plans how the segments of one become those of the other.
//!
//! The options that TCP negotiated in the two handshakes are fixed. A difference that is arithmetic (scales) or can be
//! blanked (a one-sided SACK) is translated; with any other the pair stays relayed (papers' section III-B for the
//! first, RFC 7323, RFC 3168 and RFC 9293 section 3.7.1 for the others).

use crate::{reason::RelayReason, side::PerSide};

/// Options that a leg negotiated in its handshake, as our socket on it shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegOptions {
    /// True for timestamps (RFC 7323 section 3).
    pub timestamps: bool,
    /// True for selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// True for explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Scale of the window field that the peer sends; 0 without window scaling.
    pub peer_scale: u8,
    /// Scale of the window field that we send.
    pub our_scale: u8,
    /// MSS that we offered to the peer: it sends no longer segments.
    pub offered_mss: u32,
    /// Longest segment that may be sent to the peer, timestamps included.
    pub peer_mss: u32,
    /// Largest window that the peer has offered, in bytes.
    pub peer_window: u32,
}

/// Window that is no small one, whatever the length of a segment, in bytes: on the loopback, two are longer than most first windows.
const SMALL: u32 = 16 << 10;

impl LegOptions {
    /// Returns true if two full segments of this leg's peer are longer than any window of the other leg's peer. A sender that was
    /// offered larger windows before does not shorten its segments: each would wait for the persist timer (RFC 9293 section
    /// 3.8.6.2.1), or for the acknowledgement that a receiver delays until it has a second one (section 3.8.6.3).
    fn exceeds_window_of(&self, other: &LegOptions) -> bool {
        let payload = self
            .offered_mss
            .saturating_sub(timestamps_length(self.timestamps));
        other.peer_window < payload.max(payload.saturating_mul(2).min(SMALL))
    }
}

/// Returns the bytes that timestamps take in each segment, with their padding (RFC 7323 appendix A).
pub fn timestamps_length(negotiated: bool) -> u32 {
    if negotiated { 12 } else { 0 }
}

/// Constant translation of the segments of one direction, from x to o, except for the sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectionPlan {
    /// Scale of x's window field.
    pub scale_in: u8,
    /// Scale that o applies.
    pub scale_out: u8,
    /// True if SACK options of x must be blanked, because o did not permit them.
    pub blank_sack: bool,
}

/// Translation of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// True if both legs use timestamps.
    pub timestamps: bool,
    /// Directions from A to B, and from B to A.
    pub directions: PerSide<DirectionPlan>,
}

/// Matches two legs.
///
/// # Errors
/// The reason for which they have to be relayed.
pub fn match_legs(a: &LegOptions, b: &LegOptions) -> Result<Plan, RelayReason> {
    if a.timestamps != b.timestamps {
        return Err(RelayReason::Timestamps);
    }
    if a.ecn != b.ecn {
        return Err(RelayReason::Ecn);
    }
    if a.offered_mss > b.peer_mss || b.offered_mss > a.peer_mss {
        return Err(RelayReason::Mss);
    }
    if a.exceeds_window_of(b) || b.exceeds_window_of(a) {
        return Err(RelayReason::SmallWindow);
    }
    let direction = |x: &LegOptions, o: &LegOptions| DirectionPlan {
        scale_in: x.peer_scale,
        scale_out: o.our_scale,
        blank_sack: x.sack && !o.sack,
    };
    Ok(Plan {
        timestamps: a.timestamps,
        directions: PerSide::new(direction(a, b), direction(b, a)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX: LegOptions = LegOptions {
        timestamps: true,
        sack: true,
        ecn: false,
        peer_scale: 7,
        our_scale: 9,
        offered_mss: 1460,
        peer_mss: 1460,
        peer_window: 65_535,
    };

    #[test]
    fn scales_are_taken_from_the_leg_on_which_they_were_agreed() {
        let other = LegOptions {
            peer_scale: 2,
            our_scale: 3,
            sack: false,
            ..LINUX
        };
        let plan = match_legs(&LINUX, &other).unwrap();
        assert_eq!(
            plan.directions.client,
            DirectionPlan {
                scale_in: 7,
                scale_out: 3,
                blank_sack: true
            }
        );
        assert_eq!(
            plan.directions.server,
            DirectionPlan {
                scale_in: 2,
                scale_out: 9,
                blank_sack: false
            }
        );
    }

    #[test]
    fn what_cannot_be_translated_is_relayed_and_says_why() {
        let cases = [
            (
                LegOptions {
                    timestamps: false,
                    ..LINUX
                },
                RelayReason::Timestamps,
            ),
            (LegOptions { ecn: true, ..LINUX }, RelayReason::Ecn),
            (
                LegOptions {
                    peer_mss: 1400,
                    ..LINUX
                },
                RelayReason::Mss,
            ),
            (
                LegOptions {
                    offered_mss: 8960,
                    ..LINUX
                },
                RelayReason::Mss,
            ),
            (
                LegOptions {
                    peer_window: 2895,
                    ..LINUX
                },
                RelayReason::SmallWindow,
            ),
        ];
        for (other, reason) in cases {
            assert_eq!(match_legs(&LINUX, &other), Err(reason));
            assert_eq!(match_legs(&other, &LINUX), Err(reason));
        }
        // A window takes two full segments.
        let narrow = LegOptions {
            peer_window: 2896,
            ..LINUX
        };
        assert!(match_legs(&LINUX, &narrow).is_ok());
        // Segments that are shorter than the limit fit.
        let small = LegOptions {
            offered_mss: 536,
            ..LINUX
        };
        assert!(match_legs(&LINUX, &small).is_ok());
    }
}
