//! Serves `/metrics`, `/health` and `/ready` for Prometheus and orchestrators.
//!
//! All values are read from existing counters during a request: a scrape walks no table of flows, and no label has a
//! value that comes from a client.

mod accelerator;
mod endpoint;
mod engine;
mod listeners;
mod out;
mod upstreams;

use std::{fmt, sync::Arc, time::SystemTime};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

pub(crate) use endpoint::{Endpoint, EndpointError, Place};

use crate::{
    accelerator::{Accelerator, all_open},
    config_status::ConfigStatus,
    listener::Shared,
    logging,
};
use out::{Out, alone};

/// Objects that the metrics describe.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) config_status: Arc<ConfigStatus>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) accelerator: Option<Arc<Accelerator>>,
    pub(crate) started_at: SystemTime,
}

impl Subject {
    /// Returns the text for Prometheus.
    fn metrics(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("longsplice");
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }

    /// Returns the reason why the daemon is not ready; `None` if it is.
    fn not_ready(&self) -> Option<&'static str> {
        if self.shared.stopping.is_cancelled() {
            return Some("the daemon is shutting down");
        }
        let listeners = self.config_status.listeners();
        let listens = |bound: &[std::net::SocketAddr]| !bound.is_empty();
        (!listeners.iter().all(|(_, bound)| listens(bound))).then_some("a listener has no socket")
    }

    fn process(&self, out: &mut Out<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        out.info("build", "The version of the daemon", &version)?;
        let epoch = self.started_at.duration_since(SystemTime::UNIX_EPOCH);
        let started = epoch.map_or(0.0, |d| d.as_secs_f64());
        out.gauge(
            "start_time_seconds",
            "When the daemon started, in seconds of the Unix epoch",
            alone(started),
        )?;
        let generation = self.config_status.generation();
        out.gauge(
            "config_generation",
            "The number of the configuration in force",
            alone(generation.number as f64),
        )?;
        out.gauge(
            "config_last_reload_success_timestamp_seconds",
            "Since when the configuration is in force, in seconds of the Unix epoch",
            alone(generation.loaded_at as f64),
        )?;
        out.counter(
            "reloads_failed",
            "Reloads that changed nothing",
            alone(generation.failed_total),
        )?;
        out.counter(
            "log_lines_suppressed",
            "Lines of the log that were not written, as too many of their kind came (log.lines_per_second)",
            alone(logging::limit().suppressed()),
        )?;
        let open = all_open(&self.shared, self.accelerator.as_deref());
        if let Some(memory) = self.shared.memory.status(open) {
            let bytes = [("limit", memory.limit), ("used", memory.used)];
            out.gauge(
                "memory_bytes",
                "The memory limit of which least is left (of the process, its control group or the machine), and what is taken of it",
                bytes.map(|(what, n)| ([("what", what)], n as f64)),
            )?;
            let ended = [("refused", memory.refused_total), ("reset", memory.shed_total)];
            out.counter(
                "memory_connections",
                "Connections that were refused or reset for want of memory",
                ended.map(|(what, n)| ([("what", what)], n)),
            )?;
        }
        let log = self.shared.access_log.counts();
        let lines = [
            ("written", log.written),
            ("dropped", log.dropped),
            ("failed", log.failed),
        ];
        out.counter(
            "access_log_lines",
            "Lines of the access log: written, dropped because the queue was full, or not to be written",
            lines.map(|(result, n)| ([("result", result)], n)),
        )
    }
}

impl Collector for Subject {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out::new(encoder);
        self.process(&mut out)?;
        listeners::write(&mut out, &self.config_status.listeners())?;
        engine::write(&mut out, &self.shared.splicer)?;
        if let Some(accelerator) = &self.accelerator {
            accelerator::write(&mut out, &accelerator.status())?;
        }
        upstreams::write(&mut out, &self.config_status.upstreams().status())
    }
}

#[cfg(test)]
mod tests;
