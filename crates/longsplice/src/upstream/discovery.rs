//! Keeps the addresses of the entries of an upstream's list: fixed ones, and names that are looked up again when the TTL
//! has passed, in /etc/hosts first, then by DNS as /etc/resolv.conf says.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use hickory_resolver::{
    Hosts, TokioResolver,
    config::{LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::Query,
        rr::{Name, RData, RecordType},
    },
    system_conf,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{config::ServerPlace, resources::Resources};

/// Limits the time of one look-up, with all its queries and attempts.
const PATIENCE: Duration = Duration::from_secs(20);
/// Reserves this many descriptors for a look-up: one for each address family.
const LOOKUP: u32 = 2;
/// TTL of names in /etc/hosts, whose lines have none: a change of the file is seen at the next look-up.
const HOSTS_TTL: Duration = Duration::from_secs(10);
/// Limits the addresses of an entry: an answer over TCP could hold thousands.
const MOST_ADDRESSES: usize = 256;
const FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];
/// Raises shorter TTLs to this: a query for each connection would cost too much.
const LEAST_TTL: Duration = Duration::from_secs(1);
/// Lowers longer TTLs to this: a mistake in a zone must not last a day.
const MOST_TTL: Duration = Duration::from_secs(300);
/// Longest pause after failed look-ups.
const MOST_PAUSE: Duration = Duration::from_secs(30);
/// Returns the error of a failed look-up again for this long, without a new one.
const FRESH: Duration = Duration::from_secs(1);

/// One of the addresses of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResolvedAddr {
    pub(super) address: SocketAddr,
    /// Rank by the priority of the SRV records; 0 is preferred.
    pub(super) rank: u16,
    /// Weight of its SRV record.
    pub(super) weight: Option<u16>,
}

/// Result of a look-up, with at least one address.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) sites: Vec<ResolvedAddr>,
    /// Time for which it is valid.
    pub(super) ttl: Duration,
}

/// One entry of the list. It keeps the addresses that it found last, even if later look-ups fail.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) place: ServerPlace,
    known: Mutex<Known>,
    /// Wakes the look-up task at once.
    wanted: Notify,
    /// Counts look-ups.
    done: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Known {
    sites: Vec<ResolvedAddr>,
    failure: Option<(time::Instant, io::ErrorKind, String)>,
}

/// Looks names up.
#[derive(Debug, Default)]
pub(super) struct Names {
    system: Mutex<Option<(Stamp, Arc<System>)>>,
    /// Replaces the system's configuration in a test.
    fixed: Option<Arc<System>>,
}

/// Modification times of the two files.
type Stamp = [Option<SystemTime>; 2];

/// Contents of the two files.
struct System {
    hosts: Hosts,
    resolver: TokioResolver,
}

impl std::fmt::Debug for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("System").finish_non_exhaustive()
    }
}

impl Entry {
    pub(super) fn new(place: ServerPlace) -> Entry {
        let literal = match &place {
            ServerPlace::Target(target) => target.literal(),
            ServerPlace::Service(_) => None,
        };
        let sites = literal.map(|address| Found::literal(address).sites);
        Entry {
            place,
            known: Mutex::new(Known {
                sites: sites.unwrap_or_default(),
                failure: None,
            }),
            wanted: Notify::new(),
            done: watch::Sender::new(0),
        }
    }

    /// Returns whether it has to be looked up.
    pub(super) fn is_name(&self) -> bool {
        !matches!(&self.place, ServerPlace::Target(target) if target.literal().is_some())
    }

    /// Returns the addresses that are known.
    pub(super) fn sites(&self) -> Vec<ResolvedAddr> {
        self.known.lock().sites.clone()
    }

    /// Returns the error of the last look-up, if it failed.
    pub(super) fn failure(&self) -> Option<String> {
        self.known.lock().failure.as_ref().map(|(_, _, why)| why.clone())
    }

    /// Waits until it has an address, or until a later look-up finds none.
    ///
    /// # Errors
    /// The error of the look-up; `TimedOut`.
    pub(super) async fn located(&self, patience: Duration) -> io::Result<()> {
        let mut done = self.done.subscribe();
        if let Some(known) = self.fresh() {
            return known;
        }
        self.wanted.notify_one();
        // The sender belongs to `self`, so it cannot be closed.
        let _ = time::timeout(patience, done.changed()).await?;
        self.fresh().unwrap_or(Err(io::ErrorKind::TimedOut.into()))
    }

    fn fresh(&self) -> Option<io::Result<()>> {
        let known = self.known.lock();
        match &known.failure {
            _ if !known.sites.is_empty() => Some(Ok(())),
            Some((at, kind, why)) if at.elapsed() < FRESH => Some(Err(io::Error::new(*kind, why.clone()))),
            _ => None,
        }
    }

