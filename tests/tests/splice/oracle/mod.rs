//! Spliced sockets of the BSDs serve as an oracle for ours. They have been in the kernel since OpenBSD 4.9 (setsockopt
//! SO_SPLICE, sosplice(9); FreeBSD 14.2 adopted the interface). Their guarantees, in our words:
//!
//! - at most `sp_max` bytes pass, then the splice dissolves (EFBIG); the bytes beyond stay unread, and a second splice with
//!   the same maximum goes on from there. Ours: [`longsplice_engine::Until::bytes_from`]. (Their maximum of 0 means none; ours
//!   means [`longsplice_engine::Until::data_from`], and a splice without a maximum leaves it out.)
//! - a silence of `sp_idle` dissolves the splice (ETIMEDOUT). Ours: [`longsplice_engine::Until::idle`];
//! - it dissolves by hand (a drain of -1); the number of bytes so far can be read afterwards. Ours: `request_unsplice`,
//!   `passed`;
//! - a spliced socket cannot be spliced again (EBUSY), any other one cannot be unspliced (EPROTO);
//! - bytes that wait in the source's buffer when the splice begins pass first;
//! - the end of a stream is passed on once its buffer is empty, and only in its direction (their splice is of one
//!   direction; ours is of both, so that it ends when both have);
//! - an error of either socket ends it, before, during and after;
//! - urgent data passes inline, with its mark where that is possible;
//! - all of this with buffers of any size, and with a reader that sleeps.

mod conditions;
mod ends;
mod maximum;
mod urgent;

use std::time::Duration;

/// Longest time that counts as at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);
