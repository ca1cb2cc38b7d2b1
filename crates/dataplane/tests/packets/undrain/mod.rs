//! UNDRAIN: the pair is awake. What was forwarded is the business of the two ends until it is acknowledged; what comes
//! behind it is the sockets'.

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

/// What each peer sent past the sockets; nothing of it is acknowledged.
const SENT: [u32; 2] = [1000, 600];

fn awake() -> Flow {
    Flow::woken(Plan::default(), Past::unacknowledged(SENT))
}

/// What the other end is to see of a peer's segment, but for the acknowledgement and the window: so far its
/// acknowledgement is, and so much room it leaves.
fn across(flow: &Flow, side: Side, packet: &Packet, ack: u32, room: u32) -> Packet {
    Packet {
        ack,
        window: (room >> flow.plan.scale_out[side.index()]).min(65_535) as u16,
        ..flow.reference(side).translate(packet)
    }
}

/// Where the stream of a side's peer was when the pair was spliced.
fn start(flow: &Flow, side: Side) -> u32 {
    flow.plan.peer[side.index()]
}
