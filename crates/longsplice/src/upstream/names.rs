//! Looks names up: in /etc/hosts first, then by DNS as /etc/resolv.conf says.

use std::{
    collections::HashSet,
    fs, io, mem,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use futures_util::{StreamExt, stream};
use hickory_resolver::{
    Hosts,
    config::{NameServerConfig, ResolverConfig, ResolverOpts},
    net::NetError,
    proto::{
        op::Query,
        rr::{Name, RData, RecordType},
    },
    system_conf,
};
use parking_lot::Mutex;
use tokio::time;

use super::name_servers::NameServers;
use crate::config::ServerPlace;

/// Limits the time of one look-up, with all its names.
const PATIENCE: Duration = Duration::from_secs(20);
/// Limits the targets of SRV records that are looked up at the same time.
const AT_ONCE: usize = 16;
/// Sets the validity of names in /etc/hosts, whose lines have no TTL: a change of the file is seen at the next look-up.
const HOSTS_TTL: Duration = Duration::from_secs(10);
/// Limits the addresses of an entry: an answer over TCP could hold thousands.
pub(super) const MOST_ADDRESSES: usize = 256;
const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Describes one of the addresses of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResolvedAddr {
    pub(super) address: SocketAddr,
    /// Rank by the priority of the SRV records; 0 is preferred.
    pub(super) rank: u16,
    /// Weight of its SRV record.
    pub(super) weight: Option<u16>,
    /// Holds the name that has this address: the target of its SRV record, or that of the entry. It is empty for a literal.
    host: Arc<str>,
}

/// Holds the result of a look-up, with at least one address.
#[derive(Debug)]
pub(super) struct Found {
    /// Lists the addresses in a fixed order, whatever the order of the answers is.
    pub(super) sites: Vec<ResolvedAddr>,
    /// Limits the time for which it is valid.
    pub(super) ttl: Duration,
    /// Holds the error of a part that could not be looked up, and has the addresses that were known before.
    pub(super) wrong: Option<io::Error>,
    /// Counts the addresses and SRV records that were too many.
    pub(super) left_out: usize,
}

/// Looks names up.
#[derive(Debug, Default)]
pub(super) struct Names {
    system: Mutex<Option<(Stamp, Arc<System>)>>,
    /// Replaces the system's configuration in a test.
    fixed: Option<Arc<System>>,
}

/// Holds the modification times of the two files.
type Stamp = [Option<SystemTime>; 2];

/// Holds the contents of the two files.
struct System {
    hosts: Hosts,
    servers: NameServers,
}

impl std::fmt::Debug for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("System").finish_non_exhaustive()
    }
}

impl Names {
    /// Returns a resolver that asks these name servers in this order, and has these contents of /etc/hosts.
    #[cfg(test)]
    pub(super) fn fixed(servers: &[SocketAddr], hosts: &[u8]) -> Names {
        let server = |address: &SocketAddr| {
            let mut server = NameServerConfig::udp_and_tcp(address.ip());
            for connection in &mut server.connections {
                connection.port = address.port();
            }
            server
        };
        let config = ResolverConfig::from_name_servers(servers.iter().map(server).collect());
        let mut options = ResolverOpts::default();
        options.timeout = Duration::from_millis(500);
        let system = System {
            hosts: parse_hosts(hosts).unwrap(),
            servers: NameServers::new(config, options).unwrap(),
        };
        Names {
            fixed: Some(Arc::new(system)),
            ..Names::default()
        }
    }

    /// Looks up the addresses of a server. `known` has those that were found last: a part of the name that cannot be
    /// looked up keeps them. Fails with `NotFound` if the name has no address, and with another kind if no name server
    /// could say within `PATIENCE`.
    pub(super) async fn look_up(&self, place: &ServerPlace, known: &[ResolvedAddr]) -> io::Result<Found> {
        let deadline = time::Instant::now() + PATIENCE;
        let system = self.system()?;
        match place {
            ServerPlace::Target(target) => match (target.literal(), target.name()) {
                (Some(address), _) => Ok(Found::literal(address)),
                (None, Some((name, port))) => {
                    let record = Record::of_name(name, port);
                    system.host(&record, known, deadline).await
                }
                (None, None) => Err(nothing("this is no name")),
            },
            ServerPlace::Service(service) => system.service(service.as_str(), known, deadline).await,
        }
    }

