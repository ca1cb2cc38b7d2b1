//! Writes the counters of the accelerator.

use std::fmt;

use super::out::{Out, alone};
use crate::accelerator::AcceleratorStatus;

pub(super) fn write(out: &mut Out<'_>, status: &AcceleratorStatus) -> fmt::Result {
    out.gauge(
        "accelerator_open",
        "Connections that the process carries: taken over, or released a moment ago",
        alone(status.open as f64),
    )?;
    out.counter(
        "accelerator_taken_over",
        "Times that a connection was taken over",
        alone(status.taken_over_total),
    )?;
    let reasons = status.taken_over_again_total.iter();
    out.counter(
        "accelerator_taken_over_again",
        "Times that a released connection was taken over again",
        reasons.map(|(reason, n)| ([("reason", reason.as_str())], *n)),
    )?;
    out.counter(
        "accelerator_released",
        "Times that a taken-over connection was released",
        alone(status.released_total),
    )?;
    let reasons = status.released_by_reason.iter();
    out.counter(
        "accelerator_released_by_policy",
        "Times that the policy released a connection",
        reasons.map(|(reason, n)| ([("reason", reason.as_str())], *n)),
    )?;
    let reasons = status.passed_through_total.iter();
    out.counter(
        "accelerator_passed_through",
        "Connections that were not taken over",
        reasons.map(|(reason, n)| ([("reason", reason.as_str())], *n)),
    )?;
    out.counter(
        "accelerator_congestion_failures",
        "Legs for which the kernel refused the configured congestion control",
        alone(status.congestion_failures_total),
    )
}
