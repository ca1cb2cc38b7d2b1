//! Puts the first configuration in force, at the start of the daemon.

use std::{sync::Arc, time::SystemTime};

use longsplice_engine::{intercept::Owner, rules::RulesError};

use super::{Files, InForce, ReloadError, addresses, settings, shown};
use crate::{
    accelerator::Accelerator,
    config::{Config, ListenerConfig},
    config_status::ConfigStatus,
    handover::Inherited,
    listener::{Bound, Service, Shared, Socket},
    metrics::{Place, Subject},
    rule_manager::{RuleManager, SetupError},
    upstream::Upstreams,
};

/// Addresses of a configuration, bound.
#[derive(Debug)]
pub(crate) struct AllBound {
    listeners: Vec<Bound>,
    metrics: Option<Place>,
}

/// Binds all addresses of a configuration, or uses sockets that were passed to this process.
pub(crate) fn bind_all(config: &Config, mut inherited: Inherited) -> Result<AllBound, ReloadError> {
    let bind = |(address, listener): (_, &ListenerConfig)| {
        let intercepts = listener.intercept.is_some();
        let name = (listener.listen.len() == 1).then_some(listener.name.as_str());
        let bound = match inherited.take(address, name) {
            Some(socket) => Bound::inherit(socket, address, intercepts),
            None => Bound::bind(address, intercepts),
        };
        bound.map_err(|error| ReloadError::Bind { error, old: None })
    };
    let listeners = addresses(config).map(bind).collect::<Result<_, _>>()?;
    let metrics = config
        .operations
        .metrics
        .map(|address| match inherited.take(address, None) {
            Some(socket) => Place::inherit(address, socket),
            None => Place::bind(address),
        });
    Ok(AllBound {
        listeners,
        metrics: metrics.transpose()?,
    })
}

/// Starts the accelerator of a configuration, if it has one. Where splicing is out of reach, listeners relay without
/// it. Fails if nothing would work without the accelerator, or it is possible and fails.
fn accelerator(config: &Config, shared: &Arc<Shared>) -> Result<Option<Arc<Accelerator>>, RulesError> {
    let Some(accelerate) = config.accelerate.clone() else {
        return Ok(None);
    };
    match Accelerator::start(accelerate, config.instance.as_str(), shared) {
        Err(RulesError::Unavailable(reason)) if !config.listeners.is_empty() && !config.require_splice => {
            tracing::error!(
                reason,
                "[accelerate] is not in force: all connections pass through, and the listeners relay (`longsplice doctor` says \
                 what is missing; with require_splice = true the daemon ends instead)"
            );
            Ok(None)
        }
        started => started.map(Some),
    }
}

impl InForce {
    /// Puts the first configuration in force. `owner` of the routes: a predecessor that runs, or this process. Fails as
    /// a reload does, but for the file and for fixed keys.
    pub(crate) async fn start(
        config: Config,
        bound: AllBound,
        shared: Arc<Shared>,
        owner: Owner,
    ) -> Result<InForce, ReloadError> {
        let files = Files::open(&config).await?;
        shared.access_log.set(files.log);
        let upstreams = Arc::new(Upstreams::new(&config, &shared.splicer));
        let generation = 1;
        let mut listening = Vec::new();
        for bound in bound.listeners {
            listening.push(
                bound
                    .listen()
                    .map_err(|error| ReloadError::Bind { error, old: None })?,
            );
        }
        let settings = settings(&config, generation, &upstreams, &files.terminators);
        let services: Vec<_> = settings
            .into_iter()
            .map(|s| Service::new(s, Arc::clone(&shared)))
            .collect();
        let mut listening = listening.into_iter();
        let mut sockets = Vec::new();
        for service in &services {
            let many = service.settings().listener.listen.len();
            for listening in listening.by_ref().take(many) {
                sockets.push(Socket::serve(listening, Arc::clone(service)));
            }
        }
        // Set the rules last: the listeners that they deliver to accept by now, and handshakes are read.
        let accelerator = accelerator(&config, &shared).map_err(SetupError::from)?;
        let accelerates = accelerator.is_some();
        let rules = RuleManager::set_up(&config, &shared.splicer, owner, accelerates).await?;
        let rules = Arc::new(rules);
        let config_status = Arc::new(ConfigStatus::new(
            shown(&services, &sockets),
            Arc::clone(&upstreams),
        ));
        let subject = Arc::new(Subject {
            config_status: Arc::clone(&config_status),
            shared: Arc::clone(&shared),
            accelerator: accelerator.clone(),
            started_at: SystemTime::now(),
        });
        let endpoint = bound
            .metrics
            .map(|place| place.serve(Arc::clone(&subject)))
            .transpose()?;
        Ok(InForce {
            config,
            accelerator,
            generation,
            shared,
            upstreams,
            services,
            sockets,
            rules,
            config_status,
            subject,
            endpoint,
        })
    }
}
