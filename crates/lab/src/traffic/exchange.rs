//! Requests and replies by turns on one connection: the order of the turns, and the time that each exchange
//! took.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::side::Side;

/// Requests and replies by turns, as on a persistent connection: the client sends a request when the reply to the one
/// before is complete, the server replies when the request is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchanges {
    /// Number of exchanges.
    pub count: u32,
    /// Length of each request, in bytes.
    pub request: u64,
    /// Length of each reply, in bytes.
    pub reply: u64,
    /// Pause of the client between a reply and its next request; shorter than [`super::ConnectionSpec::stall`].
    pub think: Duration,
    /// Pause of the server between a request and its reply; shorter than [`super::ConnectionSpec::stall`].
    pub work: Duration,
}

impl Exchanges {
    /// Creates exchanges without pauses between them.
    pub fn new(count: u32, request: u64, reply: u64) -> Self {
        Exchanges {
            count,
            request,
            reply,
            think: Duration::ZERO,
            work: Duration::ZERO,
        }
    }

    /// Returns the bytes of all requests and of all replies.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [self.request, self.reply].map(|each| each.saturating_mul(self.count.into()))
    }

    /// Returns the turns of one side.
    pub(super) fn turns(&self, side: Side) -> Turns {
        match side {
            Side::Client => Turns {
                own: self.request,
                other: self.reply,
                ahead: 0,
                pause: self.think,
            },
            Side::Server => Turns {
                own: self.reply,
                other: self.request,
                ahead: 1,
                pause: self.work,
            },
        }
    }
}

/// Turns of one side: the times at which it may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turns {
    own: u64,
    other: u64,
    /// Number of messages of the other side that come before the first of its own.
    ahead: u64,
    pause: Duration,
}

impl Turns {
    /// Returns the number of bytes that must be received before a message that begins after `sent` bytes, and the
    /// pause that follows; `None` if no message begins there.
    pub(super) fn before(&self, sent: u64) -> Option<(u64, Duration)> {
        if self.own == 0 || !sent.is_multiple_of(self.own) {
            return None;
        }
        let turn = sent / self.own;
        let received = (turn + self.ahead).saturating_mul(self.other);
        // A client begins without a pause.
        let pause = if turn + self.ahead == 0 {
            Duration::ZERO
        } else {
            self.pause
        };
        Some((received, pause))
    }

    /// Returns the end of the message that has a byte at `sent`.
    pub(super) fn message_end(&self, sent: u64) -> u64 {
        match self.own {
            0 => u64::MAX,
            own => (sent / own + 1).saturating_mul(own),
        }
    }
}

/// Times of one exchange, as its client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExchangeTime {
    /// Time of the first write of the request, in nanoseconds of `CLOCK_MONOTONIC`.
    pub begin_ns: u64,
    /// Time from there until the first byte of the reply was read, in nanoseconds.
    pub first_byte_ns: u64,
    /// Time from there until the last byte of the reply was read, in nanoseconds.
    pub last_byte_ns: u64,
}

/// Largest number of exchanges in a report: those of a connection without end would fill the memory.
const MAX_LISTED: usize = 65_536;

/// Records the times of replies. Without replies it records nothing.
#[derive(Debug)]
pub(super) struct Stopwatch {
    reply: u64,
    /// Exchange whose reply has begun and is not complete.
    open: Option<ExchangeTime>,
    done: Vec<ExchangeTime>,
}

impl Stopwatch {
    pub(super) fn new(exchanges: &Exchanges) -> Self {
        Stopwatch {
            reply: exchanges.reply,
            open: None,
            done: Vec::new(),
        }
    }

    /// Notes that the bytes of the replies from `start` to `end` were read at `now_ns`. `begun` returns the time at
    /// which the next request was begun, for each reply in turn.
    pub(super) fn read(&mut self, now_ns: u64, start: u64, end: u64, mut begun: impl FnMut() -> Option<u64>) {
        if self.reply == 0 {
            return;
        }
        let mut at = start;
        while at < end {
            if at.is_multiple_of(self.reply) {
                self.open = begun().map(|begin_ns| ExchangeTime {
                    begin_ns,
                    first_byte_ns: now_ns.saturating_sub(begin_ns),
                    last_byte_ns: 0,
                });
            }
            at = end.min((at / self.reply + 1) * self.reply);
            if at.is_multiple_of(self.reply)
                && let Some(mut time) = self.open.take()
            {
                time.last_byte_ns = now_ns.saturating_sub(time.begin_ns);
                if self.done.len() < MAX_LISTED {
                    self.done.push(time);
                }
            }
        }
    }

    /// Returns the completed exchanges, the first 65,536 of them.
    pub(super) fn finish(self) -> Vec<ExchangeTime> {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINK: Duration = Duration::from_millis(3);
    const WORK: Duration = Duration::from_millis(4);

    fn exchanges(request: u64, reply: u64) -> Exchanges {
        Exchanges {
            think: THINK,
            work: WORK,
            ..Exchanges::new(5, request, reply)
        }
    }

    #[test]
    fn the_client_begins_and_then_waits_for_each_reply() {
        let turns = exchanges(100, 1000).turns(Side::Client);
        assert_eq!(turns.before(0), Some((0, Duration::ZERO)));
        assert_eq!(turns.before(1), None, "in the middle of a message");
        assert_eq!(turns.before(100), Some((1000, THINK)));
        assert_eq!(turns.before(400), Some((4000, THINK)));
        assert_eq!(
            (
                turns.message_end(0),
                turns.message_end(99),
                turns.message_end(100)
            ),
            (100, 100, 200)
        );
    }

    #[test]
    fn the_server_waits_for_each_request() {
        let turns = exchanges(100, 1000).turns(Side::Server);
        assert_eq!(turns.before(0), Some((100, WORK)));
        assert_eq!(turns.before(3000), Some((400, WORK)));
        assert_eq!(turns.before(3001), None);
    }

    #[test]
    fn empty_messages_make_nobody_wait() {
        assert_eq!(exchanges(0, 10).turns(Side::Client).before(0), None);
        assert_eq!(exchanges(0, 10).turns(Side::Server).before(0), Some((0, WORK)));
        assert_eq!(exchanges(10, 0).turns(Side::Client).before(10), Some((0, THINK)));
    }

    #[test]
    fn the_stopwatch_sees_where_replies_begin_and_end() {
        let mut watch = Stopwatch::new(&exchanges(1, 10));
        let mut begun = [100, 200, 300].into_iter();
        watch.read(110, 0, 4, || begun.next());
        watch.read(120, 4, 10, || begun.next());
        // Two replies at once, as through a relay that held them back.
        watch.read(350, 10, 25, || begun.next());
        watch.read(360, 25, 30, || begun.next());
        watch.read(370, 30, 31, || begun.next());
        let time = |begin_ns, first_byte_ns, last_byte_ns| ExchangeTime {
            begin_ns,
            first_byte_ns,
            last_byte_ns,
        };
        // The byte after them answers no request.
        let expected = [time(100, 10, 20), time(200, 150, 150), time(300, 50, 60)];
        assert_eq!(watch.finish(), expected);
    }
}
