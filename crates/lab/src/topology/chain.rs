//! Client, any number of nodes in a row, and a server, connected by emulated links.

use std::net::{IpAddr, Ipv4Addr};

use super::leg::{Cable, End, emulate};
use super::{C0, F0, F1, Family, S0, settings};
use crate::emulator::{Emulator, LinkReport, Verdict};
use crate::link::LinkSpec;
use crate::{Error, Namespace};

/// Largest number of nodes between client and server.
const MOST_NODES: usize = 7;

/// Client, nodes and server in a row; see [`super`] for names and addresses. All nodes route, and sockets may have large
/// buffers, which long paths need.
///
/// Neighbor entries are permanent: a neighbor request that the link lost would cost a whole second.
#[derive(Debug)]
pub struct Chain {
    // Fields are dropped in this order: the devices go before the namespaces they are in.
    emulator: Emulator,
    /// End where connections begin.
    pub client: Namespace,
    /// Nodes in between, in the order of the path from the client to the server.
    pub nodes: Vec<Namespace>,
    /// End where connections are accepted.
    pub server: Namespace,
    /// Address of `c0`.
    pub client_addr: IpAddr,
    /// Address of `s0`.
    pub server_addr: IpAddr,
}

impl Chain {
    /// Sets the topology up with these links, the first one at the client; there is one node less than links. `name` is
    /// that of the test, and becomes part of the namespaces' names. Links with the same seed get different ones: see
    /// [`LinkSpec::tell_apart`].
    ///
    /// # Errors
    /// Those of [`Namespace::new`] and [`Emulator::start`]; [`Error::Links`] without a link, and for more than 8.
    pub fn new(name: &str, family: Family, links: &[LinkSpec]) -> Result<Self, Error> {
        let most = MOST_NODES + 1;
        if !(1..=most).contains(&links.len()) {
            return Err(Error::Links {
                asked: links.len(),
                most,
            });
        }
        let space = |node: &str| Namespace::new(&format!("{name}-{node}"));
        let client = space("client")?;
        let nodes = (1..links.len())
            .map(|n| space(&format!("node{n}")))
            .collect::<Result<Vec<_>, _>>()?;
        let server = space("server")?;
        let all: Vec<&Namespace> = [&client].into_iter().chain(&nodes).chain([&server]).collect();
        for namespace in &all {
            settings::common(namespace, family, true)?;
        }
        for node in &nodes {
            settings::forward(node, family, true)?;
        }
        let emulator = emulate(cables(&all, family, links))?;
        let chain = Chain {
            client_addr: near(family, links.len(), 0),
            server_addr: far(family, links.len(), links.len() - 1),
            emulator,
            client,
            nodes,
            server,
        };
        chain.route(family)?;
        Ok(chain)
    }

    /// Returns the emulator of all links.
    pub fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    /// Returns the reports on the links, in the order of the path.
    pub fn link_reports(&self) -> Vec<LinkReport> {
        self.emulator.reports()
    }

    /// Returns the verdict on the run so far.
    pub fn verdict(&self) -> Verdict {
        self.emulator.verdict()
    }

    /// Routes to the server's side by default, and to each network on the client's side through the node before.
    fn route(&self, family: Family) -> Result<(), Error> {
        let links = self.nodes.len() + 1;
        if links == 1 {
            return Ok(());
        }
        settings::default_route(&self.client, far(family, links, 0))?;
        settings::default_route(&self.server, near(family, links, links - 1))?;
        for (n, node) in self.nodes.iter().enumerate() {
            settings::default_route(node, far(family, links, n + 1))?;
            for network in 0..n {
                settings::network_route(node, near(family, links, network), near(family, links, n))?;
            }
        }
        Ok(())
    }
}

/// Returns the legs between all neighbors.
fn cables<'a>(all: &[&'a Namespace], family: Family, links: &[LinkSpec]) -> Vec<Cable<'a>> {
    let last = links.len() - 1;
    let legs = links.iter().zip(all.iter().zip(&all[1..])).enumerate();
    legs.map(|(n, (link, (here, there)))| Cable {
        name: format!("link {}", n + 1),
        client_side: End {
            namespace: here,
            device: if n == 0 { C0 } else { F1 },
            addr: near(family, links.len(), n),
        },
        server_side: End {
            namespace: there,
            device: if n == last { S0 } else { F0 },
            addr: far(family, links.len(), n),
        },
        leg: link.clone().into(),
    })
    .collect()
}

/// Returns the address of the `n`-th link's end on the client's side.
fn near(family: Family, links: usize, n: usize) -> IpAddr {
    address(family, n, if is_servers(links, n) { 2 } else { 1 })
}

/// Returns the address of the `n`-th link's end on the server's side.
fn far(family: Family, links: usize, n: usize) -> IpAddr {
    address(family, n, if is_servers(links, n) { 1 } else { 2 })
}

/// Returns whether the `n`-th link joins the server to a node. A host has the first address of such a network.
fn is_servers(links: usize, n: usize) -> bool {
    n > 0 && n + 1 == links
}

fn address(family: Family, n: usize, host: u8) -> IpAddr {
    // There are 8 links at most.
    family.addr(Ipv4Addr::new(198, 18, n as u8 + 1, host).into())
}
