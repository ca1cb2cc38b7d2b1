//! Byte patterns of verified traffic.
//!
//! Every direction of every connection has a pattern of its own: it starts at a position in one table of
//! pseudo-random bytes and runs around the table for ever. The table's length is a prime, so that no power of two
//! (the sizes of buffers and segments) is a period of it: bytes that were shifted, repeated or swapped with those of
//! another connection do not match. Comparing is a `memcmp`, so that checking keeps up with 10 Gbit/s.

use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use crate::random::mix;

/// Period of a pattern, a prime.
pub const PERIOD: usize = 1_048_573;

/// Length of the longest piece that [`Pattern::at`] returns.
pub const MAX_PIECE: usize = 1 << 18;

/// Endless sequence of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    phase: usize,
}

impl Pattern {
    /// Creates the pattern of a seed. Two different seeds give different patterns, with an exception of one in a
    /// million.
    pub fn new(seed: u64) -> Self {
        Pattern {
            phase: (mix(seed) % PERIOD as u64) as usize,
        }
    }

    /// Returns the bytes from `offset` on: `len` of them, or [`MAX_PIECE`] when `len` is more ([`Pattern::prefix`] has
    /// no such limit).
    pub fn at(self, offset: u64, len: usize) -> &'static [u8] {
        let start = ((self.phase as u64 + offset) % PERIOD as u64) as usize;
        &table()[start..start + len.min(MAX_PIECE)]
    }

    /// Returns the first `len` bytes, without a limit.
    pub fn prefix(self, len: usize) -> Vec<u8> {
        let mut all = Vec::with_capacity(len);
        while all.len() < len {
            all.extend_from_slice(self.at(all.len() as u64, len - all.len()));
        }
        all
    }

    /// Compares `bytes` with the pattern from `offset` on. Returns the index in `bytes` of the first one that
    /// differs.
    pub fn mismatch(self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let mut done = 0;
        for piece in bytes.chunks(MAX_PIECE) {
            let expected = self.at(offset + done as u64, piece.len());
            // The comparison of slices is fast; search the index only when it fails.
            if piece != expected {
                return piece
                    .iter()
                    .zip(expected)
                    .position(|(is, should)| is != should)
                    .map(|at| done + at);
            }
            done += piece.len();
        }
        None
    }

    /// Returns the SHA-256 of the first `len` bytes.
    pub fn sha256(self, len: u64) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut offset = 0;
        while offset < len {
            let piece = self.at(offset, usize::try_from(len - offset).unwrap_or(MAX_PIECE));
            hash.update(piece);
            offset += piece.len() as u64;
        }
        hash.finalize().into()
    }
}

/// Returns the table, with its beginning repeated behind its end so that every piece of [`MAX_PIECE`] is contiguous.
fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let words = (0..).flat_map(|i: u64| mix(i).to_le_bytes());
        let mut table: Vec<u8> = words.take(PERIOD).collect();
        table.extend_from_within(..MAX_PIECE);
        table
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_itself_at_every_place() {
        let pattern = Pattern::new(42);
        for offset in [0, 1, PERIOD as u64 - 1, PERIOD as u64, 10 * PERIOD as u64 + 17] {
            let bytes: Vec<u8> = (0..1000).map(|i| pattern.at(offset + i, 1)[0]).collect();
            assert_eq!(pattern.mismatch(offset, &bytes), None, "{offset}");
        }
    }

    #[test]
    fn a_prefix_is_as_long_as_was_asked_for() {
        let pattern = Pattern::new(3);
        for len in [0, 1, MAX_PIECE, MAX_PIECE + 1, 2 * PERIOD + 5] {
            let bytes = pattern.prefix(len);
            assert_eq!((bytes.len(), pattern.mismatch(0, &bytes)), (len, None));
        }
    }

    #[test]
    fn a_changed_byte_is_found() {
        let pattern = Pattern::new(1);
        let mut bytes = pattern.prefix(MAX_PIECE + 5000);
        assert_eq!(pattern.mismatch(0, &bytes), None);
        bytes[MAX_PIECE + 1234] ^= 1;
        assert_eq!(pattern.mismatch(0, &bytes), Some(MAX_PIECE + 1234));
    }

    #[test]
    fn shifted_and_foreign_bytes_are_found() {
        let pattern = Pattern::new(1);
        for shift in [1, 64, 1460, 1 << 16, 1 << 20] {
            assert!(pattern.mismatch(0, pattern.at(shift, 64)).is_some(), "{shift}");
        }
        for seed in 2..100 {
            assert!(
                pattern.mismatch(0, Pattern::new(seed).at(0, 64)).is_some(),
                "{seed}"
            );
        }
    }

    #[test]
    fn the_digest_is_that_of_the_bytes() {
        let pattern = Pattern::new(9);
        let len = MAX_PIECE + 77;
        let bytes: Vec<u8> = (0..len as u64).map(|i| pattern.at(i, 1)[0]).collect();
        assert_eq!(
            pattern.sha256(len as u64),
            <[u8; 32]>::from(Sha256::digest(&bytes))
        );
    }
}
