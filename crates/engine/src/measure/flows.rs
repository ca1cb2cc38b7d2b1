//! Installs two flows, each of which turns the other's segments back, so that a packet can be translated again and again.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use longsplice_core::seq::{Offset, Seq};
use longsplice_dataplane::{Dataplane, Inspection, Leg, LegStart, Mapping, Mode, PerSide, Side};

use crate::kernel::packet::{ETHERNET, seal};

/// Destinations of the segments of either flow.
pub(super) const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 2, 2), Ipv4Addr::new(198, 18, 1, 1)];

const CLIENT: (Ipv4Addr, u16) = (Ipv4Addr::new(198, 18, 1, 2), 40_000);
const FRONT: (Ipv4Addr, u16) = (ENDS[1], 80);
const SOURCE: (Ipv4Addr, u16) = (Ipv4Addr::new(198, 18, 2, 1), 50_000);
const TARGET: (Ipv4Addr, u16) = (ENDS[0], 8080);

const TSVAL: u32 = 10_000;
const TSVAL_OFF: u32 = 777;
const WINDOW: u32 = 1 << 16;

/// Numbers of a flow, by side: the next one of each peer, and of our socket toward it.
struct Numbers {
    peer: PerSide<Seq>,
    local: PerSide<Seq>,
    tsval: u32,
    tsval_off: u32,
}

const THERE: Numbers = Numbers {
    peer: PerSide::new(Seq::new(1_000), Seq::new(5_000)),
    local: PerSide::new(Seq::new(7_000), Seq::new(9_000)),
    tsval: TSVAL,
    tsval_off: TSVAL_OFF,
};

const BACK: Numbers = Numbers {
    peer: PerSide::new(THERE.local.server, THERE.local.client),
    local: PerSide::new(THERE.peer.server, THERE.peer.client),
    tsval: TSVAL + TSVAL_OFF,
    tsval_off: TSVAL_OFF.wrapping_neg(),
};

/// Installs both flows, detached.
pub(super) fn install(plane: &Dataplane) -> io::Result<()> {
    let slot = plane
        .take_slot()
        .ok_or_else(|| io::Error::other("there is no slot"))?;
    let leg = |peer: (Ipv4Addr, u16), local: (Ipv4Addr, u16)| Leg {
        peer: SocketAddr::from(peer),
        local: SocketAddr::from(local),
    };
    let there = PerSide::new(leg(CLIENT, FRONT), leg(TARGET, SOURCE));
    let back = PerSide::new(leg(SOURCE, TARGET), leg(FRONT, CLIENT));
    for (legs, numbers) in [(there, THERE), (back, BACK)] {
        let starts = PerSide::from_fn(|side| start(legs[side], side, &numbers));
        plane.register(&slot, plane.next_serial(), true, &starts)?;
        slot.transition(Mode::Track, Mode::Drain);
        slot.transition(Mode::Drain, Mode::Final);
        plane.demote(&slot, legs, PerSide::both(0))?;
    }
    Ok(())
}

fn start(leg: Leg, side: Side, n: &Numbers) -> LegStart {
    let (x, o) = (side, side.other());
    LegStart {
        leg,
        seq_off: Offset::between(n.peer[x], n.local[o]),
        tsval_off: n.tsval_off,
        wscale_in: 7,
        wscale_out: 7,
        blank_sack: false,
        ended: false,
        inspection: Inspection {
            ts_recent: n.tsval,
            ..Inspection::at_rest(n.peer[x], n.local[x], [WINDOW; 2])
        },
        mapping: Mapping::default(),
        alone: false,
        mss: 1460,
        sack: true,
        ecn: false,
        ts_high: n.tsval.wrapping_add(n.tsval_off),
    }
}

/// Returns an acknowledgement of the first flow's client, as it comes in at an interface with this address.
pub(super) fn segment(mac: [u8; 6]) -> Vec<u8> {
    let mut frame = [&mac[..], &mac, &[0x08, 0x00]].concat();
    // IPv4: 52 bytes, DF, time to live 255, TCP. The checksums are set last: the programs verify those of a
    // segment that they hold or seal anew.
    frame.extend([0x45, 0, 0, 52, 0, 1, 0x40, 0, 255, 6, 0, 0]);
    frame.extend(CLIENT.0.octets());
    frame.extend(FRONT.0.octets());
    frame.extend(CLIENT.1.to_be_bytes());
    frame.extend(FRONT.1.to_be_bytes());
    frame.extend(THERE.peer.client.raw().to_be_bytes());
    frame.extend(THERE.local.client.raw().to_be_bytes());
    // Eight words of header, ACK, a window; NOP NOP and timestamps.
    frame.extend([8 << 4, 0x10, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10]);
    frame.extend(TSVAL.to_be_bytes());
    frame.extend(0u32.to_be_bytes());
    // It cannot fail: the packet is short and whole.
    let _ = seal(&mut frame[ETHERNET..], 20);
    frame
}
