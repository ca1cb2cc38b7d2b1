//! The topology on the command line.

use std::str::FromStr;

use longsplice_lab::{Family, Leg, LinkError, MultiServerOptions};

#[derive(Debug, clap::Args)]
pub(crate) struct NetArgs {
    /// Prefix of the names of the namespaces
    #[arg(long, default_value = "lab")]
    pub(crate) name: String,
    /// The addresses that nodes are known by: 4, or 6 for IPv6 beside IPv4
    #[arg(long, default_value_t = Family::V4)]
    pub(crate) family: Family,
    /// Connection between the client and its neighbor: a link, or `veth[,mtu=N][,no-offloads]`
    #[arg(long, value_name = "LINK", default_value = "veth")]
    client_link: Given,
    /// Connection between a router and the forwarder; places that router next to the client
    #[arg(long, value_name = "LINK")]
    router_link: Option<Given>,
    /// Connection between the forwarder and a server; give it several times for several servers, in their order. The
    /// last one also holds for all servers that follow
    #[arg(long, value_name = "LINK", default_value = "veth")]
    server_link: Vec<Given>,
    /// Emulation of links: in user space, or by the kernel's netem, if it has that
    #[arg(long, value_enum, default_value_t = Links::Emulator)]
    links: Links,
    /// Number of servers; the number of server links, if it is not given
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=510))]
    servers: Option<u16>,
    /// Seed from which the seeds of all links without one of their own are derived
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Do not let the forwarder's kernel route
    #[arg(long)]
    no_routing: bool,
    /// Let sockets use up to 32 MiB
    #[arg(long)]
    large_buffers: bool,
}

impl NetArgs {
    pub(crate) fn options(&self) -> MultiServerOptions {
        let leg = |given: &Given| match (given.leg(self.seed), self.links) {
            (Leg::Link(link), Links::Netem) => Leg::Netem(link),
            (leg, _) => leg,
        };
        let mut servers: Vec<Leg> = self.server_link.iter().map(leg).collect();
        let last = servers.last().cloned().unwrap_or_default();
        servers.resize(self.servers.map_or(servers.len(), usize::from), last);
        MultiServerOptions {
            family: self.family,
            client: leg(&self.client_link),
            router: self.router_link.as_ref().map(leg),
            servers,
            forwards: !self.no_routing,
            large_buffers: self.large_buffers,
        }
    }
}

/// Emulation of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Links {
    /// In user space: exact, seeded, with a report on its lateness
    Emulator,
    /// By the kernel's netem, without reports and seeds
    Netem,
}

/// Leg as given on the command line.
#[derive(Debug, Clone)]
struct Given {
    leg: Leg,
    has_seed: bool,
}

impl FromStr for Given {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        Ok(Given {
            leg: text.parse()?,
            has_seed: text.contains("seed="),
        })
    }
}

impl Given {
    /// Returns the leg with this seed, unless it has a seed of its own. Links with equal seeds get different ones
    /// when they are made.
    fn leg(&self, seed: u64) -> Leg {
        match &self.leg {
            Leg::Link(link) if !self.has_seed => Leg::Link(link.clone().with_seed(seed)),
            leg => leg.clone(),
        }
    }
}
