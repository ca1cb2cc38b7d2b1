//! Takes a pair from relay to splice: registers it, and couples the windows (splice.md).

use std::{io, time::Duration};

use longsplice_core::{
    coupling::{self, Delivery, Obstacle},
    reason::RelayReason,
};
use longsplice_dataplane::{PerSide, Side};
use longsplice_repair::{TcpInfo, tcp_info, unread};
use tokio::time::Instant;

use super::{
    exit::Exit,
    looks::Looks,
    pair::{Session, Woken},
    state::{Coupling, Relaying, State},
};
use crate::{
    api::FlowState,
    flow::{
        Flow,
        assess::{self, Place, Refusal},
    },
};

/// Reason that a pair was not spliced.
enum Failure {
    /// The pair stays relayed.
    Refused(Refusal),
    /// The pair ended meanwhile.
    Over(Exit),
}

impl From<Exit> for Failure {
    fn from(exit: Exit) -> Self {
        Failure::Over(exit)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Over(error.into())
    }
}

/// Returns the failure for a reason that may pass.
fn refused(reason: RelayReason) -> Failure {
    Failure::Refused(Refusal::for_now(reason))
}

impl<'a> Coupling<'a> {
    /// Registers the flow, and couples its windows. A pair that cannot be spliced now is relayed on.
    pub(super) async fn run(self) -> State<'a> {
        let mut session = self.session;
        match begin(&mut session).await {
            Ok(flow) => State::draining(session, flow),
            Err((Failure::Over(exit), flow)) => State::over(session.conclude(exit, flow)),
            Err((Failure::Refused(refusal), flow)) => {
                if let Some(flow) = flow {
                    flow.stop_coupling();
                    session.entry.set_state(FlowState::Relay);
                    session.keep_flow(flow);
                }
                let Refusal { reason, passing } = refusal;
                tracing::debug!(flow = %session.id(), %reason, passing, "not spliced");
                session.entry.set_reason(Some(reason));
                session.entry.refuse(reason);
                session.gate.refused(Instant::now(), passing);
                State::Relaying(Relaying { session })
            }
        }
    }
}

/// Returns the flow in mode Drain; or the reason that the pair is not spliced, with the flow if it was registered.
async fn begin(session: &mut Session<'_>) -> Result<Flow, (Failure, Option<Flow>)> {
    let transitions = &session.context.transitions;
    let _under_way = transitions
        .couple()
        .ok_or_else(|| (refused(RelayReason::Busy), None))?;
    // Check before registration: with thousands of slow readers, each is tried again and again. A request for one pair
    // skips this, and so does a pair of which nothing was relayed yet.
    if !session.entry.is_asked()
        && session.has_begun()
        && waits_for_a_reader(session).map_err(|e| (e.into(), None))?
    {
        return Err((refused(RelayReason::SlowReader), None));
    }
    let (mut flow, infos) = register(session).map_err(|refusal| (Failure::Refused(refusal), None))?;
    session.note_start(&flow);
    match couple(session, &mut flow, infos).await {
        Ok(()) => Ok(flow),
        Err(failure) => Err((failure, Some(flow))),
    }
}

/// Returns the flow, and the state of TCP of its sockets at registration.
fn register(session: &mut Session<'_>) -> Result<(Flow, PerSide<TcpInfo>), Refusal> {
    let context = session.context;
    let kernel = context
        .kernel
        .as_ref()
        .ok_or(Refusal::for_good(RelayReason::Unsupported))?;
    let plane = &kernel.plane;
    if !context.pinning.holds() {
        return Err(Refusal::for_now(RelayReason::Pins));
    }
    let watched = |ifindex| context.interfaces.has(ifindex);
    if let Some(mut flow) = session.flow.take() {
        let assessed = assess::assess(plane, &session.legs, &session.pump, watched, |side, _| {
            Place::Alone(flow.alone(side))
        });
        return match assessed {
            Ok(assessment) if flow.resume(&assessment, &session.pump) => Ok((flow, assessment.infos)),
            other => {
                session.flow = Some(flow);
                Err(other.err().unwrap_or(Refusal::for_now(RelayReason::Unsettled)))
            }
        };
    }
    let assessed = assess::assess(plane, &session.legs, &session.pump, watched, |_, leg| {
        context.unpaired.place(plane, leg)
    });
    let assessment = assessed?;
    if (assessment.legs.iter()).any(|&leg| kernel.conntrack.is_translated(leg)) {
        return Err(Refusal::for_good(RelayReason::Nat));
    }
    let mut flow = Flow::register(kernel, &assessment, &session.pump, session.id().0)?;
    for leg in flow.legs() {
        context.unpaired.forget(leg);
    }
    flow.one_clock = session.one_clock;
    Ok((flow, assessment.infos))
}

