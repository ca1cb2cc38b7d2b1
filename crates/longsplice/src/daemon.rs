//! Runs a daemon: starts it, serves, and shuts it down.

use std::{
    io,
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime},
};

use longsplice_engine::{OpenError, Shutdown, Splicer, intercept::Owner};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    accelerator::{Accelerator, all_open},
    access_log::{AccessLog, End, record_flows},
    admin::{Admin, Claim, ClaimError, Places, claim, inherit, listing, server},
    config::{Config, ListenerConfig, OnShutdown, rules},
    handover::{Departure, Handover, HandoverError, Inherited, Succession, request},
    listener::Shared,
    logging, memory,
    notify::{notify, notify_reloading},
    reload::{InForce, Load, ReloadError, ReloadRequest, bind_all},
    signals::{Request, Signals},
};

/// Reason why a daemon could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// Another daemon of the instance runs, or its socket cannot be created.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The running daemon keeps its place.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// Splicing is impossible, and the configuration requires it.
    #[error("cannot splice, which is required here: {0} (`longsplice doctor` examines this machine)")]
    Splicer(OpenError),
    /// Splicing is impossible for this process, and the running daemon splices.
    #[error(
        "cannot splice, and the running daemon can: it goes on ({0}; `longsplice doctor` examines this machine; to relay only, \
         stop that daemon and start this one without --replace)"
    )]
    LosesSplicing(OpenError),
    /// The configuration cannot be put in force.
    #[error(transparent)]
    Config(#[from] ReloadError),
    /// An interface for XDP does not exist.
    #[error("there is no interface `{0}` for xdp: `ip -br link` lists those that are there")]
    NoInterface(String),
    /// The process cannot watch for signals.
    #[error("cannot watch for signals: {0}")]
    Signals(io::Error),
}

/// End of a daemon that had started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ended in order, on request.
    Clean,
    /// It ended at once, at a second signal.
    Hurried,
}

/// Number of requests that may wait for a running reload.
const WAITING_RELOADS: usize = 8;

/// Longest time until connections outside of the engine have noticed that they must end.
const LAST_ENDS: Duration = Duration::from_millis(500);

