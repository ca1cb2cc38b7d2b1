//! Takes a pair from relay to splice: registers it, couples the windows, drains it (splice.md).

use std::{io, sync::Arc, time::Duration};

use longsplice_core::{
    coupling::{self, Delivery, Obstacle},
    patience::Waiter,
    reason::RelayReason,
};
use longsplice_dataplane::{Dataplane, Mode, Side};
use longsplice_repair::{TcpInfo, tcp_info, unread};
use tokio::time::Instant;

use crate::{
    api::FlowState,
    driver::{Driver, Woken},
    flow::{Flow, draining::Progress},
    legs::{self, Refusal},
    mapped::Place,
    over::Over,
    parked::keep_promises,
};

/// Time for a drained pair to become parkable, and for a socket to take what the programs saw: it may still have to
/// process an acknowledgement.
const PARK_PATIENCE: Duration = Duration::from_millis(20);

/// Reason that a pair was not spliced.
#[derive(Debug)]
pub(crate) enum Spliced {
    /// The pair stays relayed.
    Refused(Refusal),
    /// The pair ended meanwhile. Drop a registered flow after the sockets.
    Over(Over, Option<Box<Flow>>),
}

/// Outcome of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// The sockets have nothing left, as long as their cuts are these; true if they could be woken at these numbers.
    Drained([u32; 2], bool),
    /// A trap brought the pair back before.
    Awake,
}

