//! Adopts the flows of a predecessor: its sockets died with it, its spliced flows live.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use longsplice_core::reap::{Verdict, verdict};
use longsplice_dataplane::{Adopted, Direction, Mode, PerSide, Slot};

use tokio::time::sleep;

use super::reaper;
use crate::{context::Context, kernel::Kernel};

/// Interval between two looks for predecessors that have ended.
const PERIOD: Duration = Duration::from_secs(1);

/// Takes over every flow that is spliced. Removes the others, whose bytes were in the predecessor's sockets: their ends
/// were reset when it died, or will be by their next segment.
pub(crate) fn adopt(context: &Context, orphans: Vec<Slot>) {
    let Some(kernel) = &context.kernel else { return };
    let plane = &kernel.plane;
    let mut lost = 0;
    for slot in orphans {
        let legs = plane.legs(&slot);
        if slot.mode() == Mode::Moved {
            kernel.quarantine.put_old(slot);
        } else if slot.mode() == Mode::Final || slot.transition(Mode::Freeze, Mode::Final) {
            if let Err(error) = plane.demote(&slot, legs, PerSide::both(0)) {
                tracing::warn!(%error, "cannot adopt a dormant flow");
            }
            kernel.quarantine.put(slot, legs, PerSide::both(0));
        } else if legs.iter().any(|leg| is_its(plane.direction(*leg), &slot)) {
            lost += 1;
            plane.unregister(slot.serial(), legs);
        }
        // Else a flow has left the slot: its sockets may be in another one since, under the same number, which has the
        // records.
    }
    let mut adopted = 0;
    // Records that cannot be read now are reaped later, when they can.
    let _ = plane.scan_flows(|directions| {
        adopted += u64::from(directions.iter().flatten().any(|d| d.slot.is_none()));
    });
    remove_strays(kernel);
    for leg in plane.legs_alone().unwrap_or_default() {
        context.unpaired.add_alone(leg, tokio::time::Instant::now());
    }
    context.stats.adopted.add(adopted);
    if adopted + lost > 0 {
        tracing::info!(adopted, lost, "adopted the flows of a predecessor");
    }
}

/// Returns true if the slot has the state of these records.
fn is_its(records: Option<Direction>, slot: &Slot) -> bool {
    records.is_some_and(|d| d.serial == slot.serial() && d.slot == Some(slot.index()))
}

/// Starts the task that looks for predecessors that have ended; it ends with the context.
pub(crate) fn start(context: &Arc<Context>) {
    let weak = Arc::downgrade(context);
    tokio::spawn(async move {
        loop {
            let Some(context) = weak.upgrade() else { return };
            if context.run_blocking(adopt_predecessors).await.is_none() {
                return;
            }
            drop(context);
            sleep(PERIOD).await;
        }
    });
}

/// Adopts the flows of generations whose processes have ended: of another version, or one that this process replaces.
fn adopt_predecessors(context: &Context, kernel: &Kernel) {
    let limits = context.limits();
    let is_over =
        |a: &Direction, b: &Direction| matches!(verdict(&reaper::flow_end(a, b), &limits), Verdict::Reap(_));
    let Adopted {
        flows,
        lost,
        alone,
        left,
    } = match kernel.plane.adopt_predecessors(is_over) {
        Ok(adopted) => adopted,
        Err(error) => {
            if !context.adoption_failed.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "a predecessor's flows run on without a process: they cannot be adopted");
            }
            return;
        }
    };
    for leg in alone {
        context.unpaired.add_alone(leg, tokio::time::Instant::now());
    }
    context.stats.adopted.add(flows);
    if flows > 0
        && let Err(error) = context.rules.spliced.judge_all(&kernel.plane)
    {
        tracing::warn!(%error, "rules do not hold for the flows of a predecessor");
    }
    if flows + lost > 0 {
        tracing::info!(adopted = flows, lost, left, "adopted the flows of a predecessor");
    }
}

/// Removes records whose slot is free: their process died as it installed or removed them. A half of a flow is gone by now.
fn remove_strays(kernel: &Kernel) {
    let plane = &kernel.plane;
    let mut strays = Vec::new();
    let scanned = plane.scan(|d| {
        if d.slot.is_some() {
            let legs = PerSide::from_fn(|side| if side == d.side { d.leg } else { d.far });
            strays.push((d.serial, legs));
        }
    });
    if let Err(error) = scanned {
        tracing::warn!(%error, "cannot look for stray records");
    }
    for (serial, legs) in strays {
        plane.unregister(serial, legs);
    }
}
