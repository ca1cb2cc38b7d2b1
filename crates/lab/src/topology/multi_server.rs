//! Client, forwarder and any number of servers behind it; optionally a router before the forwarder.

use std::net::{IpAddr, Ipv4Addr};

use super::leg::{Cable, End, Leg, lay};
use super::{C0, F0, Family, R0, R1, S0, settings};
use crate::emulator::{Emulator, LinkReport, Verdict};
use crate::{Error, Namespace};

/// Largest number of servers: that of the /24 networks in 198.18.0.0/15 beside those of the client's side.
const MOST_SERVERS: usize = 510;

/// Options of a [`MultiServer`]. The default is one server, veth pairs, and a forwarder that forwards no packets by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiServerOptions {
    /// Family of addresses that it is known by.
    pub family: Family,
    /// Leg between the client and the node next to it.
    pub client: Leg,
    /// Leg between a router next to the client and the forwarder; `None`: no router.
    pub router: Option<Leg>,
    /// Legs between the forwarder and each of the servers, of which there are as many: 1 to 510.
    pub servers: Vec<Leg>,
    /// True if the forwarder's kernel routes, too (`ip_forward`, `forwarding`).
    pub forwards: bool,
    /// True if sockets may use up to 32 MiB for each direction, which long and fast paths need.
    pub large_buffers: bool,
}

impl Default for MultiServerOptions {
    fn default() -> Self {
        MultiServerOptions {
            family: Family::V4,
            client: Leg::default(),
            router: None,
            servers: vec![Leg::default()],
            forwards: false,
            large_buffers: false,
        }
    }
}

/// Server of a [`MultiServer`].
#[derive(Debug)]
pub struct Server {
    /// Namespace in which it runs.
    pub namespace: Namespace,
    /// Address of its device `s0`.
    pub addr: IpAddr,
    /// Forwarder's address on this side: this server sees it as its client.
    pub forwarder_addr: IpAddr,
    /// Forwarder's device on this side: `f1` for the first one.
    pub forwarder_device: String,
}

/// Client, forwarder and servers; see [`super`] for names and addresses.
#[derive(Debug)]
pub struct MultiServer {
    // Dropped first: the devices go before the namespaces they are in.
    pub(super) emulator: Option<Emulator>,
    /// Node where connections begin.
    pub client: Namespace,
    /// Router next to the client, if there is one.
    pub router: Option<Namespace>,
    /// Node before the servers.
    pub forwarder: Namespace,
    /// Nodes where connections end.
    pub servers: Vec<Server>,
    /// Address of `c0`.
    pub client_addr: IpAddr,
    /// Address of the forwarder's `f0`, to which the client connects.
    pub forwarder_client_addr: IpAddr,
}

impl MultiServer {
    /// Sets the topology up; `name` is that of the test, and becomes part of the namespaces' names.
    ///
    /// # Errors
    /// Those of [`Namespace::new`] and [`Emulator::start`]; [`Error::TooMany`] for more than 510 servers.
    pub fn new(name: &str, options: MultiServerOptions) -> Result<Self, Error> {
        if options.servers.len() > MOST_SERVERS {
            return Err(Error::TooMany {
                asked: options.servers.len(),
                most: MOST_SERVERS,
            });
        }
        let space = |node: &str| Namespace::new(&format!("{name}-{node}"));
        let router = options.router.is_some().then(|| space("router")).transpose()?;
        let servers = (0..options.servers.len()).map(|n| Server::new(name, options.family, n));
        let mut net = MultiServer {
            emulator: None,
            client: space("client")?,
            forwarder: space("forwarder")?,
            servers: servers.collect::<Result<_, _>>()?,
            client_addr: options.family.addr(CLIENT.into()),
            forwarder_client_addr: options.family.addr(match &router {
                Some(_) => BEHIND_ROUTER.into(),
                None => NEXT_TO_CLIENT.into(),
            }),
            router,
        };
        for (_, namespace) in net.nodes() {
            settings::common(namespace, options.family, options.large_buffers)?;
        }
        settings::forward(&net.forwarder, options.family, options.forwards)?;
        let emulator = lay(net.cables(options))?;
        net.emulator = emulator;
        net.route()?;
        Ok(net)
    }

