//! Puts the first configuration in force, at the start of the daemon.

use std::{sync::Arc, time::SystemTime};

use super::{InForce, ReloadError, addresses, endpoint, settings, shown, terminators};
use crate::{
    accelerator::Accelerator,
    access_log::LogTarget,
    config::Config,
    config_status::ConfigStatus,
    listener::{BindError, Bound, Service, Shared, Socket},
    metrics::Subject,
    rule_manager::{RuleManager, SetupError},
    upstream::Upstreams,
};

/// Binds all addresses of a configuration.
pub(crate) fn bind_all(config: &Config) -> Result<Vec<Bound>, BindError> {
    addresses(config)
        .map(|(address, l)| Bound::bind(address, l.intercept.is_some()))
        .collect()
}

impl InForce {
    /// Puts the first configuration in force.
    ///
    /// # Errors
    /// All errors of a reload but those of the file and of fixed keys.
    pub(crate) async fn start(
        config: Config,
        bound: Vec<Bound>,
        shared: Arc<Shared>,
    ) -> Result<InForce, ReloadError> {
        let terminators = terminators(&config)?;
        if let Some(log) = &config.operations.access_log {
            shared.access_log.set(Some(LogTarget::open(log)?));
        }
        let upstreams = Arc::new(Upstreams::new(&config, &shared.splicer));
        let generation = 1;
        let mut listening = Vec::new();
        for bound in bound {
            listening.push(
                bound
                    .listen()
                    .map_err(|error| ReloadError::Bind { error, old: None })?,
            );
        }
        let settings = settings(&config, generation, &upstreams, &terminators);
        let services: Vec<_> = settings
            .into_iter()
            .map(|s| Service::new(s, Arc::clone(&shared)))
            .collect();
        let mut listening = listening.into_iter();
        let mut sockets = Vec::new();
        for service in &services {
            let many = service.settings().listener.listen.len();
            for listening in listening.by_ref().take(many) {
                listening.prepare(service).await;
                sockets.push(Socket::serve(listening, Arc::clone(service)));
            }
        }
        // Set the rules last: the listeners that they deliver to accept by now, and handshakes are read.
        let accelerate = config.accelerate.clone();
        let accelerator = accelerate
            .map(|accelerate| Accelerator::start(accelerate, &shared))
            .transpose()
            .map_err(SetupError::from)?;
        let rules = Arc::new(RuleManager::set_up(&config, &shared.splicer).await?);
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
        let metrics = config.operations.metrics;
        let endpoint = metrics.map(|address| endpoint(address, &subject)).transpose()?;
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
