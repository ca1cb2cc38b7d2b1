//! Node behind a router: the client or the server of a laboratory of three nodes routes for it.

use std::net::{SocketAddr, TcpListener};

use longsplice_engine::Side;
use longsplice_lab::{Family, Line, Namespace};

use crate::{Config, Daemon, Pair, Policy, ip, ip_in, nodad, soon};

const FRONT_PORT: u16 = 8080;
const TARGET_PORT: u16 = 7000;

/// Three nodes with a daemon in the middle, and a fourth one behind client or server, which is the end of all
/// connections in its place.
#[derive(Debug)]
pub struct Beyond {
    // Fields are dropped in this order: the daemon ends before its namespace.
    /// Daemon.
    pub daemon: Daemon,
    listener: TcpListener,
    front: SocketAddr,
    side: Side,
    far: Namespace,
    /// The other nodes; the one at `side` is a router.
    pub net: Line,
}

impl Beyond {
    /// Adds the fourth node behind `side`, and starts a daemon with this policy.
    pub fn new(net: Line, side: Side, policy: Policy<'_>) -> Beyond {
        let family = net.family();
        Beyond::across(net, side, [family, family], policy)
    }

    /// Adds the fourth node behind `side`, with addresses of the first family, and starts a daemon with this policy. The
    /// other end has addresses of the second family; two families need nodes that are known by IPv6.
    pub fn across(net: Line, side: Side, [family, other]: [Family; 2], policy: Policy<'_>) -> Beyond {
        let far = Namespace::new("beyond").unwrap();
        let (router, device, via) = match side {
            Side::Client => (&net.client, "f0", family.addr(net.client_addr)),
            Side::Server => (&net.server, "f1", family.addr(net.server_addr)),
        };
        let run = |node: &Namespace, line: &str| ip_in(family, node, line);
        run(
            router,
            &format!("link add r1 type veth peer name x0 netns {}", far.name()),
        );
        let nodad = nodad(family);
        run(router, &format!("addr add 198.18.9.1/24 dev r1 {nodad}"));
        run(router, "link set r1 up");
        run(&far, &format!("addr add 198.18.9.2/24 dev x0 {nodad}"));
        run(&far, "link set lo up");
        run(&far, "link set x0 up");
        run(&far, "route add default via 198.18.9.1");
        run(
            &net.forwarder,
            &format!("route add 198.18.9.0/24 via {via} dev {device}"),
        );
        router.sysctl("net/ipv4/ip_forward", "1").unwrap();
        router.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        let far_addr = family.addr("198.18.9.2".parse().unwrap());
        let (server, server_addr) = match side {
            Side::Client => (&net.server, other.addr(net.server_addr)),
            Side::Server => (&far, far_addr),
        };
        let of_client = match side {
            Side::Client => family,
            Side::Server => other,
        };
        let target = SocketAddr::from((server_addr, TARGET_PORT));
        let listener = server.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let front = SocketAddr::from((of_client.unspecified(), FRONT_PORT));
        let config = Config::new().listener(front, target, policy.splice, policy.detach);
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        Beyond {
            daemon,
            listener,
            front: (of_client.addr(net.forwarder_client_addr), FRONT_PORT).into(),
            side,
            far,
            net,
        }
    }

    /// Returns the node behind the router.
    pub fn far(&self) -> &Namespace {
        &self.far
    }

    /// Returns the router.
    pub fn router(&self) -> &Namespace {
        match self.side {
            Side::Client => &self.net.client,
            Side::Server => &self.net.server,
        }
    }

    /// Connects through the daemon, and waits until the connection is spliced.
    pub fn connect_spliced(&self, state: &str) -> Pair {
        let client = match self.side {
            Side::Client => &self.far,
            Side::Server => &self.net.client,
        };
        let pair = Pair::connect(client, self.front, &self.listener);
        self.daemon.wait_state(pair.client_port(), &[state]);
        pair
    }

    /// Sets the MTU of the link behind the router, at both its ends.
    pub fn narrow_the_far_link(&self, mtu: u16) {
        ip(self.router(), &format!("link set r1 mtu {mtu}"));
        ip(&self.far, &format!("link set x0 mtu {mtu}"));
    }
}

/// Sets the MTU of the link between the forwarder and a side, at both its ends.
pub fn narrow_a_leg(net: &Line, side: Side, mtu: u16) {
    let (node, device, ours) = match side {
        Side::Client => (&net.client, "c0", "f0"),
        Side::Server => (&net.server, "s0", "f1"),
    };
    ip(&net.forwarder, &format!("link set {ours} mtu {mtu}"));
    ip(node, &format!("link set {device} mtu {mtu}"));
}

/// Exchanges bytes on a spliced pair one of whose legs has become narrow, until a sender was told of it: programs remember a
/// route for a tick, and what passes by then goes the old way.
pub fn exchange_until_told(daemon: &Daemon, pair: &mut Pair, bytes: u64) {
    soon("a sender to be told that a leg is narrow", || {
        pair.exchange(bytes);
        daemon.status().segments("too_big_told") > 0
    });
}
