//! Supports the tests of the kernel half: builds and translates packets independently of it, and makes a flow in a
//! network namespace of its own. Needs root.

pub mod family;
pub mod flow;
pub mod icmp;
pub mod net;
pub mod options;
pub mod packet;
mod pins;
mod plan;
pub mod plane;
pub mod random;
pub mod raw;
pub mod reference;
pub mod tap;
pub mod woken;
mod workplace;

pub use family::{FAMILY, choose};
