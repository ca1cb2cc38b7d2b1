//! From relay to splice: register, couple the windows, drain (splice.md).

use std::{io, sync::Arc, time::Duration};

use longsplice_core::{
    coupling::{self, Obstacle},
    reason::RelayReason,
};
use longsplice_dataplane::{Dataplane, Mode, Side};
use longsplice_repair::{TcpInfo, tcp_info, unread};
use tokio::time::Instant;

use crate::{
    api::FlowState,
    driver::{Driver, Over, Woken},
    flow::{Flow, draining::Progress},
    legs::{self, Refusal},
    mapped::Place,
    parked::keep_promises,
};

/// How often a pair in transition is looked at, when nothing else wakes it.
const TICK: Duration = Duration::from_millis(1);

/// How long a drained pair is given to become parkable: a socket may still have to process an acknowledgement.
const PARK_PATIENCE: Duration = Duration::from_millis(20);

/// Why a pair was not spliced.
#[derive(Debug)]
pub(crate) enum Spliced {
    /// It is relayed on.
    Refused(Refusal),
    /// It ended meanwhile. A registered flow is to be dropped after the sockets.
    Over(Over, Option<Box<Flow>>),
}

/// How far a drain came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// The sockets have nothing left, as long as their cuts are these; and whether they could be woken where they stand.
    Drained([u32; 2], bool),
    /// A trap brought the pair back before.
    Awake,
}

/// Registers, couples and drains. The flow that is given back is in mode Drain, and drained, or in mode Undrain.
pub(crate) async fn splice(driver: &mut Driver<'_>) -> Result<(Flow, Drained), Spliced> {
    let (mut flow, infos) = register(driver).map_err(Spliced::Refused)?;
    driver.note_start(&flow);
    match couple(driver, &mut flow, infos).await {
        Ok(()) => {}
        Err(Spliced::Over(over, _)) => return Err(Spliced::Over(over, Some(flow.into()))),
        Err(refused) => {
            flow.slot().set_coupling(false);
            driver.entry.set_state(FlowState::Relay);
            driver.flow = Some(flow);
            return Err(refused);
        }
    }
    match drain(driver, &mut flow).await {
        Ok(how) => Ok((flow, how)),
        Err(over) => Err(Spliced::Over(over, Some(flow.into()))),
    }
}

/// The flow, and what was known of its sockets when it was registered.
fn register(driver: &mut Driver<'_>) -> Result<(Flow, [TcpInfo; 2]), Refusal> {
    let splicer = driver.splicer;
    let plane: &Arc<Dataplane> = splicer
        .plane
        .as_ref()
        .ok_or(Refusal::for_good(RelayReason::Unsupported))?;
    let watched = |ifindex| splicer.watches(ifindex);
    if let Some(mut flow) = driver.flow.take() {
        let assessed = legs::assess(plane, driver.legs(), &driver.pump, watched, |side, _| {
            Place::Alone(flow.alone(side))
        });
        return match assessed {
            Ok(assessment) if flow.resume(&assessment, &driver.pump) => Ok((flow, assessment.infos)),
            other => {
                driver.flow = Some(flow);
                Err(other.err().unwrap_or(Refusal::for_now(RelayReason::Unsettled)))
            }
        };
    }
    let mut left = Vec::new();
    let assessed = legs::assess(plane, driver.legs(), &driver.pump, watched, |_, leg| {
        splicer.mapped.place(plane, leg, &mut left)
    });
    left.into_iter().for_each(|one| splicer.settle_later(one));
    let assessment = assessed?;
    let mut flow = Flow::register(splicer, plane, &assessment, &driver.pump, driver.id().0)?;
    flow.set_one_clock(driver.one_clock);
    Ok((flow, assessment.infos))
}