    /// Stores the result of a look-up, and returns whether the addresses changed.
    fn take_in(&self, result: &io::Result<Found>) -> bool {
        let mut known = self.known.lock();
        match result {
            Ok(found) => {
                known.failure = None;
                let changed = known.sites != found.sites;
                known.sites.clone_from(&found.sites);
                changed
            }
            Err(error) => {
                known.failure = Some((time::Instant::now(), error.kind(), error.to_string()));
                false
            }
        }
    }
}

/// Looks a name up when its TTL has passed or a task asks for it, until the returned task is dropped. Calls `changed` when
/// it has other addresses; `upstream` is for the log.
pub(super) fn watch(
    entry: &Arc<Entry>,
    names: &Arc<Names>,
    upstream: &str,
    changed: impl Fn() + Send + 'static,
) -> AbortOnDropHandle<()> {
    let (entry, names, upstream) = (Arc::clone(entry), Arc::clone(names), upstream.to_owned());
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut failures: u32 = 0;
        loop {
            let mut result = names.look_up(&entry.place).await;
            if let Ok(found) = &mut result {
                // Resolvers rotate the addresses of an answer, and that is no change.
                found.sites.sort_by_key(|site| (site.rank, site.address));
                found.sites.dedup_by_key(|site| (site.rank, site.address));
            }
            let pause = match &result {
                Ok(found) => {
                    failures = 0;
                    found.ttl.clamp(LEAST_TTL, MOST_TTL)
                }
                Err(error) => {
                    if failures == 0 {
                        let kept = !entry.sites().is_empty();
                        tracing::warn!(upstream, server = %entry.place, %error, kept, "the name could not be looked up");
                    }
                    failures = failures.saturating_add(1);
                    LEAST_TTL.saturating_mul(1 << failures.min(5)).min(MOST_PAUSE)
                }
            };
            if entry.take_in(&result) {
                changed();
            }
            // Signal only after `changed`: the waiting tasks must find the servers.
            entry.done.send_modify(|n| *n = n.wrapping_add(1));
            tokio::select! {
                () = time::sleep(pause) => {}
                () = entry.wanted.notified() => {}
            }
        }
    }))
}

impl Names {
    /// Returns a resolver that asks this name server over UDP, and reads no file.
    #[cfg(test)]
    pub(super) fn of_server(address: SocketAddr) -> Names {
        let mut server = NameServerConfig::udp(address.ip());
        for connection in &mut server.connections {
            connection.port = address.port();
        }
        let config = ResolverConfig::from_name_servers(vec![server]);
        let mut options = ResolverOpts::default();
        options.timeout = Duration::from_millis(500);
        let system = System::new(config, options, Hosts::default()).unwrap();
        Names {
            fixed: Some(Arc::new(system)),
            ..Names::default()
        }
    }

    /// Looks up the addresses of a server.
    ///
    /// # Errors
    /// The name has no address, no name server answered, or the look-up took longer than `PATIENCE`.
    pub(super) async fn look_up(&self, place: &ServerPlace) -> io::Result<Found> {
        let look_up = async {
            let system = self.system()?;
            match place {
                ServerPlace::Target(target) => match (target.literal(), target.name()) {
                    (Some(address), _) => Ok(Found::literal(address)),
                    (None, Some((name, port))) => system.target(name, port).await,
                    (None, None) => Err(nothing("this is no name")),
                },
                ServerPlace::Service(service) => system.service(service.as_str()).await,
            }
        };
        time::timeout(PATIENCE, look_up).await?
    }

    /// Returns the resolver, built anew if a file has changed.
    fn system(&self) -> io::Result<Arc<System>> {
        if let Some(fixed) = &self.fixed {
            return Ok(Arc::clone(fixed));
        }
        let stamp = FILES.map(|file| fs::metadata(file).and_then(|m| m.modified()).ok());
        let mut known = self.system.lock();
        if let Some((_, system)) = known.as_ref().filter(|(of, _)| *of == stamp) {
            return Ok(Arc::clone(system));
        }
        let system = Arc::new(System::read()?);
        *known = Some((stamp, Arc::clone(&system)));
        Ok(system)
    }
}

impl Found {
    pub(super) fn literal(address: SocketAddr) -> Found {
        let site = ResolvedAddr {
            address,
            rank: 0,
            weight: None,
        };
        Found {
            sites: vec![site],
            ttl: Duration::MAX,
        }
    }
}

