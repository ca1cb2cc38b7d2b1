//! Makes a pair that was spliced and is awake again: its sockets' numbers have an offset from those on the wire.

use longsplice_dataplane::{Mode, Side};

use super::{
    flow::{Flow, Plan, REDIRECT},
    options::{Opt, read, usual, write},
    packet::{ACK, FIN, PSH, Packet, pattern},
};

/// Describes what each peer sent while the pair was spliced; arrays are indexed by side.
#[derive(Debug, Clone, Copy, Default)]
pub struct Past {
    /// Payload that was forwarded.
    pub sent: [u32; 2],
    /// True if a FIN was forwarded behind it.
    pub fin: [bool; 2],
    /// Bytes of the other one's stream that each peer acknowledged.
    pub acked: [u32; 2],
}

impl Past {
    /// Returns a past in which both ends acknowledged everything.
    pub fn all_acknowledged(sent: [u32; 2]) -> Past {
        Past {
            sent,
            acked: [sent[1], sent[0]],
            ..Past::default()
        }
    }

    /// Returns a past without an acknowledgement.
    pub fn unacknowledged(sent: [u32; 2]) -> Past {
        Past {
            sent,
            ..Past::default()
        }
    }
}

impl Flow {
    /// Returns a segment of a peer, `offset` bytes behind its first number: payload, and an acknowledgement of `acked`
    /// bytes of what the other one sent since.
    pub fn later(&self, side: Side, offset: u32, len: u32, acked: u32) -> Packet {
        let next = self.peer_segment(side);
        Packet {
            seq: next.seq.wrapping_add(offset),
            ack: next.ack.wrapping_add(acked),
            flags: if len == 0 { ACK } else { ACK | PSH },
            payload: pattern(len as usize),
            ..next
        }
    }

    /// Returns such a segment of the local socket toward a peer, in its own numbers.
    pub fn local_later(&self, side: Side, offset: u32, len: u32, acked: u32) -> Packet {
        let next = self.local_segment(side);
        Packet {
            seq: next.seq.wrapping_add(offset),
            ack: next.ack.wrapping_add(acked),
            flags: if len == 0 { ACK } else { ACK | PSH },
            payload: pattern(len as usize),
            ..next
        }
    }

    /// Gives a packet of a peer the timestamps of so many ticks later.
    pub fn timed(&self, side: Side, later: u32, packet: Packet) -> Packet {
        let clock = self.plan.clock[side].wrapping_add(later);
        Packet {
            options: usual(clock, self.told(side)),
            ..packet
        }
    }

    /// Returns the highest TSval that a peer was sent.
    pub fn told(&self, side: Side) -> u32 {
        let o = side.other();
        self.plan.clock[o].wrapping_add(self.plan.ts[o])
    }

    /// Sends the past's segments of both peers, in FINAL.
    pub fn pass(&self, past: Past) {
        for side in Side::BOTH {
            let mut packet = self.later(side, 0, past.sent[side], 0);
            if past.fin[side] {
                packet.flags |= FIN;
            }
            if past.sent[side] > 0 || past.fin[side] {
                assert_eq!(self.ingress(side, &packet.bytes()).verdict, REDIRECT);
            }
        }
        for side in Side::BOTH {
            if past.acked[side] > 0 {
                let offset = past.sent[side] + u32::from(past.fin[side]);
                let ack = self.later(side, offset, 0, past.acked[side]);
                assert_eq!(self.ingress(side, &ack.bytes()).verdict, REDIRECT);
            }
        }
    }

    /// Wakes the parked sockets.
    #[track_caller]
    pub fn wake(&self) {
        self.slot().set_wakeable(true);
        assert_eq!(self.plane.wake(self.slot()).expect("it runs"), Mode::Undrain);
    }

    /// Returns a woken flow with this past.
    pub fn woken(plan: Plan, past: Past) -> Flow {
        let flow = Flow::dormant(plan);
        flow.pass(past);
        flow.wake();
        flow
    }
}

/// Offset by which a socket's numbers are behind those on the wire: in the stream of its peer, and in the one toward it.
#[derive(Debug, Clone, Copy)]
pub struct Behind {
    pub seq: u32,
    pub ack: u32,
}

impl Flow {
    /// Returns the offset that a mapped socket has from its very start.
    pub fn behind(&self, side: Side) -> Behind {
        let map = self.plan.mapping[side];
        Behind {
            seq: (-map.seq).raw(),
            ack: (-map.ack).raw(),
        }
    }
}

impl Behind {
    /// Returns the offset of a side's socket after the peers sent these bytes past it.
    pub fn of(side: Side, sent: [u32; 2]) -> Behind {
        Behind {
            seq: sent[side],
            ack: sent[side.other()],
        }
    }

    /// Returns the socket's view of a segment of its peer.
    pub fn to_socket(self, p: &Packet) -> Packet {
        Packet {
            seq: p.seq.wrapping_sub(self.seq),
            ack: p.ack.wrapping_sub(self.ack),
            options: shift_sack(&p.options, self.ack),
            ..p.clone()
        }
    }

    /// Returns the socket's own segment of which its peer sees `p`.
    pub fn by_socket(self, p: &Packet) -> Packet {
        Packet {
            seq: p.seq.wrapping_sub(self.ack),
            ack: p.ack.wrapping_sub(if p.flags & ACK == 0 { 0 } else { self.seq }),
            options: shift_sack(&p.options, self.seq),
            ..p.clone()
        }
    }

    /// Returns the peer's view of the socket's segment.
    pub fn to_wire(self, p: &Packet) -> Packet {
        let ahead = Behind {
            seq: self.seq.wrapping_neg(),
            ack: self.ack.wrapping_neg(),
        };
        ahead.by_socket(p)
    }
}

/// Subtracts so much from the edges of SACK blocks.
fn shift_sack(options: &[u8], less: u32) -> Vec<u8> {
    let shift = |edge: u32| edge.wrapping_sub(less);
    let options: Vec<Opt> = read(options)
        .into_iter()
        .map(|option| match option {
            Opt::Sack(blocks) => Opt::Sack(blocks.into_iter().map(|(l, r)| (shift(l), shift(r))).collect()),
            other => other,
        })
        .collect();
    write(&options)
}

/// Replaces every SACK block in the options.
pub fn with_sack(options: &[u8], edit: impl Fn(u32, u32) -> (u32, u32)) -> Vec<u8> {
    let options: Vec<Opt> = read(options)
        .into_iter()
        .map(|option| match option {
            Opt::Sack(blocks) => Opt::Sack(blocks.into_iter().map(|(l, r)| edit(l, r)).collect()),
            other => other,
        })
        .collect();
    write(&options)
}

/// Replaces SACK in the options by NOPs.
pub fn without_sack(options: &[u8]) -> Vec<u8> {
    let options: Vec<Opt> = read(options)
        .into_iter()
        .flat_map(|option| match option {
            Opt::Sack(blocks) => vec![Opt::Nop; 2 + 8 * blocks.len()],
            other => vec![other],
        })
        .collect();
    write(&options)
}
