//! Converts segments of the machine into packets, and back.

use longsplice_core::seq::Seq;
use longsplice_model::{SackBlocks, Segment, Timestamps};

use crate::support::{
    options::{Opt, read, write},
    packet::Packet,
};

/// Returns the packet as the machine sees it.
pub fn segment(packet: &Packet) -> Segment {
    let mut sack = SackBlocks::default();
    let mut ts = None;
    for option in read(&packet.options) {
        match option {
            Opt::Timestamps(val, ecr) => {
                ts = Some(Timestamps {
                    val: Seq::new(val),
                    ecr: Seq::new(ecr),
                });
            }
            Opt::Sack(blocks) => blocks
                .iter()
                .for_each(|&(l, r)| sack.push(Seq::new(l), Seq::new(r))),
            _ => {}
        }
    }
    Segment {
        seq: Seq::new(packet.seq),
        ack: Seq::new(packet.ack),
        len: packet.payload.len() as u32,
        window: u32::from(packet.window),
        flags: packet.flags,
        ts,
        sack,
        at: 0,
    }
}

/// Returns the packet that the machine has made of another one.
pub fn packet(from: &Packet, s: &Segment) -> Packet {
    let blocks: Vec<(u32, u32)> = s.sack.iter().map(|(l, r)| (l.raw(), r.raw())).collect();
    let options: Vec<Opt> = read(&from.options)
        .into_iter()
        .flat_map(|option| match option {
            Opt::Timestamps(..) => {
                let ts = s.ts.expect("it is still there");
                vec![Opt::Timestamps(ts.val.raw(), ts.ecr.raw())]
            }
            Opt::Sack(old) if blocks.is_empty() => vec![Opt::Nop; 2 + 8 * old.len()],
            Opt::Sack(_) => vec![Opt::Sack(blocks.clone())],
            other => vec![other],
        })
        .collect();
    assert!(
        s.len == 0 || s.len as usize == from.payload.len(),
        "payload is never cut in two"
    );
    Packet {
        seq: s.seq.raw(),
        ack: s.ack.raw(),
        window: s.window as u16,
        flags: s.flags,
        payload: if s.len == 0 { vec![] } else { from.payload.clone() },
        options: write(&options),
        ..from.clone()
    }
}
