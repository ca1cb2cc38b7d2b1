//! The life of a daemon: start, serve, shut down.

use std::{
    io,
    sync::Arc,
    time::{Instant, SystemTime},
};

use longsplice_engine::{OpenError, Splicer};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

use crate::{
    admin::{Admin, ClaimError, Places, claim, server},
    config::Config,
    listener::{BindError, Bound, Resources, Service, Settings},
    notify::notify,
    rulebook::{SetupError, set_up},
    tls::{Terminator, TerminatorError},
    upstream::Upstreams,
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
    /// A listener cannot terminate TLS.
    #[error("listener {0}: {1}")]
    Tls(String, TerminatorError),
    /// What a predecessor left in the kernel does not fit.
    #[error("cannot take over what is in the kernel: {0}")]
    Incompatible(String),
    /// The kernel half could not be loaded although it should.
    #[error("cannot set up splicing: {0} (`longsplice doctor` examines this machine)")]
    Splicer(String),
    /// Rules or interception are not possible.
    #[error(transparent)]
    Rules(#[from] SetupError),
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

/// Runs a daemon until it is told to stop.
pub async fn run(config: Config) -> Result<Outcome, StartError> {
    let started = Instant::now();
    let mut signals = Signals::new().map_err(StartError::Signals)?;
    // A name with a slip of the pen would only be a slower daemon.
    if let Some(name) = config.splicer.xdp.iter().find(|name| !is_there(name)) {
        return Err(StartError::NoInterface(name.clone()));
    }
    let resources = Resources::of_this_process();
    let claim = claim(&Places::of_this_user(), &config.instance, config.admin.as_deref())?;
    let bound = bind_all(&config)?;
    let splicer = open_splicer(&config).await?;

    let (stop, stopped) = watch::channel(false);
    let served = serve_all(&config, bound, &splicer, &resources, &stopped).await;
    let served = match served {
        // Where a rule delivers to, somebody listens by now.
        Ok(served) => match set_up(&config, &splicer).await {
            Ok(rules) => Ok((served, rules)),
            Err(error) => Err(error.into()),
        },
        Err(error) => Err(error),
    };
    let ((listeners, accepting), (rules, routing)) = match served {
        Ok(served) => served,
        Err(error) => {
            // Not by dropping it: a predecessor's flows are in its care by now.
            splicer
                .shutdown(config.shutdown.into(), std::time::Duration::ZERO)
                .await;
            return Err(error);
        }
    };
    let admin = Admin {
        instance: config.instance.clone(),
        splicer: splicer.clone(),
        listeners,
        rules,
        started,
        started_at: SystemTime::now(),
        stopping: stopped,
    };
    let admin = server::serve(&claim, admin).map_err(ClaimError::Serve)?;
    notify("READY=1");

    signals.stop_requested().await;
    notify("STOPPING=1");
    tracing::info!(
        spliced_flows = config.shutdown.as_str(),
        grace_seconds = config.grace.as_secs_f64(),
        "shutting down: new connections are refused; a second signal ends at once"
    );
    let _ = stop.send(true);
    for task in accepting {
        // The listening socket is closed once its task has ended; a task that panicked has closed it too.
        let _ = task.await;
    }
    let outcome = tokio::select! {
        () = splicer.shutdown(config.shutdown.into(), config.grace) => Outcome::Clean,
        () = signals.stop_requested() => Outcome::Hurried,
    };
    admin.abort();
    drop(routing);
    tracing::info!("stopped");
    Ok(outcome)
}

fn is_there(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface).is_ok()
}

fn bind_all(config: &Config) -> Result<Vec<Vec<Bound>>, BindError> {
    let bind = |l: &crate::config::ListenerConfig| {
        let intercepts = l.intercept.is_some();
        l.listen.iter().map(|a| Bound::bind(*a, intercepts)).collect()
    };
    config.listeners.iter().map(bind).collect()
}

type Served = (
    Vec<(Arc<Service>, Vec<std::net::SocketAddr>)>,
    Vec<tokio::task::JoinHandle<()>>,
);

async fn serve_all(
    config: &Config,
    bound: Vec<Vec<Bound>>,
    splicer: &Splicer,
    resources: &Arc<Resources>,
    stopped: &watch::Receiver<bool>,
) -> Result<Served, StartError> {
    let (mut services, mut accepting) = (Vec::new(), Vec::new());
    let upstreams = Arc::new(Upstreams::new(config, splicer));
    for (listener, bound) in config.listeners.iter().zip(bound) {
        let settings = Settings {
            listener: listener.clone(),
            upstreams: Arc::clone(&upstreams),
            terminator: Terminator::of(listener).map_err(|e| StartError::Tls(listener.name.clone(), e))?,
        };
        let service = Service::new(settings, splicer.clone(), Arc::clone(resources));
        services.push((Arc::clone(&service), bound.iter().map(Bound::address).collect()));
        for socket in bound {
            accepting.push(socket.serve(Arc::clone(&service), stopped.clone()).await?);
        }
    }
    Ok((services, accepting))
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

/// The signals a daemon listens to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Returns at SIGTERM or SIGINT.
    async fn stop_requested(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => tracing::warn!(
                    "SIGHUP: reloading is not in this version; restart instead, spliced flows run on meanwhile"
                ),
            }
        }
    }
}
