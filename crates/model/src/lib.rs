//! Specifies a flow that has sockets, executably: what the programs under `bpf/` do to a segment, without packets,
//! checksums and routes.
//!
//! Only tests use this crate: its own simulate splices with it, those of longsplice-dataplane compare it with the
//! programs.
#![forbid(unsafe_code)]

mod capture;
mod drain;
mod egress;
mod finish;
mod forward;
mod local;
mod outcome;
mod passage;
mod segment;
mod sockets;
mod state;
mod steps;
mod syn;
mod track;
mod transfer;
mod undrain;
mod user;
mod wake;
mod window;

pub use capture::{Freeze, TakeOver};
pub use finish::Finish;
pub use outcome::{Outcome, Verdict};
pub use passage::Passage;
pub use segment::{SackBlocks, Segment, Timestamps, flag};
pub use state::{Flow, Leg, Mode, Placement, Record, Side, Slot, bypassed, seen, slot_flag, traits};
pub use steps::Steps;
pub use transfer::{Direction, Transfer};
pub use user::{Rebuilt, SocketState, Start};
pub use wake::Wake;
pub use window::window_field;
