//! UNDRAIN: the pair is awake. The two ends handle forwarded bytes themselves until they are acknowledged; later ones
//! belong to the sockets.

mod acknowledgements;
mod emissions;
mod old;
mod resets;
mod to_the_socket;

use longsplice_dataplane::Side;

use crate::support::{
    flow::{Flow, Plan},
    packet::Packet,
    woken::Past,
};

/// Bytes that each peer sent past the sockets; none of them is acknowledged.
const SENT: [u32; 2] = [1000, 600];

fn awake() -> Flow {
    Flow::woken(Plan::default(), Past::unacknowledged(SENT))
}

/// Returns the other end's view of a peer's segment, with this acknowledgement, and a window that leaves so much room.
fn across(flow: &Flow, side: Side, packet: &Packet, ack: u32, room: u32) -> Packet {
    Packet {
        ack,
        window: (room >> flow.plan.scale_out[side]).min(65_535) as u16,
        ..flow.reference(side).translate(packet)
    }
}

/// Returns the start of a side's peer's stream when the pair was spliced.
fn start(flow: &Flow, side: Side) -> u32 {
    flow.plan.peer[side]
}
