//! Resolves names: /etc/hosts first, then DNS as /etc/resolv.conf says. Caches nothing: [`super::entry`] asks again
//! when the TTL has passed.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
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
use tokio::time;

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

/// One of the addresses of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) address: SocketAddr,
    /// Rank by the priority of the SRV records; 0 is preferred.
    pub(super) rank: u16,
    /// Weight of its SRV record.
    pub(super) weight: Option<u16>,
}

/// Result of a look-up, with at least one address.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) sites: Vec<Site>,
    /// Time for which it is valid.
    pub(super) ttl: Duration,
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
        let mut known = self.system.lock().unwrap_or_else(PoisonError::into_inner);
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
        let site = Site {
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
        // `entry` keeps the TTL, and `in_hosts` answers names of the file before any query.
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
        let site = |ip| Site {
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
                    sites.extend(addresses.into_iter().map(|ip| Site {
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