/// Returns true if so many bytes wait for an end that has closed its window that a coupling is hopeless.
fn waits_for_a_reader(session: &Session<'_>) -> io::Result<bool> {
    for side in Side::BOTH {
        let info = tcp_info(session.pump.socket(side.other()))?;
        let delivery = delivery(&info);
        if delivery.is_stopped() {
            let unread = u64::from(unread(session.pump.socket(side))?);
            let backlog = delivery.unsent + session.pump.held(side) as u64 + unread;
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

async fn couple(
    session: &mut Session<'_>,
    flow: &mut Flow,
    mut infos: PerSide<TcpInfo>,
) -> Result<(), Failure> {
    let rtts = infos.as_ref().map(|i| Duration::from_micros(i.rtt_us().into()));
    let started = Instant::now();
    // Bytes that wait for the rate limit already have to pass first.
    let waiting = PerSide::from_fn(|side| {
        let unread = || unread(session.pump.socket(side)).unwrap_or(0);
        session.throttle.time_for(side, unread)
    });
    let give_up =
        started + coupling::give_up_after(rtts.client, rtts.server) + 2 * waiting.client.max(waiting.server);
    session.entry.set_state(FlowState::Coupling);
    let mut looks = Looks::begin(flow, started);
    flow.start_coupling(&infos, session.throttle.limit());
    // Step only when it is known to be necessary: it would relay all that a fast sender has ready.
    session.pump.look_beyond_limits().map_err(Exit::from)?;
    loop {
        if session.pump.finished() {
            return Err(Exit::Finished.into());
        }
        let now = Instant::now();
        if session.fired(now).is_some() || session.traps.left(&session.pump) == Some(0) {
            return Err(refused(RelayReason::EndedBeforePolicy));
        }
        session.meter.sample(now, &session.pump, Duration::ZERO);
        let obstacle = flow.coupling_obstacle(&session.pump, &infos, started, session.meter.rates())?;
        // A hole in a stream: the missing segment is on another processor, or is retransmitted.
        let hole = || (!flow.note_streams(&session.pump)).then_some(Obstacle::Recovery);
        match obstacle.or_else(hole) {
            None => {
                flow.slot().set_keeping(!session.traps.is_closed());
                flow.slot().set_pausing(session.pauses);
                // Disarms traps of an earlier call, too.
                flow.arm(&session.pump, session.distances());
                session.throttle.hand_over(flow.slot());
                return match flow.start_drain(&session.pump)? {
                    true => Ok(()),
                    false => Err(refused(RelayReason::NotEstablished)),
                };
            }
            Some(obstacle) => {
                let is_over = now >= give_up;
                // Only that end can change this, by reading; after a request for this pair, wait for it until the
                // timeout.
                if (is_over || !session.entry.is_asked()) && infos.iter().any(|i| delivery(i).is_stopped()) {
                    return Err(refused(RelayReason::SlowReader));
                }
                if is_over {
                    return Err(refused(coupling_reason(obstacle)));
                }
            }
        }
        if session.wait_coupling(flow, &mut looks, give_up).await == Woken::Stop {
            return Err(Exit::stopped().into());
        }
        infos = assess::infos(&session.pump)?;
        session.step_briefly()?;
    }
}

fn coupling_reason(obstacle: Obstacle) -> RelayReason {
    match obstacle {
        Obstacle::Recovery => RelayReason::Recovery,
        _ => RelayReason::CouplingTimeout,
    }
}