async fn couple(driver: &mut Driver<'_>, flow: &mut Flow, mut infos: [TcpInfo; 2]) -> Result<(), Spliced> {
    let over = |e: io::Error| Spliced::Over(e.into(), None);
    let ask = |d: &Driver<'_>| -> io::Result<[TcpInfo; 2]> {
        let [client, server] = Side::BOTH.map(|side| tcp_info(d.pump.socket(side)));
        Ok([client?, server?])
    };
    let rtts = infos.each_ref().map(|i| Duration::from_micros(i.rtt_us().into()));
    let started = Instant::now();
    // What waits for its turn already has to pass first.
    let waiting = Side::BOTH.map(|side| {
        let unread = || unread(driver.pump.socket(side)).unwrap_or(0);
        driver.throttle.time_for(side, unread)
    });
    let give_up = started + coupling::give_up_after(rtts[0], rtts[1]) + 2 * waiting[0].max(waiting[1]);
    let splicer = driver.splicer.clone();
    let announcer = splicer
        .announcer
        .as_ref()
        .ok_or_else(|| Driver::refuse(RelayReason::NoPrivilege))?;
    driver.entry.set_state(FlowState::Coupling);
    flow.start_coupling(&infos, driver.throttle.limit(), announcer);
    // No step before it is known to be necessary: what a fast sender has ready would be relayed.
    driver
        .pump
        .look_beyond_limits()
        .map_err(|b| Spliced::Over(b.into(), None))?;
    loop {
        if driver.pump.finished() {
            return Err(Spliced::Over(Over::Finished, None));
        }
        let now = Instant::now();
        if driver.fired(now).is_some() || driver.traps.left(&driver.pump) == Some(0) {
            return Err(Driver::refuse(RelayReason::EndedBeforePolicy));
        }
        driver.meter.sample(now, &driver.pump, Duration::ZERO);
        let obstacle = flow
            .coupling_obstacle(&driver.pump, &infos, announcer, started, driver.meter.rates())
            .map_err(over)?;
        // A hole in a stream: what fills it is on another processor, or is sent again.
        let hole = || (!flow.note_streams(&driver.pump)).then_some(Obstacle::Recovery);
        match obstacle.or_else(hole) {
            None => {
                flow.slot().set_keeping(!driver.traps.is_closed());
                flow.slot().set_pausing(driver.pauses);
                // Disarms what an earlier call had armed, too.
                flow.arm(&driver.pump, driver.distances());
                driver.throttle.hand_over(flow.slot());
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
        infos = ask(driver).map_err(over)?;
        driver.step_briefly().map_err(|o| Spliced::Over(o, None))?;
    }
}

fn coupling_reason(obstacle: Obstacle) -> RelayReason {
    match obstacle {
        Obstacle::Recovery => RelayReason::Recovery,
        _ => RelayReason::CouplingTimeout,
    }
}

/// Delivers old bytes until the far ends have acknowledged them all. There is no way back from here but through a trap,
/// and no limit of time: new segments pass meanwhile, and a slow reader is as slow as it was.
pub(crate) async fn drain(driver: &mut Driver<'_>, flow: &mut Flow) -> Result<Drained, Over> {
    driver.entry.set_state(FlowState::Draining);
    driver.entry.set_reason(None);
    let mut drained_at = None;
    loop {
        if driver.parks() {
            flow.note_latecomers(&driver.pump);
        }
        // In this order: a cut that was read in mode Drain is from before a wake, and so is all that the pump reads up to it.
        let cuts = flow.cuts();
        match flow.mode() {
            Mode::Drain => {}
            Mode::Undrain => return Ok(Drained::Awake),
            _ => return Err(io::Error::new(io::ErrorKind::ConnectionReset, "a socket was reset").into()),
        }
        // One that came before the drain went to a socket alone: the other end does not know.
        if flow.was_reset() {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "an end was reset").into());
        }
        for side in Side::BOTH {
            let to_cut = flow.bytes_to(side, cuts[side.index()], &driver.pump);
            driver.limit_pump(side, Some(to_cut));
        }
        driver.step_beside(flow)?;
        let now = Instant::now();
        let at_trap = Side::BOTH.map(|side| driver.traps.is_used_up(side, &driver.pump));
        let at_trap = (!driver.traps.is_closed()).then_some(at_trap);
        let progress = flow.drain_progress(&driver.pump, cuts, at_trap)?;
        if driver.fired(now).is_some() || flow.held().is_waiting() {
            if driver.pauses {
                keep_promises(driver, flow);
            }
            if flow.wake()? {
                return Ok(Drained::Awake);
            }
        }
        match progress {
            Progress::Parkable if !driver.parks() || flow.all_noted() => {
                return Ok(Drained::Drained(cuts, true));
            }
            Progress::Drained if now >= *drained_at.get_or_insert(now + PARK_PATIENCE) => {
                return Ok(Drained::Drained(cuts, false));
            }
            _ => {}
        }
        // A shutdown does not stop a drain: it is about to need us no more. The grace period is its limit.
        driver.wait_draining(now + TICK).await;
    }
}
