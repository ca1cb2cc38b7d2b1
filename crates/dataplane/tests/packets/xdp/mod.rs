//! IP/FWD: XDP translates a segment as tc does, byte by byte, and notes the same; unusual ones it leaves to tc,
//! unchanged.

mod left_to_tc;
mod same_as_tc;

use longsplice_dataplane::Side;

use crate::support::flow::{Flow, Plan};

/// Serial number of every flow here, so that records can be compared.
const SERIAL: u32 = 4242;

/// Returns a detached flow whose segments may leave by XDP on both sides.
fn detached(plan: Plan) -> Flow {
    let mut flow = Flow::detached(Plan::default());
    flow.again_as(plan, SERIAL);
    for side in Side::BOTH {
        flow.set_exit(side, true);
    }
    flow
}

/// Returns both records, every field.
fn records(flow: &Flow) -> [String; 2] {
    Side::BOTH.map(|side| format!("{:?}", flow.raw_record(side).expect("it is there")))
}
