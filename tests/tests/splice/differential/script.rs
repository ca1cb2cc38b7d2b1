//! Script of the two ends of a connection, made from a seed: sizes, replies that are waited for, urgent bytes,
//! half-closes in either order, resets, small buffers and slow readers.

use std::time::Duration;

use fastrand::Rng;
use longsplice_engine::Side;

/// Largest number of pieces of one write: a busy machine takes its time for each, and no end waits longer than
/// [`SOON`](longsplice_tests::SOON) for the next byte.
const MOST_PIECES: u64 = 5_000;

/// Act of the writing half of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Writes so many bytes, so many at a time.
    Write { bytes: u64, piece: usize },
    /// Writes one byte as urgent data (RFC 9293 section 3.8.5).
    Urgent,
    /// Waits until the end's reading half has had so many bytes in all.
    Await(u64),
    /// Waits for the end of the other's stream, of any kind.
    AwaitEnd,
    /// Lets the test change the way under the connection; the end itself does nothing.
    Turn,
    /// Ends the stream in order, and goes on reading.
    Finish,
    /// Resets the connection.
    Reset,
    /// Closes the socket in order, and stops reading.
    Leave,
    /// Writes a byte now and then until a reset comes.
    KnockUntilReset,
}

/// Manner in which an end reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Largest size of one read, in bytes.
    pub most: usize,
    /// Time before the first read.
    pub late: Duration,
    /// Rate in bytes per second; `None`: as fast as they come.
    pub rate: Option<u64>,
}

/// One end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Acts of its writing half, in this order.
    pub acts: Vec<Act>,
    /// Manner in which its reading half reads.
    pub reading: Reading,
    /// `SO_RCVBUF` and `SO_SNDBUF`, in bytes, from before the handshake on; `None`: the system's default.
    pub buffer: Option<usize>,
}

/// Part of the views that must be equal on all ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certain {
    /// All of them.
    All,
    /// Only the endings: a reset overtakes a random number of bytes.
    Endings,
}

/// Options of both legs under which a splice is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    pub timestamps: bool,
    /// SACK and window scales at the client and at the server. The forwarder has both.
    pub sack: [bool; 2],
    pub scaling: [bool; 2],
    pub ecn: bool,
}

/// Acts of both ends, and their options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Script {
    pub options: Options,
    /// Parts of the client and of the server.
    pub parts: [Part; 2],
    pub certain: Certain,
}

/// A script in the making.
struct Maker {
    rng: Rng,
    acts: [Vec<Act>; 2],
    /// Number of bytes that each side has sent so far.
    sent: [u64; 2],
    /// Largest number of bytes that a side sends at once.
    large: u64,
}

impl Script {
    /// Returns the number of bytes that a side sends in an undisturbed run.
    pub(crate) fn sends(&self, side: Side) -> u64 {
        let bytes = self.parts[side].acts.iter().map(|act| match *act {
            Act::Write { bytes, .. } => bytes,
            Act::Urgent => 1,
            _ => 0,
        });
        bytes.sum()
    }

    /// Makes the script of a seed; the same one each time.
    pub(crate) fn of(seed: u64) -> Script {
        // The seeds of a run are consecutive: the fork sets their sequences apart.
        let mut rng = Rng::with_seed(seed).fork();
        let options = Options::any(&mut rng);
        let slow = chance(&mut rng, 30);
        let parts = Side::BOTH.map(|_| (Reading::any(&mut rng, slow), buffer(&mut rng)));
        let mut maker = Maker {
            acts: Default::default(),
            sent: [0; 2],
            large: if slow { 120_000 } else { 1_500_000 },
            rng,
        };
        for _ in 0..maker.rng.u64(1..8) {
            maker.scene();
        }
        let certain = maker.end();
        let [client, server] = maker.acts;
        let part = |acts, (reading, buffer)| Part {
            acts,
            reading,
            buffer,
        };
        Script {
            options,
            parts: [part(client, parts[0]), part(server, parts[1])],
            certain,
        }
    }
}

impl Options {
    fn any(rng: &mut Rng) -> Options {
        Options {
            timestamps: chance(rng, 75),
            sack: [chance(rng, 80), chance(rng, 80)],
            scaling: [chance(rng, 80), chance(rng, 80)],
            ecn: chance(rng, 25),
        }
    }
}

