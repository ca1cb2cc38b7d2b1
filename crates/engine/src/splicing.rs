//! From relay to splice: couple the windows, drain, and park or detach (splice.md).

use std::{io, sync::Arc, time::Duration};

use longsplice_core::{
    coupling::{self, Obstacle},
    policy::DetachPolicy,
    reason::RelayReason,
};
use longsplice_dataplane::{Dataplane, Mode, Side};
use longsplice_repair::{options, tcp_info};
use tokio::time::{Instant, sleep_until};

use crate::{
    api::{Ended, FlowState},
    flow::{Flow, Progress},
    legs::{self, Refusal},
    pair::{Driver, Over, Woken},
    splicer::Phase,
};

/// How often a pair in transition is looked at, when nothing else wakes it.
const TICK: Duration = Duration::from_millis(1);

/// How long a drained pair is given to become parkable: a socket may still have to process an acknowledgement.
const PARK_PATIENCE: Duration = Duration::from_millis(20);

/// How often a dormant pair is looked at: its end shows in the record.
const DORMANT_TICK: Duration = Duration::from_millis(250);

/// Why a pair was not spliced.
#[derive(Debug)]
pub(crate) enum Spliced {
    /// It is relayed on.
    Refused(Refusal),
    /// It ended meanwhile. A registered flow is to be dropped after the sockets.
    Over(Over, Option<Flow>),
}

/// Registers, couples and drains; the flow that is given back is in mode Drain, and drained.
pub(crate) async fn splice(driver: &mut Driver<'_>) -> Result<Flow, Spliced> {
    let flow = register(driver).map_err(Spliced::Refused)?;
    match couple(driver, &flow).await {
        Ok(()) => {}
        Err(Spliced::Over(over, _)) => return Err(Spliced::Over(over, Some(flow))),
        Err(refused) => {
            driver.entry.set_state(FlowState::Relay);
            return Err(refused);
        }
    }
    match drain(driver, &flow).await {
        Ok(()) => Ok(flow),
        Err(over) => Err(Spliced::Over(over, Some(flow))),
    }
}

fn register(driver: &mut Driver<'_>) -> Result<Flow, Refusal> {
    let plane: &Arc<Dataplane> = driver
        .splicer
        .plane
        .as_ref()
        .ok_or(Refusal::for_good(RelayReason::Unsupported))?;
    let assessment = legs::assess(plane, &driver.pump, |ifindex| driver.splicer.watches(ifindex))?;
    Flow::register(plane, &assessment, &driver.pump, driver.id().0)
}

async fn couple(driver: &mut Driver<'_>, flow: &Flow) -> Result<(), Spliced> {
    let over = |e: io::Error| Spliced::Over(e.into(), None);
    let info = |d: &Driver<'_>, side| tcp_info(d.pump.socket(side)).map_err(|e| over(e.into()));
    let infos = [info(driver, Side::Client)?, info(driver, Side::Server)?];
    let rtts = infos.map(|i| Duration::from_micros(i.rtt_us().into()));
    let started = Instant::now();
    let give_up = started + coupling::give_up_after(rtts[0], rtts[1]);
    let splicer = driver.splicer.clone();
    let announcer = splicer
        .announcer
        .as_ref()
        .ok_or_else(|| Driver::refuse(RelayReason::NoPrivilege))?;
    driver.entry.set_state(FlowState::Coupling);
    flow.start_coupling(&infos);
    loop {
        driver.step().map_err(|o| Spliced::Over(o, None))?;
        if driver.pump.finished() {
            return Err(Spliced::Over(Over::Finished, None));
        }
        let now = Instant::now();
        driver.meter.sample(now, &driver.pump, Duration::ZERO);
        let obstacle = flow
            .coupling_obstacle(&driver.pump, announcer, started, driver.meter.rates())
            .map_err(over)?;
        match obstacle {
            None => {
                return match flow.start_drain(&driver.pump, announcer).map_err(over)? {
                    true => Ok(()),
                    false => Err(Driver::refuse(RelayReason::NotEstablished)),
                };
            }
            Some(o) if now >= give_up => return Err(Driver::refuse(coupling_reason(o))),
            Some(_) => {}
        }
        if driver.wait(Some(now + TICK)).await == Woken::Stop {
            return Err(Spliced::Over(Over::stopped(), None));
        }
    }
}

