//! Rows 15.1 to 15.6: the price of the transparent accelerator, and a relay of every connection beside it.

pub(super) mod churn;
pub(super) mod idle;
pub(super) mod passed;
pub(super) mod relay;
pub(super) mod take_over;
