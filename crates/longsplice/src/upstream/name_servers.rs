//! Asks the name servers of /etc/resolv.conf for records: one server after another, in the order of the file.

use std::{
    io,
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::future;
use hickory_resolver::{
    TokioResolver,
    config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    lookup::Lookup,
    net::{DnsError, NetError, runtime::TokioRuntimeProvider},
    proto::{
        ProtoError,
        rr::{Name, RecordType},
    },
};
use tokio::time;

use crate::resources::Resources;

/// Limits the look-up of one name, with all its queries, servers and attempts.
const ONE_NAME: Duration = Duration::from_secs(10);
/// Lowers a longer `timeout` of /etc/resolv.conf to this: a second server must be asked within `ONE_NAME`.
const MOST_TIMEOUT: Duration = Duration::from_secs(5);
/// Divides the wait for a server that did not answer the last query: the next server is asked earlier.
const HASTE: u32 = 5;

/// Holds the name servers, and the rules for short names (resolv.conf(5)).
pub(super) struct NameServers {
    servers: Vec<NameServer>,
    domain: Option<Name>,
    search: Vec<Name>,
    ndots: usize,
    /// Limits the rounds through the servers.
    attempts: usize,
    /// Limits the wait for one server.
    timeout: Duration,
}

struct NameServer {
    address: IpAddr,
    /// Asks this server alone, once.
    resolver: TokioResolver,
    /// Tells that it did not answer the last query in time.
    silent: AtomicBool,
}

impl NameServers {
    /// Creates the resolvers; it reads no file and sends nothing. Fails if the configuration of a server is not usable.
    pub(super) fn new(config: ResolverConfig, mut options: ResolverOpts) -> Result<NameServers, NetError> {
        let attempts = options.attempts.max(1);
        options.attempts = 0;
        options.timeout = options.timeout.min(MOST_TIMEOUT);
        // The caller keeps the TTL, and reads /etc/hosts before any query.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let (ndots, timeout) = (options.ndots, options.timeout);
        let (domain, search, servers) = config.into_parts();
        let server = |server: NameServerConfig| {
            let address = server.ip;
            let config = ResolverConfig::from_name_servers(vec![server]);
            let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
            *builder.options_mut() = options.clone();
            Ok(NameServer {
                address,
                resolver: builder.build()?,
                silent: AtomicBool::new(false),
            })
        };
        Ok(NameServers {
            servers: servers.into_iter().map(server).collect::<Result<_, NetError>>()?,
            domain,
            search,
            ndots,
            attempts,
            timeout,
        })
    }

    /// Looks up the records of these kinds side by side, and returns a result for each kind. A short name is completed by
    /// the domains of `search`, until one of the names has a record. It ends at `deadline` at the latest. Fails with
    /// `NotFound` if a server says that there is no such record, and with another kind if no server could say.
    pub(super) async fn find<const N: usize>(
        &self,
        name: &str,
        kinds: [RecordType; N],
        deadline: time::Instant,
    ) -> [io::Result<Lookup>; N] {
        let deadline = deadline.min(time::Instant::now() + ONE_NAME);
        let Ok(names) = self.complete(name) else {
            return kinds.map(|_| {
                Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("`{name}` is no name"),
                ))
            });
        };
        let mut results = kinds.map(|kind| Err(late(name, kind)));
        for (index, complete) in names.iter().enumerate() {
            if time::Instant::now() >= deadline {
                break;
            }
            let asked = kinds.map(|kind| async move {
                let reply = time::timeout_at(deadline, self.ask(complete, kind)).await;
                reply.unwrap_or_else(|_| Err(late(name, kind)))
            });
            let replies = future::join_all(asked).await;
            let found = replies.iter().any(Result::is_ok);
            for (result, reply) in results.iter_mut().zip(replies) {
                // Let a failure stand: the name that could not be looked up may be the one that is meant.
                let failed = matches!(result, Err(error) if error.kind() != io::ErrorKind::NotFound);
                if found || index == 0 || !failed {
                    *result = reply;
                }
            }
            if found {
                break;
            }
        }
        results
    }

    /// Returns the names to ask for, in this order.
    fn complete(&self, name: &str) -> Result<Vec<Name>, ProtoError> {
        let name = Name::from_utf8(name)?;
        if name.is_fqdn() {
            return Ok(vec![name]);
        }
        let mut absolute = name.clone();
        absolute.set_fqdn(true);
        let is_first = usize::from(name.num_labels()) > self.ndots || name.is_localhost();
        let domain = self.domain.iter().filter(|domain| !self.search.contains(domain));
        let mut all: Vec<_> = domain
            .chain(&self.search)
            .filter_map(|domain| name.clone().append_domain(domain).ok())
            .collect();
        all.insert(if is_first { 0 } else { all.len() }, absolute);
        Ok(all)
    }

    /// Asks one server after another. The first one that has the record, or says that there is none, ends the search. After
    /// a server that could not say, NXDOMAIN of another one proves nothing, as that may have other zones.
    async fn ask(&self, name: &Name, kind: RecordType) -> io::Result<Lookup> {
        let mut wrong = Vec::new();
        for _ in 0..self.attempts {
            wrong.clear();
            for (index, server) in self.servers.iter().enumerate() {
                let is_last = index + 1 == self.servers.len();
                let wait = match server.silent.load(Ordering::Relaxed) && !is_last {
                    true => self.timeout / HASTE,
                    false => self.timeout,
                };
                let _descriptor = Resources::of_this_process().upkeep(1).await;
                let reply = time::timeout(wait, server.resolver.lookup(name.clone(), kind)).await;
                let reply = reply.unwrap_or(Err(NetError::Timeout));
                let silent = matches!(reply, Err(NetError::Timeout));
                server.silent.store(silent, Ordering::Relaxed);
                match reply {
                    Ok(found) => return Ok(found),
                    Err(error) if error.is_nx_domain() && !wrong.is_empty() => {
                        wrong.push(server.explain(&error))
                    }
                    Err(error) if error.is_no_records_found() => return Err(none(name, kind, &error)),
                    Err(error) => wrong.push(server.explain(&error)),
                }
            }
        }
        let (name, wrong) = (bare(name), wrong.join(", "));
        Err(io::Error::other(format!("`{name}` ({kind}): {wrong}")))
    }
}

