//! Ends spliced flows: their records outlive the close, and are then removed.

use std::{
    fs, io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use longsplice_core::reap::{DirectionEnd, FlowEnd as Ending, Reaped, Verdict, port_free_in, verdict};
use longsplice_dataplane::{Dataplane, Direction, Leg, PerSide};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

use crate::{
    context::Context,
    kernel::{Kernel, quarantine::QUARANTINE},
    services::{ends::FlowEnd, ports::Vacancy, stats::End},
};

/// Interval between two walks over the records, if there are few.
const PERIOD: Duration = Duration::from_secs(1);

/// Divisor of the share of a CPU that the walk over the records may take. Removals are rare, and are not counted.
const SHARE: u32 = 50;

/// Number of detached or closed pairs after which the memory of their control mode is worth giving back; the second one
/// holds if no more come.
const WORTH_RELEASING: u64 = 256;
const WORTH_RELEASING_AT_REST: u64 = 16;

/// Share of available memory, in percent, below which parked sockets are closed.
const LOW_MEMORY_PERCENT: u64 = 5;

/// Starts the tasks; they end with the context. The first frees slots while the second is busy with a walk.
pub(crate) fn start(context: &Arc<Context>) {
    let weak = Arc::downgrade(context);
    tokio::spawn(async move {
        loop {
            sleep(QUARANTINE).await;
            let Some(context) = weak.upgrade() else { return };
            if has_chores(&context) && context.run_blocking(chores).await.is_none() {
                return;
            }
        }
    });
    let weak = Arc::downgrade(context);
    tokio::spawn(async move {
        let mut memory = Memory::default();
        loop {
            let Some(context) = weak.upgrade() else { return };
            let done = context.run_blocking(move |context, kernel| {
                let walked = round(context, kernel);
                kernel.conntrack.look();
                context.targets.expire();
                memory.release(context.stats.detached.get() + context.closed.load(Ordering::Relaxed));
                (walked, memory)
            });
            let Some((walked, later)) = done.await else { return };
            memory = later;
            drop(context);
            sleep(PERIOD.max(walked * SHARE)).await;
        }
    });
}

/// Decides when the memory of control mode is given back.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    /// Number of detached or closed pairs at the last release, at the last release at rest, and a round ago.
    released: u64,
    rested: u64,
    before: u64,
}

impl Memory {
    /// Gives it back if that is worth it after so many pairs.
    fn release(&mut self, gone: u64) {
        if self.is_due(gone) {
            longsplice_repair::release_free_memory();
        }
    }

    /// Returns true if memory is to be given back now, after so many pairs. It is due at rest once more: a release under
    /// load returns little of the last pairs' memory.
    fn is_due(&mut self, gone: u64) -> bool {
        let at_rest = gone == std::mem::replace(&mut self.before, gone);
        let (since, worth) = match at_rest {
            true => (&mut self.rested, WORTH_RELEASING_AT_REST),
            false => (&mut self.released, WORTH_RELEASING),
        };
        let is_due = gone - *since >= worth;
        if is_due {
            *since = gone;
        }
        is_due
    }
}

/// Returns true if there is work for slots or for legs that stand alone.
fn has_chores(context: &Context) -> bool {
    let has_left = |kernel: &Arc<Kernel>| !kernel.quarantine.is_empty();
    context.kernel.as_ref().is_some_and(has_left) || !context.unpaired.is_empty()
}

fn chores(context: &Context, kernel: &Kernel) {
    kernel.quarantine.free(&kernel.plane, QUARANTINE);
    context.unpaired.tend(&kernel.plane, context.config.record_ttl);
}

/// Does the work of one period. Returns the CPU time of the walk over the records.
fn round(context: &Context, kernel: &Kernel) -> Duration {
    let plane = &kernel.plane;
    if let Err(error) = plane.keep_lo_forwarding() {
        tracing::warn!(%error, "route look-ups may fail");
    }
    context.pinning.look(plane);
    context.interfaces.look(plane);
    context.rules.look();
    context.order.look(plane, &context.interfaces);
    plane.look_for_neighbours();
    context.xdp.look_again(plane, context.config.xdp_mode);
    context.memory_low.store(memory_is_low(), Ordering::Relaxed);
    reap(context, kernel).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot look at the flows");
        Duration::ZERO
    })
}

/// Returns the CPU time of this thread: on a busy host much less than has passed.
fn computed() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec.unsigned_abs(), t.tv_nsec as u32)
}

/// Returns true if the programs are needed without a process, or that cannot be found out. A flow needs them, even if its
/// sockets reset its ends in a moment. A socket needs them that delivers its last bytes in numbers of its own.
pub(crate) fn is_in_use(plane: &Dataplane) -> bool {
    let mut has_flow = false;
    let scanned = plane.scan_flows(|directions| has_flow |= directions.iter().any(Option::is_some));
    let lives = |leg: &Leg| plane.inspect(*leg).is_ok();
    let legs = || plane.legs_alone().map_or(true, |legs| legs.iter().any(lives));
    scanned.is_err() || has_flow || legs()
}

