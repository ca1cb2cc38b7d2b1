//! Three nodes in a row: client, forwarder, server.
//!
//! Both topologies use the same names and addresses (198.18.0.0/15 is set aside for benchmarks), so that what
//! runs in one runs in the other:
//!
//! ```text
//!   client                   forwarder                      server
//!   c0 198.18.1.1 -------- f0 198.18.1.2
//!                          f1 198.18.2.2 -------- s0 198.18.2.1
//! ```

use std::net::Ipv4Addr;
use std::ops::Deref;

use crate::emulator::{Emulator, LinkReport, Report, Span};
use crate::link::LinkSpec;
use crate::{Error, Namespace, tool};

/// The client's device.
pub const C0: &str = "c0";
/// The forwarder's device on the client's side.
pub const F0: &str = "f0";
/// The forwarder's device on the server's side.
pub const F1: &str = "f1";
/// The server's device.
pub const S0: &str = "s0";

/// The three namespaces and their addresses, whatever connects them.
#[derive(Debug)]
pub struct Nodes {
    /// Where connections begin.
    pub client: Namespace,
    /// The node in the middle.
    pub forwarder: Namespace,
    /// Where connections end.
    pub server: Namespace,
    /// The address of `c0`.
    pub client_addr: Ipv4Addr,
    /// The address of `f0`.
    pub forwarder_client_addr: Ipv4Addr,
    /// The address of `f1`.
    pub forwarder_server_addr: Ipv4Addr,
    /// The address of `s0`.
    pub server_addr: Ipv4Addr,
}

/// How [`Three`] is set up. The default is a forwarder that forwards no packets by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreeOptions {
    /// Whether the forwarder's kernel routes between its two sides (`ip_forward`).
    pub router: bool,
    /// Whether devices keep their offloads (TSO, GSO, GRO, checksums); without them, each packet is one segment
    /// with its checksum filled in, as on a wire.
    pub offloads: bool,
    /// The MTU between client and forwarder, in bytes.
    pub mtu_client: u16,
    /// The MTU between forwarder and server, in bytes.
    pub mtu_server: u16,
    /// Whether sockets may use up to 32 MiB for each direction, as long and fast paths want.
    pub large_buffers: bool,
}

impl Default for ThreeOptions {
    fn default() -> Self {
        ThreeOptions {
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
pub struct Three(Nodes);

impl Three {
    /// Sets the topology up; `name` is that of the test, and becomes part of the namespaces' names.
    ///
    /// # Errors
    /// As [`Namespace::new`]; [`Error::Tool`] when a device cannot be set up.
    pub fn new(name: &str, options: ThreeOptions) -> Result<Self, Error> {
        let nodes = Nodes::new(name)?;
        let [client, forwarder, server] = nodes.names();
        tool::ip(&format!(
            "-n {client} link add {C0} type veth peer name {F0} netns {forwarder}"
        ))?;
        tool::ip(&format!(
            "-n {server} link add {S0} type veth peer name {F1} netns {forwarder}"
        ))?;
        for (namespace, device, mtu) in [
            (client, C0, options.mtu_client),
            (forwarder, F0, options.mtu_client),
            (forwarder, F1, options.mtu_server),
            (server, S0, options.mtu_server),
        ] {
            tool::ip(&format!("-n {namespace} link set {device} mtu {mtu}"))?;
            if !options.offloads {
                without_offloads(namespace, device)?;
            }
        }
        nodes.configure(options.router, options.large_buffers)?;
        Ok(Three(nodes))
    }
}

impl Deref for Three {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.0
    }
}

/// Three nodes connected by two emulated links. The forwarder's kernel routes, and sockets may have large
/// buffers, as long paths need them.
///
/// Neighbours are permanent: an ARP request that the link lost would cost a whole second.
#[derive(Debug)]
pub struct Emulated {
    // In this order: the devices go before the namespaces they are in.
    emulator: Emulator,
    nodes: Nodes,
}

impl Emulated {
    /// Sets the topology up, with a link between client and forwarder and one between forwarder and server.
    ///
    /// # Errors
    /// As [`Namespace::new`] and [`Emulator::start`].
    pub fn new(name: &str, client_link: LinkSpec, server_link: LinkSpec) -> Result<Self, Error> {
        let nodes = Nodes::new(name)?;
        let emulator = Emulator::start(&[
            Span {
                client_side: (&nodes.client, C0),
                server_side: (&nodes.forwarder, F0),
                spec: client_link,
            },
            Span {
                client_side: (&nodes.forwarder, F1),
                server_side: (&nodes.server, S0),
                spec: server_link,
            },
        ])?;
        nodes.configure(true, true)?;
        let addrs = [
            nodes.client_addr,
            nodes.forwarder_client_addr,
            nodes.forwarder_server_addr,
            nodes.server_addr,
        ];
        let ends = [
            (&nodes.client, C0),
            (&nodes.forwarder, F0),
            (&nodes.forwarder, F1),
            (&nodes.server, S0),
        ];
        for (here, there) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
            let (namespace, device) = ends[here];
            let mac = mac(ends[there].0, ends[there].1)?;
            let addr = addrs[there];
            tool::ip(&format!(
                "-n {} neigh replace {addr} lladdr {mac} dev {device}",
                namespace.name()
            ))?;
        }
        Ok(Emulated { emulator, nodes })
    }

    /// The emulator of both links.
    pub fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    /// What both links did so far.
    pub fn report(&self) -> Report {
        self.emulator.report()
    }

    /// What the client's and the server's link did so far.
    pub fn link_reports(&self) -> Vec<LinkReport> {
        self.emulator.reports()
    }
}

impl Deref for Emulated {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl Nodes {
    fn new(name: &str) -> Result<Self, Error> {
        Ok(Nodes {
            client: Namespace::new(&format!("{name}-client"))?,
            forwarder: Namespace::new(&format!("{name}-forwarder"))?,
            server: Namespace::new(&format!("{name}-server"))?,
            client_addr: Ipv4Addr::new(198, 18, 1, 1),
            forwarder_client_addr: Ipv4Addr::new(198, 18, 1, 2),
            forwarder_server_addr: Ipv4Addr::new(198, 18, 2, 2),
            server_addr: Ipv4Addr::new(198, 18, 2, 1),
        })
    }