    /// Returns the emulator of its emulated links, if it has any.
    pub fn emulator(&self) -> Option<&Emulator> {
        self.emulator.as_ref()
    }

    /// Returns a report on each emulated link.
    pub fn link_reports(&self) -> Vec<LinkReport> {
        self.emulator.as_ref().map(Emulator::reports).unwrap_or_default()
    }

    /// Returns the verdict on the run so far; without emulated links the run counts.
    pub fn verdict(&self) -> Verdict {
        self.emulator.as_ref().map(Emulator::verdict).unwrap_or_default()
    }

    /// Returns all nodes with their names: `client`, `router`, `forwarder`, `server`, `server2` and so on.
    pub fn nodes(&self) -> Vec<(String, &Namespace)> {
        let mut nodes = vec![("client".to_owned(), &self.client)];
        nodes.extend(self.router.iter().map(|router| ("router".to_owned(), router)));
        nodes.push(("forwarder".to_owned(), &self.forwarder));
        let servers = self.servers.iter().enumerate();
        nodes.extend(servers.map(|(n, server)| (server_name(n), &server.namespace)));
        nodes
    }

    fn cables(&self, options: MultiServerOptions) -> Vec<Cable<'_>> {
        let end = |namespace, device, addr| End {
            namespace,
            device,
            addr,
        };
        let client = end(&self.client, C0, self.client_addr);
        let front = end(&self.forwarder, F0, self.forwarder_client_addr);
        let cable = |name: &str, client_side, server_side, leg| Cable {
            name: name.to_owned(),
            client_side,
            server_side,
            leg,
        };
        let mut cables = match (&self.router, options.router) {
            (Some(router), Some(leg)) => vec![
                cable(
                    "client",
                    client,
                    end(router, R0, self.addr(NEXT_TO_CLIENT)),
                    options.client,
                ),
                cable("router", end(router, R1, self.addr(ROUTER_BEHIND)), front, leg),
            ],
            _ => vec![cable("client", client, front, options.client)],
        };
        let servers = self.servers.iter().zip(options.servers).enumerate();
        cables.extend(servers.map(|(n, (server, leg))| {
            let here = end(&self.forwarder, &server.forwarder_device, server.forwarder_addr);
            cable(
                &server_name(n),
                here,
                end(&server.namespace, S0, server.addr),
                leg,
            )
        }));
        cables
    }

    fn route(&self) -> Result<(), Error> {
        settings::default_route(&self.client, self.addr(NEXT_TO_CLIENT))?;
        if let Some(router) = &self.router {
            settings::forward(router, Family::of(self.client_addr), true)?;
            settings::default_route(router, self.addr(BEHIND_ROUTER))?;
            settings::default_route(&self.forwarder, self.addr(ROUTER_BEHIND))?;
        }
        for server in &self.servers {
            settings::default_route(&server.namespace, server.forwarder_addr)?;
        }
        Ok(())
    }

    /// Converts an address to the family that the topology is known by.
    fn addr(&self, addr: Ipv4Addr) -> IpAddr {
        Family::of(self.client_addr).addr(addr.into())
    }
}

const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
/// Address of the node next to the client: the forwarder, or the router.
const NEXT_TO_CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
/// Router's address in the network between it and the forwarder.
const ROUTER_BEHIND: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Forwarder's address in that network.
const BEHIND_ROUTER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

impl Server {
    /// Creates the `n`-th server, counted from 0.
    fn new(name: &str, family: Family, n: usize) -> Result<Self, Error> {
        // Networks are 198.18.2.0/24 to 198.19.255.0/24; `n` is below 510.
        let number = n as u16 + 2;
        let addr =
            |host| family.addr(Ipv4Addr::new(198, 18 + (number >> 8) as u8, number as u8, host).into());
        Ok(Server {
            namespace: Namespace::new(&format!("{name}-{}", server_name(n)))?,
            addr: addr(1),
            forwarder_addr: addr(2),
            forwarder_device: format!("f{}", n + 1),
        })
    }
}

/// Returns `server`, `server2`, `server3` and so on.
fn server_name(n: usize) -> String {
    match n {
        0 => "server".to_owned(),
        n => format!("server{}", n + 1),
    }
}
