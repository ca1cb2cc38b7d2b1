//! Asks the name servers of /etc/resolv.conf for records: one server after another, in the order of the file.

use std::{
    io,
    net::IpAddr,
    time::{Duration, Instant},
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
use parking_lot::Mutex;
use tokio::time;

use crate::resources::Resources;

/// Limits the look-up of one name, with all its queries, servers and attempts.
const ONE_NAME: Duration = Duration::from_secs(10);
/// Lowers a longer `timeout` of /etc/resolv.conf to this: a second server must be asked within `ONE_NAME`.
const MOST_TIMEOUT: Duration = Duration::from_secs(5);
/// Asks a server that did not answer only after the others, for this long.
const SILENT: Duration = Duration::from_secs(30);

/// Holds the name servers, and the rules for short names (resolv.conf(5)).
pub(super) struct NameServers {
    servers: Vec<NameServer>,
    domain: Option<Name>,
    search: Vec<Name>,
    ndots: usize,
    /// Limits the rounds through the servers.
    attempts: usize,
}

struct NameServer {
    address: IpAddr,
    /// Asks this server alone, once.
    resolver: TokioResolver,
    /// Holds the time at which it last failed to answer, if it did not answer since.
    silent: Mutex<Option<Instant>>,
}

impl NameServers {
    /// Creates the resolvers; it reads no file and sends nothing.
    ///
    /// # Errors
    /// The configuration of a server is not usable.
    pub(super) fn new(config: ResolverConfig, mut options: ResolverOpts) -> Result<NameServers, NetError> {
        let attempts = options.attempts.max(1);
        options.attempts = 0;
        options.timeout = options.timeout.min(MOST_TIMEOUT);
        // The caller keeps the TTL, and reads /etc/hosts before any query.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let ndots = options.ndots;
        let (domain, search, servers) = config.into_parts();
        let server = |server: NameServerConfig| {
            let address = server.ip;
            let config = ResolverConfig::from_name_servers(vec![server]);
            let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
            *builder.options_mut() = options.clone();
            Ok(NameServer {
                address,
                resolver: builder.build()?,
                silent: Mutex::default(),
            })
        };
        Ok(NameServers {
            servers: servers.into_iter().map(server).collect::<Result<_, NetError>>()?,
            domain,
            search,
            ndots,
            attempts,
        })
    }

    /// Looks up the records of these kinds side by side, and returns a result for each kind. A short name is completed by
    /// the domains of `search`, until one of the names has a record. It ends at `deadline` at the latest.
    ///
    /// # Errors
    /// `NotFound`: a server says that there is no such record. Any other kind: no server could say.
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

    /// Asks one server after another. The first one that has the record, or says that there is none, ends the search.
    async fn ask(&self, name: &Name, kind: RecordType) -> io::Result<Lookup> {
        let mut wrong = Vec::new();
        for _ in 0..self.attempts {
            wrong.clear();
            let mut servers: Vec<_> = self.servers.iter().collect();
            servers.sort_by_key(|server| server.is_silent());
            for server in servers {
                let _descriptor = Resources::of_this_process().upkeep(1).await;
                let reply = server.resolver.lookup(name.clone(), kind).await;
                server.note(reply.as_ref().err());
                match reply {
                    Ok(found) => return Ok(found),
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
    fn is_silent(&self) -> bool {
        self.silent.lock().is_some_and(|since| since.elapsed() < SILENT)
    }

    fn note(&self, error: Option<&NetError>) {
        let silent = matches!(error, Some(NetError::Timeout));
        *self.silent.lock() = silent.then(Instant::now);
    }

    fn explain(&self, error: &NetError) -> String {
        let address = self.address;
        match error {
            NetError::Dns(DnsError::ResponseCode(code)) => format!("name server {address} answered: {code}"),
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
