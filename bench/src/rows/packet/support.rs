//! Packets and flows of the tests of the kernel half, which the speed test uses, too.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "it is the tests', and not all of it is used here"
)]

#[path = "../../../../crates/dataplane/tests/support/family.rs"]
mod family;
#[path = "../../../../crates/dataplane/tests/support/flow.rs"]
pub mod flow;
#[path = "../../../../crates/dataplane/tests/support/net.rs"]
pub mod net;
#[path = "../../../../crates/dataplane/tests/support/options.rs"]
pub mod options;
#[path = "../../../../crates/dataplane/tests/support/packet.rs"]
pub mod packet;
#[path = "../../../../crates/dataplane/tests/support/pins.rs"]
mod pins;
#[path = "../../../../crates/dataplane/tests/support/plan.rs"]
mod plan;
#[path = "../../../../crates/dataplane/tests/support/plane.rs"]
pub mod plane;
#[path = "../../../../crates/dataplane/tests/support/reference.rs"]
mod reference;
#[path = "../../../../crates/dataplane/tests/support/workplace.rs"]
mod workplace;

use family::{FAMILY, choose};