    /// Returns the resolver, built anew if a file has changed.
    fn system(&self) -> io::Result<Arc<System>> {
        if let Some(fixed) = &self.fixed {
            return Ok(Arc::clone(fixed));
        }
        let stamp = [HOSTS, RESOLV_CONF].map(|file| fs::metadata(file).and_then(|m| m.modified()).ok());
        let mut known = self.system.lock();
        if let Some((_, system)) = known.as_ref().filter(|(of, _)| *of == stamp) {
            return Ok(Arc::clone(system));
        }
        let system = System::read().map_err(|error| io::Error::other(format!("{RESOLV_CONF}: {error}")))?;
        let system = Arc::new(system);
        *known = Some((stamp, Arc::clone(&system)));
        Ok(system)
    }
}

/// Describes an SRV record, or its equivalent for a name with a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    priority: u16,
    host: Arc<str>,
    port: u16,
    rank: u16,
    weight: Option<u16>,
}

impl Record {
    fn of_name(name: &str, port: u16) -> Record {
        Record {
            priority: 0,
            host: name.into(),
            port,
            rank: 0,
            weight: None,
        }
    }

    fn site(&self, ip: IpAddr) -> ResolvedAddr {
        ResolvedAddr {
            address: SocketAddr::new(ip, self.port),
            rank: self.rank,
            weight: self.weight,
            host: Arc::clone(&self.host),
        }
    }
}

impl Found {
    pub(super) fn literal(address: SocketAddr) -> Found {
        Found {
            sites: vec![Record::of_name("", address.port()).site(address.ip())],
            ..Found::empty()
        }
    }

    fn empty() -> Found {
        Found {
            sites: Vec::new(),
            ttl: Duration::MAX,
            wrong: None,
            left_out: 0,
        }
    }

    fn add(&mut self, part: Found) {
        self.sites.extend(part.sites);
        self.ttl = self.ttl.min(part.ttl);
        self.wrong = self.wrong.take().or(part.wrong);
        self.left_out += part.left_out;
    }

    /// Sorts the addresses, and keeps at most `MOST_ADDRESSES`. Better ranks go first, then known addresses: an answer in
    /// changing order must not exchange the servers. Each family gets half of the places if it needs them.
    fn limit(&mut self, known: &[ResolvedAddr]) {
        let order = |site: &ResolvedAddr| (site.rank, site.address);
        self.sites.sort_by_key(order);
        self.sites.dedup_by_key(|site| order(site));
        let too_many = self.sites.len().saturating_sub(MOST_ADDRESSES);
        if too_many == 0 {
            return;
        }
        let known: HashSet<_> = known.iter().map(|site| site.address).collect();
        let all = mem::take(&mut self.sites);
        let (v4, v6): (Vec<_>, Vec<_>) = all.into_iter().partition(|site| site.address.is_ipv4());
        let most_v6 = v6.len().min(MOST_ADDRESSES - v4.len().min(MOST_ADDRESSES / 2));
        for (mut part, most) in [(v4, MOST_ADDRESSES - most_v6), (v6, most_v6)] {
            part.sort_by_key(|site| (site.rank, !known.contains(&site.address)));
            part.truncate(most);
            self.sites.append(&mut part);
        }
        self.sites.sort_by_key(order);
        self.left_out += too_many;
    }

    /// Returns it if it has an address. Otherwise fails with the error of a part that could not be looked up, or with
    /// `none`.
    fn unless_empty(self, none: io::Error) -> io::Result<Found> {
        match self.sites.is_empty() {
            true => Err(self.wrong.unwrap_or(none)),
            false => Ok(self),
        }
    }
}

