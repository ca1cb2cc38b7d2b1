//! Defines a segment by the fields of its header that the programs read or write.

use longsplice_core::seq::Seq;

/// Flags of the TCP header (RFC 9293 section 3.1).
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronize.
    pub const SYN: u8 = 0x02;
    /// Reset.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement is significant.
    pub const ACK: u8 = 0x10;
    /// Urgent.
    pub const URG: u8 = 0x20;
}

/// Timestamp option (RFC 7323 section 3). Timestamps are points on a circle, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// TSval.
    pub val: Seq,
    /// TSecr; 0 means "nothing to echo".
    pub ecr: Seq,
}

/// SACK option: at most four blocks (RFC 2018).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); 4],
    len: usize,
}

impl SackBlocks {
    /// Adds a block if there is room for it.
    pub fn push(&mut self, left: Seq, right: Seq) {
        if let Some(block) = self.blocks.get_mut(self.len) {
            *block = (left, right);
            self.len += 1;
        }
    }

    /// Returns the left and right edges.
    pub fn iter(&self) -> impl Iterator<Item = (Seq, Seq)> + '_ {
        self.blocks.iter().copied().take(self.len)
    }

    /// Returns whether there is no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Applies `f` to every edge.
    #[must_use]
    pub fn map(mut self, f: impl Fn(Seq) -> Seq) -> SackBlocks {
        for (left, right) in self.blocks.iter_mut().take(self.len) {
            (*left, *right) = (f(*left), f(*right));
        }
        self
    }
}

/// Segment, in host byte order. It has the position of the payload in its stream instead of the payload: two segments
/// carry the same bytes if they carry the same positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// Sequence number of the first byte of the payload.
    pub seq: Seq,
    /// Acknowledgement; significant with [`flag::ACK`].
    pub ack: Seq,
    /// Bytes of payload.
    pub len: u32,
    /// Window field, unscaled: at most 65,535.
    pub window: u32,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Timestamp option.
    pub ts: Option<Timestamps>,
    /// SACK option.
    pub sack: SackBlocks,
    /// Position of the payload in the stream of the end that sent it first: the machine carries it along.
    pub at: u64,
}

impl Segment {
    /// Returns whether one of the flags is set.
    #[must_use]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Returns the end of the segment in the sequence space: after payload, SYN and FIN.
    pub fn end(&self) -> Seq {
        self.seq + self.len + u32::from(self.has(flag::FIN)) + u32::from(self.has(flag::SYN))
    }

    /// Returns whether the segment takes any sequence number.
    #[must_use]
    pub fn occupies(&self) -> bool {
        self.end() != self.seq
    }

    /// Returns the right edge of the window that it offers, at a scale.
    pub fn edge(&self, scale: u8) -> Seq {
        self.ack + (self.window << (scale & 15))
    }

    /// Splits the segment into the parts below and from `at` on, as user space does with a held segment of which a part
    /// was forwarded. A FIN belongs to the second part. `None` if one part would be empty.
    #[must_use]
    pub fn split(&self, at: Seq) -> Option<(Segment, Segment)> {
        let first = at.bytes_since(self.seq);
        if first == 0 || first > self.len || !at.before(self.end()) {
            return None;
        }
        let mut low = *self;
        let mut high = *self;
        low.len = first;
        low.flags &= !(flag::FIN | flag::PSH);
        high.seq = at;
        high.len = self.len - first;
        high.at = self.at + u64::from(first);
        Some((low, high))
    }
}
