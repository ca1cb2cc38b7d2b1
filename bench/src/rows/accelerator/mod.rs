//! Rows 15.1 to 15.6: the price of the transparent accelerator, and a relay of every connection beside it.

pub(super) mod churn;
pub(super) mod idle;
pub(super) mod passed;
pub(super) mod relay;
pub(super) mod take_over;

use longsplice_lab::LineOptions;

/// Returns a topology whose middle routes, as that of every row here.
fn routing() -> LineOptions {
    LineOptions {
        router: true,
        ..LineOptions::default()
    }
}
