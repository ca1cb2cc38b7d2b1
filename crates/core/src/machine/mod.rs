//! The executable specification of a flow that has sockets: what the programs under `bpf/` do to a segment, without
//! packets, checksums and routes.
//!
//! Names are those of `bpf/abi.h`. Each file is the counterpart of a header there: `drain` of `drain.h`, `undrain` of
//! `undrain.h`, and so on. What the C code does in an order that matters when another CPU has a segment of the same
//! flow is a step of its own here ([`Passage`], [`Wake`], [`Freeze`], [`TakeOver`], [`Finish`], [`Transfer`]): whoever drives the machine may do something
//! else in between. [`Flow::ingress`] and [`Flow::egress`] take all steps at once.

mod capture;
mod drain;
mod emit;
mod finish;
mod forward;
mod local;
mod outcome;
mod passage;
mod segment;
mod sockets;
mod state;
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
pub use state::{Flow, Leg, Mode, Placement, Record, Side, Slot, owed, seen, slot_flag, traits};
pub use transfer::{Direction, Transfer};
pub use user::{Rebuilt, SocketState, Start};
pub use wake::Wake;
pub use window::{LEAST_WINDOW, window_field};