fn coupling_reason(obstacle: Obstacle) -> RelayReason {
    match obstacle {
        Obstacle::Recovery => RelayReason::Recovery,
        _ => RelayReason::CouplingTimeout,
    }
}

/// Delivers old bytes until the far ends have acknowledged them all. There is no way back from here, and no limit of
/// time: new segments pass meanwhile, and a slow reader is as slow as it was.
async fn drain(driver: &mut Driver<'_>, flow: &Flow) -> Result<(), Over> {
    driver.entry.set_state(FlowState::Draining);
    driver.entry.set_reason(None);
    let mut drained_at = None;
    loop {
        driver.step()?;
        if flow.mode() != Mode::Drain {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "a socket was reset").into());
        }
        let now = Instant::now();
        match flow.drain_progress(&driver.pump)? {
            Progress::Parkable => return Ok(()),
            Progress::Drained if now >= *drained_at.get_or_insert(now + PARK_PATIENCE) => return Ok(()),
            _ => {}
        }
        // A shutdown does not stop a drain: it is about to need us no more. The grace period is its limit.
        driver.wait_draining(now + TICK).await;
    }
}

/// Parks the sockets of a drained flow, and detaches it when its policy says so.
pub(crate) async fn park(driver: Driver<'_>, flow: Flow, detach: DetachPolicy) -> io::Result<Ended> {
    let parkable = flow.drain_progress(&driver.pump)? == Progress::Parkable;
    let started = std::time::Instant::now();
    if !flow.finish() {
        let reset = io::Error::new(io::ErrorKind::ConnectionReset, "a socket was reset");
        return Ok(driver.conclude(Over::Broken(reset), Some(flow)));
    }
    let switched = started.elapsed();
    driver.splicer.stats.spliced.add(1);
    flow.add_relayed(&driver.pump);
    if !parkable || detach == DetachPolicy::Now || driver.splicer.under_pressure() {
        return finish_detaching(driver, flow, Some(started));
    }
    driver.splicer.stats.to_dormant.add(switched);
    driver.entry.set_state(FlowState::Dormant);
    for side in Side::BOTH {
        // Its probes are not the flow's.
        let _ = options::set_keepalive(driver.pump.socket(side), false);
    }
    let until = match detach {
        DetachPolicy::AfterTime(after) => Some(Instant::now() + after),
        _ => None,
    };
    loop {
        let directions = flow.directions();
        driver.entry.note_translated(&directions);
        let ended = directions.iter().any(|d| d.reset) || directions.iter().all(|d| d.fin);
        let now = Instant::now();
        let due = until.is_some_and(|at| now >= at);
        if due || ended || flow.mode() != Mode::Final || driver.splicer.under_pressure() {
            return finish_detaching(driver, flow, None);
        }
        let next = until.unwrap_or(now + DORMANT_TICK).min(now + DORMANT_TICK);
        tokio::select! {
            () = sleep_until(next) => {}
            () = driver.splicer.reached(Phase::Closing) => return finish_detaching(driver, flow, None),
        }
    }
}

fn finish_detaching(
    driver: Driver<'_>,
    flow: Flow,
    started: Option<std::time::Instant>,
) -> io::Result<Ended> {
    let id = driver.id();
    // Counts what was relayed.
    let _ = driver.summary(true, false);
    let Driver {
        splicer, entry, pump, ..
    } = driver;
    let settling = flow.detach(pump)?;
    if let Some(started) = started {
        splicer.stats.to_detached.add(started.elapsed());
    }
    splicer.settle_later(settling);
    splicer.stats.detached.add(1);
    drop(entry);
    Ok(Ended::Detached(id))
}