/// Registers, couples and drains a pair. The returned flow is in mode Drain, and drained, or in mode Undrain.
pub(crate) async fn splice(driver: &mut Driver<'_>) -> Result<(Flow, Drained), Spliced> {
    let splicer = driver.splicer;
    let under_way = splicer.transitions.couple();
    if under_way.is_none() {
        return Err(Driver::refuse(RelayReason::Busy));
    }
    // Check before registration: with thousands of slow readers, each is tried again and again. A request for one pair
    // skips this.
    if !driver.entry.is_asked() && waits_for_a_reader(driver).map_err(|e| Spliced::Over(e.into(), None))? {
        return Err(Driver::refuse(RelayReason::SlowReader));
    }
    let (mut flow, infos) = register(driver).map_err(Spliced::Refused)?;
    driver.note_start(&flow);
    let coupled = couple(driver, &mut flow, infos).await;
    drop(under_way);
    match coupled {
        Ok(()) => {}
        Err(Spliced::Over(over, _)) => return Err(Spliced::Over(over, Some(flow.into()))),
        Err(refused) => {
            flow.stop_coupling(splicer.announcer.as_ref());
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

/// Returns the flow, and the state of TCP of its sockets at registration.
fn register(driver: &mut Driver<'_>) -> Result<(Flow, [TcpInfo; 2]), Refusal> {
    let splicer = driver.splicer;
    let plane: &Arc<Dataplane> = splicer
        .plane
        .as_ref()
        .ok_or(Refusal::for_good(RelayReason::Unsupported))?;
    if !splicer.pinning.holds() {
        return Err(Refusal::for_now(RelayReason::Pins));
    }
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

/// Returns true if so many bytes wait for an end that has closed its window that a coupling is hopeless.
fn waits_for_a_reader(driver: &Driver<'_>) -> io::Result<bool> {
    for side in Side::BOTH {
        let info = tcp_info(driver.pump.socket(side.other()))?;
        let delivery = delivery(&info);
        if delivery.is_stopped() {
            let unread = u64::from(unread(driver.pump.socket(side))?);
            let backlog = delivery.unsent + driver.pump.held(side) as u64 + unread;
            if delivery.is_hopeless(backlog) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the state of a socket's delivery to its end.
fn delivery(info: &TcpInfo) -> Delivery {
    Delivery {
        unsent: info.notsent_bytes().into(),
        in_flight: info.unacked(),
        // A kernel without this field reports no slow readers.
        window: info.snd_wnd().unwrap_or(u32::MAX),
        mss: info.snd_mss(),
        quiet: Duration::from_millis(info.last_data_sent_ms().into()),
    }
}

async fn couple(driver: &mut Driver<'_>, flow: &mut Flow, mut infos: [TcpInfo; 2]) -> Result<(), Spliced> {
    let over = |e: io::Error| Spliced::Over(e.into(), None);
    let rtts = infos.each_ref().map(|i| Duration::from_micros(i.rtt_us().into()));
    let started = Instant::now();
    // Bytes that wait for the rate limit already have to pass first.
    let waiting = Side::BOTH.map(|side| {
        let unread = || unread(driver.pump.socket(side)).unwrap_or(0);
        driver.throttle.time_for(side, unread)
    });
    let give_up = started + coupling::give_up_after(rtts[0], rtts[1]) + 2 * waiting[0].max(waiting[1]);
    let splicer = driver.splicer;
    let announcer = splicer
        .announcer
        .as_ref()
        .ok_or_else(|| Driver::refuse(RelayReason::NoPrivilege))?;
    driver.entry.set_state(FlowState::Coupling);
    flow.start_coupling(&infos, driver.throttle.limit(), announcer);
    // Step only when it is known to be necessary: it would relay all that a fast sender has ready.
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
        // A hole in a stream: the missing segment is on another processor, or is retransmitted.
        let hole = || (!flow.note_streams(&driver.pump)).then_some(Obstacle::Recovery);
        match obstacle.or_else(hole) {
            None => {
                flow.slot().set_keeping(!driver.traps.is_closed());
                flow.slot().set_pausing(driver.pauses);
                // Disarms traps of an earlier call, too.
                flow.arm(&driver.pump, driver.distances());
                driver.throttle.hand_over(flow.slot());
                return match flow.start_drain(&driver.pump, announcer).map_err(over)? {
                    true => Ok(()),
                    false => Err(Driver::refuse(RelayReason::NotEstablished)),
                };
            }
            Some(obstacle) => {
                let is_over = now >= give_up;
                // Only that end can change this, by reading; after a request for this pair, wait for it until the
                // timeout.
                if (is_over || !driver.entry.is_asked()) && infos.iter().any(|i| delivery(i).is_stopped()) {
                    return Err(Driver::refuse(RelayReason::SlowReader));
                }
                if is_over {
                    return Err(Driver::refuse(coupling_reason(obstacle)));
                }
            }
        }
        let look = now + splicer.transitions.next_look(now - started);
        if driver.wait(Some(look)).await == Woken::Stop {
            return Err(Spliced::Over(Over::stopped(), None));
        }
        infos = legs::infos(&driver.pump).map_err(over)?;
        driver.step_briefly().map_err(|o| Spliced::Over(o, None))?;
    }
}

fn coupling_reason(obstacle: Obstacle) -> RelayReason {
    match obstacle {
        Obstacle::Recovery => RelayReason::Recovery,
        _ => RelayReason::CouplingTimeout,
    }
}

/// Delivers old bytes until the far ends have acknowledged them all. The only way back from here is a trap. There is no
/// limit of time while both ends live: new segments pass meanwhile, and a slow reader is as slow as before.
pub(crate) async fn drain(driver: &mut Driver<'_>, flow: &mut Flow) -> Result<Drained, Over> {
    driver.entry.begin_drain();
    let splicer = driver.splicer;
    let _under_way = splicer.transitions.drain();
    let begun = Instant::now();
    let (mut drained_at, mut doubted_at) = (None, None);
    loop {
        if driver.parks() {
            flow.note_latecomers(&driver.pump);
        }
        // Keep this order: a cut that was read in mode Drain is from before a wake, and so is all that the pump reads up
        // to it.
        let cuts = flow.cuts();
        match flow.mode() {
            Mode::Drain => {}
            Mode::Undrain => return Ok(Drained::Awake),
            _ => return Err(Over::reset("a socket was reset")),
        }
        // A reset from before the drain went to one socket only: the other end does not know of it.
        if flow.was_reset() {
            return Err(Over::reset("an end was reset"));
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
        if progress != Progress::Contradicted {
            doubted_at = None;
        } else if now >= *doubted_at.get_or_insert(now + PARK_PATIENCE) {
            tracing::debug!(flow = %driver.id(), "a socket has not taken an acknowledgement: it is waited for again");
            flow.believe_sockets();
            doubted_at = None;
        }
        match progress {
            Progress::Parkable if !driver.parks() || flow.all_noted() => {
                return Ok(Drained::Drained(cuts, true));
            }
            // A socket may hold bytes beyond a hole for ever: the segment that fills the hole has bypassed it.
            Progress::Parkable | Progress::Drained
                if now >= *drained_at.get_or_insert(now + PARK_PATIENCE) =>
            {
                tracing::debug!(flow = %driver.id(), ?progress, "drained, and its sockets cannot be woken");
                return Ok(Drained::Drained(cuts, false));
            }
            _ => {}
        }
        if flow.is_hopeless(now, Waiter::Drain) {
            tracing::info!(flow = %driver.id(), "an end does not acknowledge what was sent before: both ends are reset");
            return Err(Over::given_up());
        }
        // A shutdown does not stop a drain, which is about to need us no more. The grace period is its limit.
        let look = now + splicer.transitions.next_look(now - begun);
        driver.wait_draining(flow, look).await;
    }
}