impl Reading {
    fn any(rng: &mut Rng, slow: bool) -> Reading {
        let most = [1 << 18, 64 << 10, 1_460, 100];
        Reading {
            most: most[rng.u64(0..if slow { 4 } else { 2 }) as usize],
            late: Duration::from_millis(if slow { rng.u64(0..100) } else { 0 }),
            rate: (slow && chance(rng, 50)).then_some(600_000),
        }
    }
}

/// Returns true in so many of a hundred cases.
fn chance(rng: &mut Rng, percent: u8) -> bool {
    rng.u8(0..100) < percent
}

fn buffer(rng: &mut Rng) -> Option<usize> {
    match rng.u64(0..4) {
        0 => Some(4_096),
        1 => Some(30_000),
        _ => None,
    }
}

impl Maker {
    fn act(&mut self, side: Side, act: Act) {
        self.acts[side].push(act);
    }

    fn any_side(&mut self) -> Side {
        Side::BOTH[self.rng.usize(0..2)]
    }

    fn send(&mut self, side: Side, bytes: u64) {
        let piece = match self.rng.u64(0..4) {
            0 => self.rng.u64(1..3_000).max(bytes / MOST_PIECES) as usize,
            _ => 1 << 18,
        };
        self.sent[side] += bytes;
        self.act(side, Act::Write { bytes, piece });
    }

    /// Makes a side wait for all that the other one has sent by now.
    fn hear(&mut self, side: Side) {
        let there = self.sent[side.other()];
        self.act(side, Act::Await(there));
    }

    fn some(&mut self) -> u64 {
        let most = match self.rng.u64(0..3) {
            0 => 200,
            1 => 20_000,
            _ => self.large,
        };
        self.rng.u64(1..most)
    }

    /// Adds one of the scenes that are possible between two open ends.
    fn scene(&mut self) {
        let side = self.any_side();
        match self.rng.u64(0..6) {
            // Requests and replies.
            0 | 1 => {
                for _ in 0..self.rng.u64(1..6) {
                    let (request, reply) = (self.some().min(30_000), self.some());
                    self.send(side, request);
                    self.hear(side.other());
                    self.send(side.other(), reply);
                    self.hear(side);
                }
            }
            2 => {
                let bytes = self.some();
                self.send(side, bytes);
            }
            // Both sides at once.
            3 => {
                for side in Side::BOTH {
                    let bytes = self.some();
                    self.send(side, bytes);
                }
            }
            4 => {
                let bytes = self.some().min(5_000);
                self.send(side, bytes);
                self.sent[side] += 1;
                self.act(side, Act::Urgent);
                self.send(side, bytes);
            }
            _ => self.meet(side),
        }
        self.act(Side::Client, Act::Turn);
    }

    /// Empties the path and all buffers; `last` knows that at its end.
    fn meet(&mut self, last: Side) {
        for side in [last, last.other()] {
            self.hear(side);
            self.send(side, 1);
            self.hear(side.other());
        }
    }

    /// Adds the end of the connection.
    fn end(&mut self) -> Certain {
        let (first, last) = (self.any_side(), self.rng.u64(0..9));
        let second = first.other();
        match last {
            // Each end closes in its own time.
            0 | 1 => {
                self.act(first, Act::Finish);
                self.act(second, Act::Finish);
            }
            // A half-close, and many bytes go the other way behind it.
            2..=4 => {
                self.act(first, Act::Finish);
                self.act(second, Act::AwaitEnd);
                let bytes = self.some();
                self.send(second, bytes);
                self.hear(first);
                self.act(second, Act::Finish);
            }
            5 => {
                self.meet(first);
                self.act(first, Act::Reset);
            }
            // A reset in the middle of a transfer.
            6 => {
                for side in Side::BOTH {
                    let bytes = self.some();
                    self.send(side, bytes);
                }
                self.act(first, Act::Reset);
                return Certain::Endings;
            }
            // A reset after a half-close, by either side.
            7 => {
                self.meet(first);
                self.act(first, Act::Finish);
                self.act(second, Act::AwaitEnd);
                self.send(second, 1);
                self.hear(first);
                let by = self.any_side();
                self.act(by, Act::Reset);
                if by == second {
                    // The reset may overtake that byte.
                    return Certain::Endings;
                }
            }
            // One end leaves without a word, and the other one writes on.
            _ => {
                self.meet(first);
                self.act(first, Act::Leave);
                self.act(second, Act::AwaitEnd);
                self.act(second, Act::KnockUntilReset);
            }
        }
        Certain::All
    }
}