/// Longest time for writing the last lines of the access log.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Runs a daemon until it is told to stop; `load` reads its configuration again. With `replace` it takes the place of the
/// running daemon of its instance, if there is one.
pub(crate) async fn run(config: Config, load: Option<Load>, replace: bool) -> Result<Outcome, StartError> {
    let started = Instant::now();
    config.log_warnings();
    let mut signals = Signals::new().map_err(StartError::Signals)?;
    // Reject unknown interfaces: a typo would silently fall back to tc.
    if let Some(name) = config.splicer.xdp.iter().find(|name| !rules::is_there(name)) {
        return Err(StartError::NoInterface(name.clone()));
    }
    let inherited = Inherited::from_activation();
    let (mut claim, inherited, succession) =
        tokio::task::block_in_place(|| take_place(&config, inherited, replace))?;
    let bound = bind_all(&config, inherited)?;
    let splicer = open_splicer(&config, succession.as_ref()).await?;

    let stopping = CancellationToken::new();
    // Stop the tasks at an error, too.
    let _stop = stopping.clone().drop_guard();
    let shared = Shared::new(splicer.clone(), AccessLog::default(), stopping.clone());
    shared.memory.configure(config.memory);
    let owner = if succession.is_some() {
        Owner::Other
    } else {
        Owner::Us
    };
    // Once it serves, it ends as it is configured.
    let is_stopped = tokio::select! {
        () = measure_splices(&config, &shared) => false,
        () = signals.stop_requested() => true,
    };
    let start = match is_stopped {
        true => Ok(None),
        false => InForce::start(config, bound, shared, owner).await.map(Some),
    };
    let mut in_force = match start {
        Ok(Some(in_force)) => in_force,
        ended => {
            // Shut the splicer down instead of dropping it: it may have adopted a predecessor's flows. Keep them for a
            // start that succeeds: this process has not served.
            splicer.shutdown(Shutdown::KeepSpliced, Duration::ZERO).await;
            tracing::info!("ended before it served");
            return ended.map(|_| Outcome::Clean).map_err(StartError::from);
        }
    };
    tokio::spawn(tend_memory(
        Arc::downgrade(in_force.shared()),
        in_force.accelerator.as_ref().map(Arc::downgrade),
    ));
    let (reload, mut reloads) = mpsc::channel(WAITING_RELOADS);
    let (handover, handovers) = mpsc::channel(1);
    let successor = Arc::new(Semaphore::new(1));
    let admin = Admin {
        instance: in_force.config.instance.clone(),
        shared: Arc::clone(in_force.shared()),
        accelerator: in_force.accelerator.clone(),
        config_status: Arc::clone(in_force.config_status()),
        rules: Arc::clone(in_force.rules()),
        reload,
        handover,
        successor,
        listings: Arc::new(Semaphore::new(listing::AT_ONCE)),
        started,
        started_at: SystemTime::now(),
        stopping,
    };
    if let Some(succession) = succession {
        if signals.is_stop_requested().await {
            // The predecessor reads an end of file, and goes on.
            drop(succession);
            return Ok(shut_down(in_force, &mut signals, true).await);
        }
        let replaced = claim
            .bind()
            .map_err(StartError::from)
            .and_then(|()| Ok(tokio::task::block_in_place(|| succession.serve())?));
        if let Err(error) = replaced {
            // The predecessor serves on; what was accepted here is finished.
            shut_down(in_force, &mut signals, true).await;
            return Err(error);
        }
        notify(&format!("MAINPID={}", std::process::id()));
        in_force.rules().set_owner(Owner::Us).await;
        claim.open()?;
    }
    let _admin = server::serve(&claim, admin).map_err(ClaimError::Serve)?;
    let log = in_force.shared().access_log.clone();
    let _recorder = AbortOnDropHandle::new(tokio::spawn(record_flows(splicer.clone(), log)));
    let _keeper = AbortOnDropHandle::new(tokio::spawn(Arc::clone(in_force.rules()).keep_routes()));
    let _teller = AbortOnDropHandle::new(tokio::spawn(async {
        loop {
            tokio::time::sleep(logging::PERIOD).await;
            logging::tell_suppressed();
        }
    }));
    notify("READY=1");
    let departure = Departure::new(in_force.shared().stopping.clone());
    let mut handing = Handing::new(handovers, departure);
    serve_until_stopped(
        &mut in_force,
        load.as_ref(),
        &mut signals,
        &mut reloads,
        &claim,
        &mut handing,
    )
    .await;
    // A successor may have been told when a signal came.
    let is_replaced = handing.departure.begin();
    if is_replaced {
        // The successor speaks to the service manager from now on.
        claim.hand_over();
        in_force.rules().set_owner(Owner::Other).await;
    } else {
        notify("STOPPING=1");
    }
    let outcome = shut_down(in_force, &mut signals, is_replaced).await;
    logging::tell_suppressed();
    tracing::info!("stopped");
    Ok(outcome)
}

/// Claims the instance, or takes the place of its running daemon.
fn take_place(
    config: &Config,
    inherited: Inherited,
    replace: bool,
) -> Result<(Claim, Inherited, Option<Succession>), StartError> {
    let (places, admin) = (Places::of_this_user(), config.admin.as_deref());
    match claim(&places, &config.instance, admin) {
        Ok(claim) => return Ok((claim, inherited, None)),
        Err(ClaimError::Running { .. }) if replace => {}
        Err(e) => return Err(e.into()),
    }
    let candidates = match admin {
        Some(path) => vec![path.to_owned()],
        None => places.sockets(&config.instance),
    };
    let Some(socket) = candidates.iter().find(|path| path.exists()) else {
        return Err(StartError::Claim(ClaimError::Elsewhere {
            instance: config.instance.clone(),
            looked: candidates,
        }));
    };
    let (succession, inherited, lock) = request(socket)?;
    let claim = inherit(&places, &config.instance, admin, lock)?;
    Ok((claim, inherited, Some(succession)))
}

