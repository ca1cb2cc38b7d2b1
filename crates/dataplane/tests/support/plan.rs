//! Describes the state of a flow's two connections when it is registered.

use longsplice_dataplane::{Inspection, Leg, LegStart, Mapping, Offset, PerSide, Seq, Side};

use super::family::choose_at;

/// State of two connections when their flow is registered; arrays are indexed by side.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Next sequence number of each peer.
    pub peer: [u32; 2],
    /// Next sequence number of the local socket toward each peer.
    pub local: [u32; 2],
    /// Bytes that each peer may send, and each local socket.
    pub offered: [u32; 2],
    pub granted: [u32; 2],
    pub ts: [u32; 2],
    pub scale_in: [u8; 2],
    pub scale_out: [u8; 2],
    pub blank_sack: [bool; 2],
    /// TSval of each peer at this moment.
    pub clock: [u32; 2],
    /// True for each peer that is on this host.
    pub on_this_host: [bool; 2],
    /// Offset of each local socket's own numbers.
    pub mapping: [Mapping; 2],
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            peer: [1_000_000, 3_000_000_000],
            local: [2_000_000_000, 700_000],
            offered: [1 << 18, 1 << 18],
            granted: [1 << 18, 1 << 18],
            ts: [123_456, 0x9000_0000],
            scale_in: [7, 9],
            scale_out: [8, 6],
            blank_sack: [false; 2],
            clock: [10_000, 50_000],
            on_this_host: [false; 2],
            mapping: [Mapping::default(); 2],
        }
    }
}

impl Plan {
    /// Returns the plan of a pair that was spliced before: its sockets' numbers have an offset.
    pub fn mapped() -> Plan {
        let mapping = |seq, ack| Mapping {
            seq: Offset::new(seq),
            ack: Offset::new(ack),
        };
        Plan {
            mapping: [
                mapping(0xffff_0000, 0x1234_5678),
                mapping(0x89ab_cdef, 0xfff0_0001),
            ],
            ..Plan::default()
        }
    }

    /// Returns two flows, of which the second reverses the first's translation of a segment.
    pub fn mirror() -> [Plan; 2] {
        let there = Plan {
            scale_in: [7; 2],
            scale_out: [7; 2],
            ..Plan::default()
        };
        let back = Plan {
            peer: [there.local[1], there.local[0]],
            local: [there.peer[1], there.peer[0]],
            ts: there.ts.map(u32::wrapping_neg),
            clock: [0, 1].map(|i| there.clock[i].wrapping_add(there.ts[i])),
            ..there.clone()
        };
        [there, back]
    }

    /// Returns the identity case (papers' section III-F): both connections have the same numbers.
    pub fn identity() -> Plan {
        let plan = Plan::default();
        Plan {
            local: [plan.peer[1], plan.peer[0]],
            ts: [0; 2],
            scale_in: [7; 2],
            scale_out: [7; 2],
            ..plan
        }
    }

    pub fn seq_off(&self, side: Side) -> Offset {
        Offset::between(Seq::new(self.peer[side]), Seq::new(self.local[side.other()]))
    }

    pub fn starts(&self) -> PerSide<LegStart> {
        PerSide::from_fn(|side| self.start(side))
    }

    fn start(&self, side: Side) -> LegStart {
        LegStart {
            leg: leg(side),
            seq_off: self.seq_off(side),
            tsval_off: self.ts[side],
            wscale_in: self.scale_in[side],
            wscale_out: self.scale_out[side],
            blank_sack: self.blank_sack[side],
            ended: false,
            inspection: Inspection {
                ts_recent: self.clock[side],
                ifindex: u32::from(self.on_this_host[side]),
                ..Inspection::at_rest(
                    Seq::new(self.peer[side]),
                    Seq::new(self.local[side]),
                    [self.offered[side], self.granted[side]],
                )
            },
            ts_high: self.clock[side].wrapping_add(self.ts[side]),
            mapping: self.mapping[side],
            alone: false,
            mss: 1460,
            sack: true,
            ecn: false,
        }
    }
}

pub fn leg(side: Side) -> Leg {
    let (peer, local) = match side {
        Side::Client => choose_at(
            side,
            ("198.18.1.2:40000", "198.18.1.1:80"),
            ("[2001:db8:1::2]:40000", "[2001:db8:1::1]:80"),
        ),
        Side::Server => choose_at(
            side,
            ("198.18.2.2:8080", "198.18.2.1:50000"),
            ("[2001:db8:2::2]:8080", "[2001:db8:2::1]:50000"),
        ),
    };
    Leg {
        peer: peer.parse().expect("an address"),
        local: local.parse().expect("an address"),
    }
}

/// Returns both legs of the flow.
pub fn legs() -> PerSide<Leg> {
    PerSide::from_fn(leg)
}