impl NameServer {
    fn explain(&self, error: &NetError) -> String {
        let address = self.address;
        match error {
            NetError::Dns(DnsError::ResponseCode(code)) => format!("name server {address} answered: {code}"),
            _ if error.is_nx_domain() => format!("name server {address} answered: the name does not exist"),
            _ => format!("no answer of name server {address}: {error}"),
        }
    }
}

/// Returns a name without the dot at its end, for messages.
fn bare(name: &Name) -> String {
    let text = name.to_utf8();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

fn none(name: &Name, kind: RecordType, error: &NetError) -> io::Error {
    let name = bare(name);
    let what = match (error.is_nx_domain(), kind) {
        (true, _) => format!("the name `{name}` does not exist"),
        (false, RecordType::SRV) => format!("`{name}` has no SRV record"),
        (false, _) => format!("`{name}` has no address"),
    };
    io::Error::new(io::ErrorKind::NotFound, what)
}

fn late(name: &str, kind: RecordType) -> io::Error {
    let why = format!("`{name}` ({kind}): no name server answered in time");
    io::Error::new(io::ErrorKind::TimedOut, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn short_names_are_completed_by_the_search_list() {
        let parse = |name: &&str| Name::from_utf8(name).unwrap();
        let config = |domain: Option<&str>, search: &[&str]| {
            let search = search.iter().map(parse).collect();
            let config = ResolverConfig::from_parts(domain.as_ref().map(parse), search, Vec::new());
            NameServers::new(config, ResolverOpts::default()).unwrap()
        };
        let complete = |servers: &NameServers, name| -> Vec<_> {
            let all = servers.complete(name).unwrap();
            all.iter().map(Name::to_utf8).collect()
        };
        let servers = config(Some("own.test"), &["a.test", "b.test."]);
        assert_eq!(
            complete(&servers, "web"),
            ["web.own.test.", "web.a.test.", "web.b.test.", "web."]
        );
        assert_eq!(
            complete(&servers, "web.c"),
            ["web.c.", "web.c.own.test.", "web.c.a.test.", "web.c.b.test."]
        );
        assert_eq!(complete(&servers, "web."), ["web."]);
        let servers = config(Some("a.test"), &["b.test", "a.test"]);
        assert_eq!(complete(&servers, "web"), ["web.b.test.", "web.a.test.", "web."]);
    }
}
