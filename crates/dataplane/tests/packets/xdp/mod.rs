//! IP/FWD: what XDP makes of a segment is what tc makes of it, byte by byte, and so is what it notes; all that is unusual it
//! leaves to tc as it was.

mod left_to_tc;
mod same_as_tc;

use longsplice_dataplane::Side;

use crate::support::flow::{Flow, Plan};

/// Of every flow here, so that records can be compared.
const SERIAL: u32 = 4242;

/// A detached flow whose segments may leave by XDP on both sides.
fn detached(plan: Plan) -> Flow {
    let mut flow = Flow::detached(Plan::default());
    flow.again_as(plan, SERIAL);
    for side in Side::BOTH {
        flow.set_exit(side, true);
    }
    flow
}

/// Both records, every field.
fn records(flow: &Flow) -> [String; 2] {
    Side::BOTH.map(|side| format!("{:?}", flow.raw_record(side).expect("it is there")))
}
