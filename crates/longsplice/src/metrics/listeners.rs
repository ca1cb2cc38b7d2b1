//! Writes the counters of listeners.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use strum::VariantArray;

use super::out::Out;
use crate::{
    access_log::End,
    config_status::Listeners,
    listener::{CLASSES, Service},
};

pub(super) fn write(out: &mut Out<'_>, listeners: &Listeners) -> fmt::Result {
    let named: Vec<(String, &Service)> = listeners
        .iter()
        .map(|(service, _)| (service.settings().listener.name.clone(), &**service))
        .collect();
    let each = |value: fn(&Service) -> u64| {
        named
            .iter()
            .map(move |(name, service)| ([("listener", name.as_str())], value(service)))
    };
    let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
    out.counter(
        "connections_accepted",
        "Connections accepted",
        each(|s| s.counts().accepted.load(Ordering::Relaxed)),
    )?;
    out.counter(
        "connections_refused",
        "Connections that were reset unserved",
        each(Service::refused),
    )?;
    let open = each(Service::open).map(|(labels, n)| (labels, n as f64));
    out.gauge(
        "connections_open",
        "Connections that the process holds, or waits for",
        open,
    )?;
    let limits = named.iter().filter_map(|(name, service)| {
        let max = service.settings().listener.max_connections?;
        Some(([("listener", name.as_str())], f64::from(max)))
    });
    out.gauge(
        "connections_max",
        "The limit of open connections, where there is one",
        limits,
    )?;
    let from = named
        .iter()
        .filter_map(|(name, service)| Some(([("listener", name.as_str())], service.splice_min()? as f64)));
    out.gauge(
        "splice_min_bytes",
        "From which length on replies are spliced now, where any are",
        from,
    )?;
    let ended = named.iter().flat_map(|(name, service)| {
        let ends = End::VARIANTS.iter().zip(&service.counts().ended);
        ends.map(move |(end, n)| ([("listener", name.as_str()), ("end", end.as_str())], read(n)))
    });
    out.counter(
        "connections_ended",
        "Requests, and connections of which no requests are read, by how they ended",
        ended,
    )?;
    let bytes = named.iter().flat_map(|(name, service)| {
        let counts = service.counts();
        [("client", &counts.to_client), ("server", &counts.to_server)]
            .map(|(to, n)| ([("listener", name.as_str()), ("to", to)], read(n)))
    });
    out.counter(
        "payload_bytes",
        "Payload of what has ended, spliced or not",
        bytes,
    )?;
    out.counter(
        "spliced_payload_bytes",
        "Payload of what has ended that passed while spliced, as the kernel counted",
        each(|s| s.counts().spliced.load(Ordering::Relaxed)),
    )?;
    let durations = named
        .iter()
        .map(|(name, s)| ([("listener", name.as_str())], s.counts().duration.clone()));
    out.histogram(
        "connection_duration_seconds",
        "How long connections lived of which no requests are read",
        durations,
    )?;
    requests(out, &named)
}

fn requests(out: &mut Out<'_>, named: &[(String, &Service)]) -> fmt::Result {
    let routes: Vec<_> = named
        .iter()
        .flat_map(|(name, service)| {
            service
                .counts()
                .routes()
                .into_iter()
                .map(move |(route, n)| (name, route, n))
        })
        .collect();
    let classes = routes.iter().flat_map(|(name, route, counts)| {
        let of_class = CLASSES.iter().zip(&counts.classes);
        of_class.map(move |(class, n)| {
            let labels = [
                ("listener", name.as_str()),
                ("route", route.as_str()),
                ("class", *class),
            ];
            (labels, n.load(Ordering::Relaxed))
        })
    });
    out.counter(
        "requests",
        "Requests by route and by the class of their status; an empty route is none",
        classes,
    )?;
    let labels = |name: &'_ str, route: &'_ str| [("listener", name.to_owned()), ("route", route.to_owned())];
    let durations = routes
        .iter()
        .map(|(name, route, n)| (labels(name, route), n.duration.clone()));
    out.histogram(
        "request_duration_seconds",
        "From the first byte of a request to the end of its reply",
        durations,
    )?;
    let first = routes
        .iter()
        .map(|(name, route, n)| (labels(name, route), n.first_byte.clone()));
    out.histogram(
        "first_byte_seconds",
        "From the first byte of a request to that of its reply",
        first,
    )
}