impl System {
    fn read() -> Result<System, NetError> {
        let (config, options) = system_conf::read_system_conf().unwrap_or_else(|error| {
            // Ask the local host, as the C library does without the file.
            tracing::debug!(%error, "no name server in /etc/resolv.conf: that of this host is asked");
            let local = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            (
                ResolverConfig::from_name_servers(vec![local]),
                ResolverOpts::default(),
            )
        });
        let hosts = fs::read(HOSTS).and_then(|bytes| parse_hosts(&bytes));
        Ok(System {
            hosts: hosts.unwrap_or_else(|error| {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, "{HOSTS} cannot be read: names are looked up by DNS alone");
                }
                Hosts::default()
            }),
            servers: NameServers::new(config, options)?,
        })
    }

    /// Looks up the addresses of a record's host. Fails with `NotFound` if the host has no address, and with another
    /// kind if no name server could say.
    async fn host(
        &self,
        record: &Record,
        known: &[ResolvedAddr],
        deadline: time::Instant,
    ) -> io::Result<Found> {
        let mut found = Found::empty();
        let listed = self.in_hosts(&record.host);
        if !listed.is_empty() {
            found.ttl = HOSTS_TTL;
            found.sites.extend(listed.into_iter().map(|ip| record.site(ip)));
            found.limit(known);
            return Ok(found);
        }
        let mut none = nothing(&format!("`{}` has no address", record.host));
        let kinds = [RecordType::A, RecordType::AAAA];
        let replies = self.servers.find(&record.host, kinds, deadline).await;
        for (kind, reply) in kinds.into_iter().zip(replies) {
            match reply {
                Ok(lookup) => {
                    let addresses = lookup.answers().iter().filter_map(|record| record.data.ip_addr());
                    let sites = addresses.map(|ip| record.site(ip.to_canonical()));
                    found.sites.extend(sites);
                    found.ttl = found.ttl.min(left(lookup.valid_until()));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => none = error,
                Err(error) => {
                    let v4 = kind == RecordType::A;
                    let last = known.iter().filter(|site| site.host == record.host);
                    let of_family = last.map(|site| site.address.ip()).filter(|ip| ip.is_ipv4() == v4);
                    found.sites.extend(of_family.map(|ip| record.site(ip)));
                    found.wrong = found.wrong.or(Some(error));
                }
            }
        }
        found.limit(known);
        found.unless_empty(none)
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

    /// Looks up SRV records, and then their targets side by side (RFC 2782). Fails with `NotFound` if the service has
    /// no server, and with another kind if no name server could say.
    async fn service(
        &self,
        service: &str,
        known: &[ResolvedAddr],
        deadline: time::Instant,
    ) -> io::Result<Found> {
        let [records] = self.servers.find(service, [RecordType::SRV], deadline).await;
        let lookup = records?;
        let mut records: Vec<_> = lookup
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                // A root target says that the service is not available (RFC 2782).
                RData::SRV(srv) if !srv.target.is_root() && srv.port != 0 => Some(Record {
                    priority: srv.priority,
                    weight: Some(srv.weight),
                    ..Record::of_name(&srv.target.to_utf8(), srv.port)
                }),
                _ => None,
            })
            .collect();
        records.sort();
        let mut found = Found {
            ttl: left(lookup.valid_until()),
            left_out: records.len().saturating_sub(MOST_ADDRESSES),
            ..Found::empty()
        };
        records.truncate(MOST_ADDRESSES);
        let mut priorities: Vec<_> = records.iter().map(|record| record.priority).collect();
        priorities.dedup();
        for record in &mut records {
            let rank = priorities.binary_search(&record.priority).unwrap_or(0);
            record.rank = u16::try_from(rank).unwrap_or(u16::MAX);
        }
        let mut none = nothing(&format!("`{service}` has no server"));
        let lookups: Vec<_> = records
            .iter()
            .map(|record| self.host(record, known, deadline))
            .collect();
        let mut parts = stream::iter(lookups).buffer_unordered(AT_ONCE);
        // Go on after an error: the other targets serve meanwhile.
        while let Some(part) = parts.next().await {
            match part {
                Ok(part) => found.add(part),
                Err(error) if error.kind() == io::ErrorKind::NotFound => none = error,
                Err(error) => found.wrong = found.wrong.or(Some(error)),
            }
        }
        found.limit(known);
        found.unless_empty(none)
    }
}

/// Reads the lines of /etc/hosts. Bytes that are no UTF-8 spoil only the words that they are in.
fn parse_hosts(bytes: &[u8]) -> io::Result<Hosts> {
    let mut hosts = Hosts::default();
    hosts.read_hosts_conf(String::from_utf8_lossy(bytes).as_bytes())?;
    Ok(hosts)
}

fn left(valid_until: Instant) -> Duration {
    valid_until.saturating_duration_since(Instant::now())
}

fn nothing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what)
}