/// State of the handover to a successor.
#[derive(Debug)]
struct Handing {
    /// Successors that ask for the sockets.
    asked: mpsc::Receiver<Handover>,
    served: (mpsc::Sender<bool>, mpsc::Receiver<bool>),
    departure: Departure,
}

impl Handing {
    fn new(asked: mpsc::Receiver<Handover>, departure: Departure) -> Handing {
        Handing {
            asked,
            served: mpsc::channel(1),
            departure,
        }
    }

    /// Passes the sockets to successors, until one serves. Cancel-safe.
    async fn done(&mut self, in_force: &InForce, claim: &Claim) {
        loop {
            tokio::select! {
                Some(handover) = self.asked.recv() => {
                    tracing::info!("a successor starts, and gets the listening sockets");
                    let offer = in_force.offer().and_then(|mut offer| {
                        offer.add_lock(claim.lock()?);
                        Ok(offer)
                    });
                    match offer {
                        Ok(offer) => {
                            handover.start(offer, self.served.0.clone(), self.departure.clone());
                        }
                        Err(error) => tracing::warn!(%error, "the successor gets no sockets: this process goes on"),
                    }
                }
                Some(served) = self.served.1.recv() => {
                    if served {
                        return;
                    }
                }
            }
        }
    }
}

/// Reloads the configuration on each request, until the daemon must stop.
async fn serve_until_stopped(
    in_force: &mut InForce,
    load: Option<&Load>,
    signals: &mut Signals,
    reloads: &mut mpsc::Receiver<ReloadRequest>,
    claim: &Claim,
    handing: &mut Handing,
) {
    loop {
        let asked = tokio::select! {
            request = signals.next() => match request {
                Request::Stop => return,
                Request::Reload => None,
                Request::Reopen => {
                    in_force.shared().access_log.reopen();
                    continue;
                }
            },
            () = handing.done(in_force, claim) => return,
            // The admin interface owns the sender, and lives as long.
            Some(asked) = reloads.recv() => Some(asked),
        };
        notify_reloading();
        let read = tokio::select! {
            read = in_force.read(load) => read,
            () = signals.stop_requested() => return,
            () = handing.done(in_force, claim) => return,
        };
        let done = in_force.reload(read).await;
        measure_splices(&in_force.config, in_force.shared()).await;
        // Reopen the access log, too: programs that rotate logs cannot always choose the signal.
        in_force.shared().access_log.reopen();
        notify("READY=1");
        if let Some(asked) = asked {
            // The client may have stopped waiting.
            let _ = asked.send(done);
        }
    }
}

/// Takes measures against a lack of memory until the daemon is gone.
async fn tend_memory(shared: Weak<Shared>, accelerator: Option<Weak<Accelerator>>) {
    loop {
        tokio::time::sleep(memory::PERIOD).await;
        let Some(shared) = shared.upgrade() else { return };
        let open = shared.tracker.count();
        let accelerator = accelerator.as_ref().and_then(Weak::upgrade);
        let all = all_open(&shared, accelerator.as_deref());
        let measures = shared.memory.measures(all, open);
        shared.splicer.set_memory_pressure(measures.detach);
        if let Some(accelerator) = accelerator.filter(|_| measures.detach) {
            accelerator.relieve();
        }
        if let Some(most) = measures.shed {
            match shared.tracker.end_newest(most, End::Memory) {
                // All are about to end.
                0 => {}
                ended => shared.memory.note_shed(ended, open),
            }
        }
    }
}

/// Measures from which length on a splice pays, if a listener needs it.
async fn measure_splices(config: &Config, shared: &Shared) {
    if config.listeners.iter().any(ListenerConfig::measures) {
        shared.splice_min.measure(&shared.splicer).await;
    }
}