    /// The names of the namespaces of client, forwarder and server.
    pub fn names(&self) -> [&str; 3] {
        [self.client.name(), self.forwarder.name(), self.server.name()]
    }

    /// Sysctls, addresses and routes, the same for every kind of device.
    fn configure(&self, router: bool, large_buffers: bool) -> Result<(), Error> {
        for namespace in [&self.client, &self.forwarder, &self.server] {
            common_sysctls(namespace, large_buffers)?;
        }
        self.forwarder
            .sysctl("net.ipv4.ip_forward", if router { "1" } else { "0" })?;
        let [client, forwarder, server] = self.names();
        for (namespace, device, addr) in [
            (client, C0, self.client_addr),
            (forwarder, F0, self.forwarder_client_addr),
            (forwarder, F1, self.forwarder_server_addr),
            (server, S0, self.server_addr),
        ] {
            tool::ip(&format!("-n {namespace} addr add {addr}/24 dev {device}"))?;
            tool::ip(&format!("-n {namespace} link set {device} up"))?;
        }
        tool::ip(&format!(
            "-n {client} route add default via {}",
            self.forwarder_client_addr
        ))?;
        tool::ip(&format!(
            "-n {server} route add default via {}",
            self.forwarder_server_addr
        ))
    }
}

/// A new namespace takes over some settings of the machine; a measurement must not depend on them.
fn common_sysctls(namespace: &Namespace, large_buffers: bool) -> Result<(), Error> {
    allow_cubic()?;
    namespace.sysctl("net.ipv4.tcp_congestion_control", "cubic")?;
    // Or the second connection would begin with what the first one learned.
    namespace.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    namespace.sysctl("net.ipv4.conf.all.rp_filter", "0")?;
    namespace.sysctl("net.ipv4.conf.default.rp_filter", "0")?;
    if std::fs::exists("/proc/sys/net/ipv6").unwrap_or(false) {
        // No router solicitations among the packets that a test counts.
        namespace.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
        namespace.sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
    }
    let (read, write) = if large_buffers {
        (32 << 20, 32 << 20)
    } else {
        (6 << 20, 4 << 20)
    };
    namespace.sysctl("net.ipv4.tcp_rmem", &format!("4096 131072 {read}"))?;
    namespace.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {write}"))
}

/// Lets namespaces choose CUBIC. On a machine whose default is another algorithm it is "restricted", and only
/// the machine's own namespace may have it as a default. This is the one setting of the machine that changes.
fn allow_cubic() -> Result<(), Error> {
    const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed =
        std::fs::read_to_string(ALLOWED).map_err(Error::io("read the allowed congestion controls"))?;
    if allowed.split_whitespace().any(|name| name == "cubic") {
        return Ok(());
    }
    std::fs::write(ALLOWED, format!("{} cubic", allowed.trim()))
        .map_err(Error::io("allow the congestion control cubic"))
}

fn without_offloads(namespace: &str, device: &str) -> Result<(), Error> {
    let set = ["tso", "off", "gso", "off", "gro", "off", "tx", "off"];
    let ethtool = ["netns", "exec", namespace, "ethtool", "-K", device];
    tool::run("ip", &[&ethtool[..], &set[..]].concat())
}

/// The hardware address of a device.
fn mac(namespace: &Namespace, device: &str) -> Result<String, Error> {
    let output = namespace
        .command("ip")
        .args(["-o", "link", "show", "dev", device])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    match words.nth(1) {
        Some(mac) => Ok(mac.to_owned()),
        None => Err(Error::Parse {
            what: "the hardware address of a device",
            text,
        }),
    }
}