impl System {
    fn read() -> io::Result<System> {
        let (config, options) = system_conf::read_system_conf().unwrap_or_else(|error| {
            // Ask the local host, as the C library does without the file.
            tracing::debug!(%error, "no name server in /etc/resolv.conf: that of this host is asked");
            let local = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            (
                ResolverConfig::from_name_servers(vec![local]),
                ResolverOpts::default(),
            )
        });
        let hosts = Hosts::from_system().unwrap_or_default();
        System::new(config, options, hosts).map_err(|error| io::Error::other(error.to_string()))
    }

    fn new(config: ResolverConfig, mut options: ResolverOpts, hosts: Hosts) -> Result<System, NetError> {
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        // `watch` keeps the TTL, and `in_hosts` answers names of the file before any query.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Ok(System {
            hosts,
            resolver: builder.build()?,
        })
    }

    async fn target(&self, name: &str, port: u16) -> io::Result<Found> {
        let (addresses, ttl) = self.addresses(name).await?;
        let site = |ip| ResolvedAddr {
            address: SocketAddr::new(ip, port),
            rank: 0,
            weight: None,
        };
        Ok(Found {
            sites: addresses.into_iter().map(site).collect(),
            ttl,
        })
    }

    async fn addresses(&self, name: &str) -> io::Result<(Vec<IpAddr>, Duration)> {
        let listed = self.in_hosts(name);
        if !listed.is_empty() {
            return Ok((listed, HOSTS_TTL));
        }
        let _descriptors = Resources::of_this_process().upkeep(LOOKUP).await;
        let found = self.resolver.lookup_ip(name).await;
        let found = found.map_err(|error| explain(name, &error))?;
        let mut addresses: Vec<_> = found.iter().map(|ip| ip.to_canonical()).collect();
        addresses.truncate(MOST_ADDRESSES);
        match addresses.is_empty() {
            true => Err(nothing(&format!("`{name}` has no address"))),
            false => Ok((addresses, left(found.valid_until()))),
        }
    }

    fn in_hosts(&self, name: &str) -> Vec<IpAddr> {
        let Ok(name) = Name::from_str(name) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for kind in [RecordType::A, RecordType::AAAA] {
            let listed = self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
            let answers = listed.iter().flat_map(|lookup| lookup.answers());
            found.extend(answers.filter_map(|record| record.data.ip_addr()));
        }
        found
    }

    /// Looks up SRV records, and then their targets in the order of the priorities (RFC 2782).
    async fn service(&self, service: &str) -> io::Result<Found> {
        let descriptors = Resources::of_this_process().upkeep(LOOKUP).await;
        let found = self.resolver.srv_lookup(service).await;
        // Release them first: the look-ups of the targets need descriptors, too.
        drop(descriptors);
        let found = found.map_err(|error| explain(service, &error))?;
        let mut records: Vec<_> = found
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                // A root target says that the service is not available (RFC 2782).
                RData::SRV(srv) if !srv.target.is_root() && srv.port != 0 => Some(srv),
                _ => None,
            })
            .collect();
        records.sort_by_key(|srv| srv.priority);
        let mut priorities: Vec<_> = records.iter().map(|srv| srv.priority).collect();
        priorities.dedup();
        let mut ttl = left(found.valid_until());
        let (mut sites, mut wrong) = (Vec::new(), None);
        for srv in records.into_iter().take(MOST_ADDRESSES) {
            let rank = priorities.binary_search(&srv.priority).unwrap_or(0);
            match self.addresses(&srv.target.to_utf8()).await {
                Ok((addresses, of_target)) => {
                    ttl = ttl.min(of_target);
                    sites.extend(addresses.into_iter().map(|ip| ResolvedAddr {
                        address: SocketAddr::new(ip, srv.port),
                        rank: u16::try_from(rank).unwrap_or(u16::MAX),
                        weight: Some(srv.weight),
                    }));
                }
                // Go on: the other targets serve meanwhile.
                Err(error) => wrong = Some(error),
            }
        }
        sites.truncate(MOST_ADDRESSES);
        match (sites.is_empty(), wrong) {
            (false, _) => Ok(Found { sites, ttl }),
            (true, Some(error)) => Err(error),
            (true, None) => Err(nothing(&format!("`{service}` has no server"))),
        }
    }
}

fn left(valid_until: Instant) -> Duration {
    valid_until.saturating_duration_since(Instant::now())
}

fn nothing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what)
}

fn explain(name: &str, error: &NetError) -> io::Error {
    match error {
        _ if error.is_nx_domain() => nothing(&format!("the name `{name}` does not exist")),
        _ if error.is_no_records_found() => nothing(&format!("`{name}` has no address")),
        _ => io::Error::other(format!("no name server answered: {error}")),
    }
}
