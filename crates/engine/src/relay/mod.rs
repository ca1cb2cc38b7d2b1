//! Moves the bytes of a pair through this process, and decides when to stop. It knows of no flow.

pub(crate) mod gate;
pub(crate) mod idle;
#[cfg(test)]
mod loopback;
pub(crate) mod meter;
pub(crate) mod pump;
pub(crate) mod queue;
pub(crate) mod throttle;
pub(crate) mod traps;
pub(crate) mod yielding;
