//! The life of a daemon: start, serve, shut down.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use longsplice_engine::{OpenError, Splicer, policy::SplicePolicy};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot, watch},
};

use crate::{
    access_log::AccessLog,
    admin::{Admin, ClaimError, Places, claim, server},
    config::{Config, ListenerConfig, Protocol},
    listener::{BindError, Shared},
    notify::{notify, notify_reloading},
    reload::{InForce, Load, ReloadError, Reloaded, bind_all},
};

/// Why a daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another daemon of the instance runs, or there is no place for its socket.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// An address is taken.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// What a predecessor left in the kernel does not fit.
    #[error("cannot take over what is in the kernel: {0}")]
    Incompatible(String),
    /// The kernel half could not be loaded although it should.
    #[error("cannot set up splicing: {0} (`longsplice doctor` examines this machine)")]
    Splicer(String),
    /// What the configuration asks for cannot be had.
    #[error(transparent)]
    Config(#[from] ReloadError),
    /// XDP is asked for where nothing is.
    #[error("there is no interface `{0}` for xdp: `ip -br link` lists those that are there")]
    NoInterface(String),
    /// The process cannot be told to stop.
    #[error("cannot watch for signals: {0}")]
    Signals(io::Error),
}

/// How a daemon ended that had started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// As it was asked to.
    Clean,
    /// At once, at a second signal.
    Hurried,
}

/// Asks for a reload, and where its outcome goes.
pub type ReloadRequest = oneshot::Sender<Result<Reloaded, ReloadError>>;

/// So many may wait for a reload that is under way.
const WAITING_RELOADS: usize = 8;

/// How long the last lines of the access log may take to be written.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Runs a daemon until it is told to stop; `load` reads its configuration again.
pub async fn run(config: Config, load: Option<Load>) -> Result<Outcome, StartError> {
    let started = Instant::now();
    let mut signals = Signals::new().map_err(StartError::Signals)?;
    // A name with a slip of the pen would only be a slower daemon.
    if let Some(name) = config.splicer.xdp.iter().find(|name| !is_there(name)) {
        return Err(StartError::NoInterface(name.clone()));
    }
    let claim = claim(&Places::of_this_user(), &config.instance, config.admin.as_deref())?;
    let bound = bind_all(&config)?;
    let splicer = open_splicer(&config).await?;

    let (stop, stopping) = watch::channel(false);
    let shared = Shared::new(splicer.clone(), AccessLog::default(), stopping.clone());
    measure_splices(&config, &shared).await;
    let shutdown = config.shutdown;
    let mut in_force = match InForce::start(config, bound, shared).await {
        Ok(in_force) => in_force,
        Err(error) => {
            // Not by dropping it: a predecessor's flows are in its care by now.
            splicer.shutdown(shutdown.into(), Duration::ZERO).await;
            return Err(error.into());
        }
    };
    let (reload, mut reloads) = mpsc::channel(WAITING_RELOADS);
    let admin = Admin {
        instance: in_force.config.instance.clone(),
        shared: Arc::clone(in_force.shared()),
        board: Arc::clone(in_force.board()),
        rules: Arc::clone(in_force.rules()),
        reload,
        started,
        started_at: SystemTime::now(),
        stopping,
    };
    let admin = server::serve(&claim, admin).map_err(ClaimError::Serve)?;
    notify("READY=1");
    serve_until_stopped(&mut in_force, load.as_ref(), &mut signals, &mut reloads).await;
    notify("STOPPING=1");
    let outcome = shut_down(in_force, &stop, &mut signals).await;
    admin.abort();
    tracing::info!("stopped");
    Ok(outcome)
}

/// Loads the configuration again as often as somebody asks, until the daemon is to stop.
async fn serve_until_stopped(
    in_force: &mut InForce,
    load: Option<&Load>,
    signals: &mut Signals,
    reloads: &mut mpsc::Receiver<ReloadRequest>,
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
            // The admin interface has the other end, and lives as long.
            Some(asked) = reloads.recv() => Some(asked),
        };
        notify_reloading();
        let done = in_force.reload(load).await;
        measure_splices(&in_force.config, in_force.shared()).await;
        // Whoever rotates logs sends a signal, and which one it is they cannot always choose.
        in_force.shared().access_log.reopen();
        notify("READY=1");
        if let Some(asked) = asked {
            // Nobody may wait any more.
            let _ = asked.send(done);
        }
    }
}

/// Measures from which length on replies are spliced, if a listener wants to know.
async fn measure_splices(config: &Config, shared: &Shared) {
    let wants = |l: &ListenerConfig| {
        l.protocol == Protocol::Http && l.splice != SplicePolicy::Never && l.splice_from.is_none()
    };
    if config.listeners.iter().any(wants) {
        shared.splice_from.measure(&shared.splicer).await;
    }
}

async fn shut_down(mut in_force: InForce, stop: &watch::Sender<bool>, signals: &mut Signals) -> Outcome {
    let (shutdown, grace) = (in_force.config.shutdown, in_force.config.grace);
    tracing::info!(
        spliced_flows = shutdown.as_str(),
        grace_seconds = grace.as_secs_f64(),
        "shutting down: new connections are refused; a second signal ends at once"
    );
    let _ = stop.send(true);
    in_force.closed().await;
    let shared = Arc::clone(in_force.shared());
    let ended = async {
        let until = Instant::now() + grace;
        shared.splicer.shutdown(shutdown.into(), grace).await;
        // What the engine does not have: sessions between two requests, and what is decrypted here.
        shared.tracker.wait_empty(until).await;
    };
    let outcome = tokio::select! {
        () = ended => Outcome::Clean,
        () = signals.stop_requested() => Outcome::Hurried,
    };
    in_force.rules().end().await;
    tokio::task::block_in_place(|| shared.access_log.flush(LAST_LINES));
    outcome
}

fn is_there(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface).is_ok()
}

/// The splicer, or one that only relays where splicing is out of reach: forwarding must always work.
async fn open_splicer(config: &Config) -> Result<Splicer, StartError> {
    let engine = config.splicer_config();
    let why = match Splicer::open(engine.clone()).await {
        Ok(splicer) => return Ok(splicer),
        Err(OpenError::Incompatible(what)) => return Err(StartError::Incompatible(what)),
        Err(OpenError::System(what)) => return Err(StartError::Splicer(what)),
        Err(why @ OpenError::Privileges(_)) => {
            tracing::warn!(
                reason = %why,
                "every connection is relayed: splicing needs CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW and CAP_PERFMON (and CAP_SYS_ADMIN \
                 where /sys/fs/bpf is not mounted yet), or root; `longsplice doctor` says what is missing"
            );
            why
        }
        Err(why @ OpenError::Unsupported(_)) => {
            tracing::warn!(
                reason = %why,
                "every connection is relayed: this machine cannot splice; `longsplice doctor` says what is missing"
            );
            why
        }
    };
    Ok(Splicer::relay_only(engine, why))
}

/// What a signal asks for.
enum Request {
    Stop,
    Reload,
    Reopen,
}

/// The signals a daemon listens to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user1: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
        })
    }

    /// Cancel-safe.
    async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop,
            _ = self.interrupt.recv() => Request::Stop,
            _ = self.hangup.recv() => Request::Reload,
            _ = self.user1.recv() => Request::Reopen,
        }
    }

    /// Returns at SIGTERM or SIGINT.
    async fn stop_requested(&mut self) {
        while !matches!(self.next().await, Request::Stop) {}
    }
}