/// Removes the records of ended flows. Returns the CPU time that it took to find them.
fn reap(context: &Context, kernel: &Kernel) -> io::Result<Duration> {
    let plane = &kernel.plane;
    let started = computed();
    let limits = context.limits();
    // Look again only at those that are due: most flows live, and most closed ones are kept for a while.
    let mut due = Vec::new();
    let mut walk = context.ends.walk();
    let mut ruled = context.rules.spliced.walk();
    plane.scan_flows(|directions| {
        let Some((a, b)) = directions.complete() else {
            return;
        };
        walk.see(a.serial);
        ruled.see(a.serial);
        let may_have_ended = |d: &Direction| d.fin || d.reset || d.idle >= limits.idle_timeout;
        if a.slot.is_none() && (may_have_ended(&a) || may_have_ended(&b)) {
            let end = flow_end(&a, &b);
            kernel.held.look(a.serial, &end);
            walk.look(&end, PerSide::new(&a, &b));
            if let Verdict::Reap(_) = verdict(&end, &limits) {
                due.push(a);
            }
        }
    })?;
    // A SYN has taken the places of these, because both ends had closed or one was reset.
    for PerSide { client: a, server: b } in plane.take_replaced() {
        let end = flow_end(&a, &b);
        if !end.is_over() {
            continue;
        }
        context
            .stats
            .ended(if end.is_reset() { End::Reset } else { End::Closed });
        walk.look(&end, PerSide::new(&a, &b));
    }
    walk.end();
    ruled.end(plane);
    let walked = computed().saturating_sub(started);
    for flow in due {
        if context.maintenance.is_ending() {
            break;
        }
        // A segment may have passed since, or another flow may have taken its place.
        remove_if(context, kernel, flow.leg, |a, _, end| {
            match verdict(end, &limits) {
                Verdict::Reap(how) => (a.serial == flow.serial).then_some(how),
                Verdict::Keep => None,
            }
        });
    }
    Ok(walked)
}

/// Removes the records of a closed flow before their time, so that a new connection can take its source port. `leg` is the
/// server's.
pub(crate) fn vacate(context: &Context, kernel: &Kernel, leg: Leg) -> Vacancy {
    let mut vacancy = Vacancy::No;
    // From the end on, records are a successor's. Do not wait for that end here.
    if context.maintenance.is_ending() {
        return vacancy;
    }
    context.maintenance.run(|| {
        remove_if(context, kernel, leg, |a, b, end| {
            let rest = port_free_in(end).filter(|_| b.leg == leg)?;
            vacancy = match rest.is_zero() {
                true => Vacancy::Now(a.end_at_far),
                false => Vacancy::In(rest),
            };
            rest.is_zero().then_some(Reaped::Closed)
        });
    });
    vacancy
}

/// Removes the records of the flow that has a leg and no slot, if `judge` gives a reason when it sees them. Counts and
/// reports its end.
fn remove_if(
    context: &Context,
    kernel: &Kernel,
    leg: Leg,
    judge: impl FnOnce(&Direction, &Direction, &Ending) -> Option<Reaped>,
) {
    // Each flow ends once.
    let _alone = context.reaping.lock();
    let Some((a, b)) = kernel.plane.both_directions(leg).complete() else {
        return;
    };
    if a.slot.is_some() {
        return;
    }
    let Some(how) = judge(&a, &b, &flow_end(&a, &b)) else {
        return;
    };
    // The task that waits for the flow must know the reason when it finds the records gone.
    kernel.held.ended(a.serial, how);
    context.unregister(a.serial, PerSide::new(a.leg, b.leg));
    // Count it first: a task that is told of the end finds it counted.
    let (end, reported) = match how {
        Reaped::Closed => (End::Closed, FlowEnd::Closed),
        Reaped::Reset => (End::Reset, FlowEnd::Reset),
        Reaped::Idle => (End::Idle, FlowEnd::Idle),
    };
    context.stats.ended(end);
    context.ends.ended(reported, PerSide::new(&a, &b));
    tracing::debug!(
        flow = a.serial,
        ?how,
        bytes = a.bytes,
        bytes_back = b.bytes,
        "flow ended"
    );
}

/// Returns the state of a flow's end, as its records show it.
pub(crate) fn flow_end(a: &Direction, b: &Direction) -> Ending {
    let end = |x: &Direction, o: &Direction| DirectionEnd {
        fin_seen: x.fin,
        fin_acknowledged: x.fin && o.ack.at_or_after(x.end_at_far),
        reset_seen: x.reset,
    };
    Ending {
        directions: PerSide::new(end(a, b), end(b, a)),
        idle: a.idle.min(b.idle),
    }
}

fn memory_is_low() -> bool {
    let Ok(text) = fs::read_to_string("/proc/meminfo") else {
        return false;
    };
    let field = |name: &str| -> Option<u64> {
        text.lines()
            .find_map(|l| l.strip_prefix(name))?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    match (field("MemAvailable:"), field("MemTotal:")) {
        (Some(available), Some(total)) => available * 100 < total * LOW_MEMORY_PERCENT,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_now_and_then_and_once_all_is_quiet() {
        let mut memory = Memory::default();
        let due = [0, 300, 400, 600, 600, 600, 610, 610, 620, 620].map(|detached| memory.is_due(detached));
        assert_eq!(
            due,
            [false, true, false, true, true, false, false, false, false, true]
        );
    }
}
