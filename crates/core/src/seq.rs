//! Computes with sequence numbers of TCP, and translates between the sequence spaces of two connections.

use std::{
    fmt,
    ops::{Add, Neg, Sub},
};

use serde::{Deserialize, Serialize};

/// Sequence number: a point on a circle of 2^32 (RFC 9293 section 3.4).
///
/// Comparisons hold for two points less than 2^31 apart, which windows of at most 2^30 bytes ensure (RFC 7323 section
/// 2.3). On a circle "before" is not transitive, so this type has no `Ord`: each comparison says what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[must_use]
pub struct Seq(u32);

impl Seq {
    /// Makes the sequence number that stands in a header, in host byte order.
    pub const fn new(raw: u32) -> Self {
        Seq(raw)
    }

    /// Returns the number for a header, in host byte order.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns whether this point comes before the other. Points exactly 2^31 apart are each before the other.
    #[must_use]
    pub const fn before(self, other: Seq) -> bool {
        self.signed_distance(other) < 0
    }

    /// Returns whether this point comes after the other.
    #[must_use]
    pub const fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// Returns whether this point comes before the other or is the same.
    #[must_use]
    pub const fn at_or_before(self, other: Seq) -> bool {
        !self.after(other)
    }

    /// Returns whether this point comes after the other or is the same.
    #[must_use]
    pub const fn at_or_after(self, other: Seq) -> bool {
        !self.before(other)
    }

    /// Returns the later of two points.
    pub const fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    /// Returns the earlier of two points.
    pub const fn min(self, other: Seq) -> Seq {
        if other.before(self) { other } else { self }
    }

    /// Returns how many numbers lie from `earlier` up to this point; 0 if `earlier` is not earlier.
    #[must_use]
    pub const fn bytes_since(self, earlier: Seq) -> u32 {
        if self.before(earlier) {
            0
        } else {
            self.distance_from(earlier)
        }
    }

    /// Returns how many numbers lie from `start` on to this point, around the circle if it comes before.
    #[must_use]
    pub const fn distance_from(self, start: Seq) -> u32 {
        self.0.wrapping_sub(start.0)
    }

    const fn signed_distance(self, from: Seq) -> i32 {
        self.distance_from(from) as i32
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    fn add(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;

    fn sub(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_sub(bytes))
    }
}

/// Returns the signed distance: positive if `self` comes after `other`.
impl Sub<Seq> for Seq {
    type Output = i32;

    fn sub(self, other: Seq) -> i32 {
        self.signed_distance(other)
    }
}

/// Translation from one sequence space to another: a constant for each direction of a pair, known since both
/// handshakes, as long as no bytes are inserted into the stream or removed from it.
///
/// `seq + offset` translates, `seq - offset` translates back. Written out, it is its number modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[must_use]
pub struct Offset(u32);

impl Offset {
    /// Returns the translation under which `from` becomes `to`: for the direction from A to B, the initial receive
    /// sequence of A's socket and the initial send sequence of B's.
    pub const fn between(from: Seq, to: Seq) -> Self {
        Offset(to.0.wrapping_sub(from.0))
    }

    /// Makes a translation from the number that is added, modulo 2^32.
    pub const fn new(raw: u32) -> Self {
        Offset(raw)
    }

    /// Returns the number that is added, modulo 2^32.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns this translation followed by another.
    pub const fn then(self, next: Offset) -> Self {
        Offset(self.0.wrapping_add(next.0))
    }

    /// Returns the translation of the bytes after `bytes` were inserted into the stream.
    pub const fn inserted(self, bytes: u32) -> Self {
        Offset(self.0.wrapping_add(bytes))
    }

    /// Returns the translation of the bytes after `bytes` were removed from the stream.
    pub const fn removed(self, bytes: u32) -> Self {
        Offset(self.0.wrapping_sub(bytes))
    }
}

/// Returns the inverse: the translation back.
impl Neg for Offset {
    type Output = Offset;

    fn neg(self) -> Offset {
        Offset(self.0.wrapping_neg())
    }
}

impl Add<Offset> for Seq {
    type Output = Seq;

    fn add(self, offset: Offset) -> Seq {
        Seq(self.0.wrapping_add(offset.0))
    }
}

impl Sub<Offset> for Seq {
    type Output = Seq;

    fn sub(self, offset: Offset) -> Seq {
        Seq(self.0.wrapping_sub(offset.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Yields any point, and more often one beside the wrap.
    fn seq() -> impl Strategy<Value = Seq> {
        prop_oneof![any::<u32>(), 0..100u32, (u32::MAX - 100)..=u32::MAX].prop_map(Seq::new)
    }

    fn offset() -> impl Strategy<Value = Offset> {
        any::<u32>().prop_map(Offset::new)
    }

    const HALF: u32 = 1 << 31;

    proptest! {
        #[test]
        fn order_is_antisymmetric_below_half_a_circle(a in seq(), d in 1..HALF) {
            let b = a + d;
            prop_assert!(a.before(b) && b.after(a) && !b.before(a) && !a.after(b));
            prop_assert!(a.at_or_before(b) && b.at_or_after(a) && !a.at_or_after(b));
            prop_assert_eq!((a.max(b), b.max(a), a.min(b), b.min(a)), (b, b, a, a));
            prop_assert_eq!((b - a, a - b), (d as i32, -(d as i32)));
            prop_assert_eq!((b.bytes_since(a), a.bytes_since(b)), (d, 0));
            prop_assert_eq!((b.distance_from(a), a.distance_from(b)), (d, d.wrapping_neg()));
        }

        #[test]
        fn a_point_is_neither_before_nor_after_itself(a in seq()) {
            prop_assert!(!a.before(a) && !a.after(a) && a.at_or_before(a) && a.at_or_after(a));
            prop_assert_eq!((a - a, a.bytes_since(a), a.max(a)), (0, 0, a));
        }

        #[test]
        fn translating_back_is_the_identity(s in seq(), o in offset()) {
            prop_assert_eq!(s + o - o, s);
            prop_assert_eq!(s + o + -o, s);
            prop_assert_eq!(Offset::between(s, s + o), o);
        }

        #[test]
        fn translation_keeps_order_and_distance(a in seq(), d in 0..HALF, o in offset()) {
            prop_assert_eq!((a + d + o) - (a + o), d as i32);
            prop_assert_eq!((a + o).before(a + d + o), a.before(a + d));
        }

        #[test]
        fn offsets_compose(s in seq(), p in offset(), q in offset(), n in any::<u32>()) {
            prop_assert_eq!(s + p.then(q), s + p + q);
            prop_assert_eq!(p.then(-p), Offset::default());
            prop_assert_eq!(p.inserted(n).removed(n), p);
            prop_assert_eq!(s + p.inserted(n), s + n + p);
        }
    }
}
