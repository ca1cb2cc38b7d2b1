//! Three nodes in a row: client, forwarder, server.

use std::net::IpAddr;
use std::ops::Deref;

use super::{Family, Leg, MultiServer, MultiServerOptions};
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
        let leg = |mtu| Leg::Veth {
            mtu,
            offloads: options.offloads,
        };
        let (_, nodes) = Nodes::new(
            name,
            MultiServerOptions {
                family: options.family,
                client: leg(options.mtu_client),
                router: None,
                servers: vec![leg(options.mtu_server)],
                forwards: options.router,
                large_buffers: options.large_buffers,
            },
        )?;
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
        let (emulator, nodes) = Nodes::new(
            name,
            MultiServerOptions {
                family,
                client: client_link.into(),
                router: None,
                servers: vec![server_link.into()],
                forwards: true,
                large_buffers: true,
            },
        )?;
        let emulator = emulator.expect("the links are emulated");
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
    /// Sets up a topology with one server. Returns the emulator of its emulated links, too.
    fn new(name: &str, options: MultiServerOptions) -> Result<(Option<Emulator>, Self), Error> {
        let mut net = MultiServer::new(name, options)?;
        let server = net.servers.remove(0);
        let nodes = Nodes {
            client: net.client,
            forwarder: net.forwarder,
            server: server.namespace,
            client_addr: net.client_addr,
            forwarder_client_addr: net.forwarder_client_addr,
            forwarder_server_addr: server.forwarder_addr,
            server_addr: server.addr,
        };
        Ok((net.emulator, nodes))
    }

    /// Returns the family of its addresses.
    pub fn family(&self) -> Family {
        Family::of(self.client_addr)
    }

    /// Returns the names of the namespaces of client, forwarder and server.
    pub fn names(&self) -> [&str; 3] {
        [self.client.name(), self.forwarder.name(), self.server.name()]
    }
}
