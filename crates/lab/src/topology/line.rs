//! Three nodes in a row: client, forwarder, server.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;

use super::leg::{Cable, End, Leg, emulate, lay};
use super::{C0, F0, F1, Family, S0, settings};
use crate::emulator::{Emulator, LinkReport, Report, Verdict};
use crate::link::LinkSpec;
use crate::{Error, Namespace};

/// Three namespaces and their addresses, of one [`Family`], with any kind of connection.
#[derive(Debug)]
pub struct Nodes {
    /// Node where connections begin.
    pub client: Namespace,
    /// Node in the middle.
    pub forwarder: Namespace,
    /// Node where connections end.
    pub server: Namespace,
    /// Address of `c0`.
    pub client_addr: IpAddr,
    /// Address of `f0`.
    pub forwarder_client_addr: IpAddr,
    /// Address of `f1`.
    pub forwarder_server_addr: IpAddr,
    /// Address of `s0`.
    pub server_addr: IpAddr,
}

/// Options of [`Line`]. The default is a forwarder that forwards no packets by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineOptions {
    /// Family of addresses that it is known by.
    pub family: Family,
    /// True if the forwarder's kernel routes between its two sides (`ip_forward`, `forwarding`).
    pub router: bool,
    /// True if devices keep their offloads (TSO, GSO, GRO, checksums); without them, each packet is one segment with
    /// its checksum filled in, as on a wire.
    pub offloads: bool,
    /// MTU between client and forwarder, in bytes. IPv6 needs 1,280.
    pub mtu_client: u16,
    /// MTU between forwarder and server, in bytes.
    pub mtu_server: u16,
    /// True if sockets may use up to 32 MiB for each direction, which long and fast paths need.
    pub large_buffers: bool,
}

impl LineOptions {
    /// Returns the default options, but with a forwarder that is a router.
    pub fn router() -> LineOptions {
        LineOptions {
            router: true,
            ..LineOptions::default()
        }
    }
}

impl Default for LineOptions {
    fn default() -> Self {
        LineOptions {
            family: Family::V4,
            router: false,
            offloads: true,
            mtu_client: 1500,
            mtu_server: 1500,
            large_buffers: false,
        }
    }
}

/// Three nodes connected by two veth pairs: as fast as the machine.
#[derive(Debug)]
pub struct Line(Nodes);

impl Line {
    /// Sets the topology up; `name` is that of the test, and becomes part of the namespaces' names.
    ///
    /// # Errors
    /// Those of [`Namespace::new`]; [`Error::Tool`] when a device cannot be set up.
    pub fn new(name: &str, options: LineOptions) -> Result<Self, Error> {
        let nodes = Nodes::new(name, options.family)?;
        let leg = |mtu| Leg::Veth {
            mtu,
            offloads: options.offloads,
        };
        nodes.settle(options.router, options.large_buffers)?;
        lay(nodes.cables(leg(options.mtu_client), leg(options.mtu_server)))?;
        nodes.route()?;
        Ok(Line(nodes))
    }
}

impl Deref for Line {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.0
    }
}

/// Three nodes connected by two emulated links. The forwarder's kernel routes, and sockets may have large buffers,
/// which long paths need.
///
/// Neighbor entries are permanent: a neighbor request that the link lost would cost a whole second.
#[derive(Debug)]
pub struct Emulated {
    // Fields are dropped in this order: the devices go before the namespaces they are in.
    emulator: Emulator,
    nodes: Nodes,
}

impl Emulated {
    /// Sets the topology up, with a link between client and forwarder and one between forwarder and server. Where
    /// both have the same seed, the second one gets another: see [`LinkSpec::tell_apart`].
    ///
    /// # Errors
    /// Those of [`Namespace::new`] and [`Emulator::start`].
    pub fn new(name: &str, client_link: LinkSpec, server_link: LinkSpec) -> Result<Self, Error> {
        Emulated::of(Family::V4, name, client_link, server_link)
    }

    /// Sets the topology up, known by the addresses of a family, with a link between client and forwarder and
    /// one between forwarder and server.
    ///
    /// # Errors
    /// Those of [`Emulated::new`].
    pub fn of(
        family: Family,
        name: &str,
        client_link: LinkSpec,
        server_link: LinkSpec,
    ) -> Result<Self, Error> {
        let nodes = Nodes::new(name, family)?;
        nodes.settle(true, true)?;
        let emulator = emulate(nodes.cables(client_link.into(), server_link.into()))?;
        nodes.route()?;
        Ok(Emulated { emulator, nodes })
    }

    /// Returns the emulator of both links.
    pub fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    /// Returns one report on both links.
    pub fn report(&self) -> Report {
        self.emulator.report()
    }

    /// Returns the reports on the client's and the server's link.
    pub fn link_reports(&self) -> Vec<LinkReport> {
        self.emulator.reports()
    }

    /// Returns the verdict on the run so far.
    pub fn verdict(&self) -> Verdict {
        self.emulator.verdict()
    }
}

impl Deref for Emulated {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl Nodes {
    fn new(name: &str, family: Family) -> Result<Self, Error> {
        let addr = |network, host| family.addr(Ipv4Addr::new(198, 18, network, host).into());
        Ok(Nodes {
            client: Namespace::new(&format!("{name}-client"))?,
            forwarder: Namespace::new(&format!("{name}-forwarder"))?,
            server: Namespace::new(&format!("{name}-server"))?,
            client_addr: addr(1, 1),
            forwarder_client_addr: addr(1, 2),
            forwarder_server_addr: addr(2, 2),
            server_addr: addr(2, 1),
        })
    }

    /// Returns the family of its addresses.
    pub fn family(&self) -> Family {
        Family::of(self.client_addr)
    }

    /// Returns the names of the namespaces of client, forwarder and server.
    pub fn names(&self) -> [&str; 3] {
        [self.client.name(), self.forwarder.name(), self.server.name()]
    }

    /// Sets sysctls, which devices inherit when they are made.
    fn settle(&self, router: bool, large_buffers: bool) -> Result<(), Error> {
        let family = self.family();
        for namespace in [&self.client, &self.forwarder, &self.server] {
            settings::common(namespace, family, large_buffers)?;
        }
        settings::forward(&self.forwarder, family, router)
    }

    fn cables(&self, client_leg: Leg, server_leg: Leg) -> Vec<Cable<'_>> {
        let end = |namespace, device, addr| End {
            namespace,
            device,
            addr,
        };
        vec![
            Cable {
                name: "client".to_owned(),
                client_side: end(&self.client, C0, self.client_addr),
                server_side: end(&self.forwarder, F0, self.forwarder_client_addr),
                leg: client_leg,
            },
            Cable {
                name: "server".to_owned(),
                client_side: end(&self.forwarder, F1, self.forwarder_server_addr),
                server_side: end(&self.server, S0, self.server_addr),
                leg: server_leg,
            },
        ]
    }

    fn route(&self) -> Result<(), Error> {
        settings::default_route(&self.client, self.forwarder_client_addr)?;
        settings::default_route(&self.server, self.forwarder_server_addr)
    }
}