/// Ends in order. `is_replaced`: a successor has the listening sockets, and adopts what is spliced.
async fn shut_down(mut in_force: InForce, signals: &mut Signals, is_replaced: bool) -> Outcome {
    let shutdown_timeout = in_force.config.shutdown_timeout;
    let (splicer, configured) = (in_force.shared().splicer.clone(), in_force.config.shutdown);
    // A process beside this one adopts what is spliced.
    let spliced_flows = || match is_replaced && !splicer.is_only_process() {
        true => OnShutdown::Keep,
        false => configured,
    };
    tracing::info!(
        is_replaced,
        spliced_flows = spliced_flows().as_str(),
        shutdown_timeout_seconds = shutdown_timeout.as_secs_f64(),
        "shutting down: no new connection is accepted here; a second signal ends at once"
    );
    let shared = Arc::clone(in_force.shared());
    let (accelerator, rules) = (in_force.accelerator.clone(), Arc::clone(in_force.rules()));
    shared.stopping.cancel();
    in_force.closed(is_replaced).await;
    let ended = async {
        let until = Instant::now() + shutdown_timeout;
        let closed = async {
            match &accelerator {
                Some(accelerator) => accelerator.close(shutdown_timeout).await,
                None => 0,
            }
        };
        let left_to_successor = async {
            if is_replaced {
                if let Some(accelerator) = &accelerator {
                    accelerator.early_answers_are_heard().await;
                }
                rules.leave_to_successor().await;
            }
        };
        let (left, ()) = tokio::join!(closed, left_to_successor);
        if left > 0 {
            tracing::warn!(
                connections = left,
                "these could not be released in time, and are reset"
            );
        }
        shared.splicer.begin_shutdown();
        // Wait for connections that the engine does not have, too: those that wait for their server, sessions between two
        // requests, and decrypted ones.
        shared.tracker.wait_empty(until).await;
        let left = until.saturating_duration_since(Instant::now());
        shared.splicer.end_relayed(left).await;
    };
    let outcome = tokio::select! {
        // Begin, even if the second signal is there already.
        biased;
        () = ended => Outcome::Clean,
        () = signals.stop_requested() => {
            shared.splicer.end_relayed(Duration::ZERO).await;
            Outcome::Hurried
        }
    };
    // Reset the rest as long as the kernel half knows the numbers of their sockets. A flow in the engine may outlive it.
    shared.tracker.end_outside(End::Shutdown);
    shared.tracker.wait_empty(Instant::now() + LAST_ENDS).await;
    // Look once more: the successor may have ended meanwhile.
    shared
        .splicer
        .shutdown(spliced_flows().into(), Duration::ZERO)
        .await;
    in_force.rules().end().await;
    tokio::task::block_in_place(|| shared.access_log.flush(LAST_LINES));
    outcome
}

/// Opens the splicer, or one that only relays if splicing is impossible: forwarding must always work. A predecessor that
/// splices forwards better, and keeps its place then.
async fn open_splicer(config: &Config, succession: Option<&Succession>) -> Result<Splicer, StartError> {
    let engine = config.splicer_config();
    let why = match Splicer::open(engine.clone()).await {
        Ok(splicer) => return Ok(splicer),
        Err(why) if config.require_splice => return Err(StartError::Splicer(why)),
        Err(why) if succession.is_some_and(|predecessor| !predecessor.relays()) => {
            return Err(StartError::LosesSplicing(why));
        }
        Err(why) => why,
    };
    let remedy = match why {
        OpenError::Privileges(_) => {
            "splicing needs CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW and CAP_PERFMON (and CAP_SYS_ADMIN where /sys/fs/bpf is not mounted \
             yet), or root; `longsplice doctor` says what is missing"
        }
        OpenError::Unsupported(_) => "this machine cannot splice; `longsplice doctor` says what is missing",
        OpenError::Incompatible(_) => "the place of the pins is another one's; start again once it is free",
        OpenError::System(_) => "what splicing needs was refused; `longsplice doctor` examines this machine",
    };
    tracing::warn!(reason = %why, "every connection is relayed: {remedy}");
    Ok(Splicer::relay_only(engine, why))
}
