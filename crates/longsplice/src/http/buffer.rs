//! Buffers bytes that were read from a connection and not used yet. An idle connection holds no buffer memory.

use std::cell::RefCell;

/// Limit of one read. A longer head makes the buffer grow.
const SIZE: usize = 64 << 10;

/// Copies up to this many bytes into a small buffer while a connection waits, so that others can use the large one.
/// Most request heads fit, as do bytes for a slow reader.
pub(super) const LITTLE: usize = 16 << 10;

/// Number of free buffers that a thread keeps. Few suffice, because each is returned before its connection waits.
const KEPT: usize = 4;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Queue of bytes: filled at the end, consumed from the front.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Initialized over its whole length.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// Creates a buffer with these bytes.
    pub(super) fn of(bytes: Vec<u8>) -> Buffer {
        let end = bytes.len();
        Buffer { bytes, start: 0, end }
    }

    /// Returns the unused bytes.
    pub(super) fn data(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Removes the first `n` bytes.
    pub(super) fn consume(&mut self, n: usize) {
        self.start = self.start.saturating_add(n).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Removes `n` bytes behind the first `at`.
    pub(super) fn remove(&mut self, at: usize, n: usize) {
        let from = self.start.saturating_add(at).min(self.end);
        let to = from.saturating_add(n).min(self.end);
        self.bytes.copy_within(to..self.end, from);
        self.end -= to - from;
    }

    /// Returns the space for the next read; never empty.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.bytes.len() < SIZE {
            let mut large = FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; SIZE]);
            let n = self.len();
            large[..n].copy_from_slice(self.data());
            *self = Buffer {
                bytes: large,
                start: 0,
                end: n,
            };
        }
        if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            self.bytes.resize(self.bytes.len() + SIZE, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Notes that `n` bytes were read into [`Buffer::space`].
    pub(super) fn filled(&mut self, n: usize) {
        self.end = (self.end + n).min(self.bytes.len());
    }

    /// Releases memory before a wait: afterwards a little content takes no more than its own length.
    pub(super) fn rest(&mut self) {
        let is_little = self.bytes.len() >= SIZE && self.len() <= LITTLE;
        if is_little || self.is_empty() {
            *self = Buffer::of(self.data().to_vec());
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.bytes));
    }
}

fn give_back(bytes: Vec<u8>) {
    if bytes.len() != SIZE {
        return;
    }
    // The thread's list may be gone when the thread ends.
    let _ = FREE.try_with(|free| {
        if let Ok(mut free) = free.try_borrow_mut()
            && free.len() < KEPT
        {
            free.push(bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_however_long_they_are() {
        let mut buffer = Buffer::of(b"early".to_vec());
        let (mut came, mut went) = (b"early".to_vec(), Vec::new());
        for round in 0..200_u32 {
            let space = buffer.space();
            let n = space.len().min(1 + 997 * round as usize);
            let new: Vec<u8> = (0..n).map(|i| (i as u32 + round) as u8).collect();
            space[..n].copy_from_slice(&new);
            buffer.filled(n);
            came.extend_from_slice(&new);
            let use_up = buffer.len() * 2 / 3;
            went.extend_from_slice(&buffer.data()[..use_up]);
            buffer.consume(use_up);
        }
        went.extend_from_slice(buffer.data());
        assert!(came == went);
    }

    #[test]
    fn who_waits_holds_what_it_needs_and_others_use_the_rest() {
        let mut buffer = Buffer::default();
        buffer.space()[..3].copy_from_slice(b"one");
        buffer.filled(3);
        buffer.consume(1);
        let place = buffer.data().as_ptr();
        buffer.rest();
        assert_eq!((buffer.data(), buffer.bytes.len()), (&b"ne"[..], 2));
        let mut other = Buffer::default();
        assert_eq!(other.space().as_ptr(), place.wrapping_sub(1));
        // Further bytes are appended.
        buffer.space()[..3].copy_from_slice(b"two");
        buffer.filled(3);
        assert_eq!(buffer.data(), b"netwo");
        let much = LITTLE - buffer.len() + 1;
        buffer.space()[..much].fill(b'.');
        buffer.filled(much);
        buffer.rest();
        assert_eq!(buffer.bytes.len(), SIZE, "it is much");
        buffer.consume(buffer.len());
        buffer.rest();
        assert!(buffer.bytes.is_empty());
    }
}
