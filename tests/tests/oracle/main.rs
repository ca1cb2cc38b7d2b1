//! The BSDs have spliced sockets in the kernel since OpenBSD 4.9 (setsockopt SO_SPLICE, sosplice(9); FreeBSD 14.2 took the
//! interface over), and what theirs promises is an oracle for ours. In our words:
//!
//! - at most `sp_max` bytes pass, then the splice dissolves (EFBIG); what is beyond is left to read, and a second splice with
//!   the same maximum goes on from there. Ours: [`longsplice_engine::Until::bytes_from`]. (Their maximum of 0 means none; ours means
//!   [`longsplice_engine::Until::data_from`], and no maximum is not to name one.)
//! - if nothing passes for `sp_idle` the splice dissolves (ETIMEDOUT). Ours: [`longsplice_engine::Until::idle`];
//! - it dissolves by hand (a drain of -1); the bytes so far can be asked for afterwards. Ours: `request_unsplice`, `passed`;
//! - what is spliced cannot be spliced (EBUSY), what is not cannot be unspliced (EPROTO);
//! - what waits in the source's buffer when the splice begins passes first;
//! - the end of a stream is passed on once its buffer is empty, and only in its direction (their splice is of one
//!   direction; ours is of both, so that it ends when both have);
//! - an error of either socket ends it, before, during and after;
//! - urgent data passes inline, its mark where that is possible;
//! - all of this with buffers of any size, and with a reader that sleeps.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod conditions;
mod ends;
mod maximum;
mod urgent;

use std::time::Duration;

/// How soon is at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);
