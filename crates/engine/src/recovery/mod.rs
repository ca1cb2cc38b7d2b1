//! Handles flows that no call of `splice` holds: adopts, takes back, finishes and removes them.

pub(crate) mod adopt;
pub(crate) mod orphans;
pub(crate) mod reaper;
pub(crate) mod successor;
