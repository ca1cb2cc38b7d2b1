//! Router in the middle that intercepts its clients' connections.

use std::net::{IpAddr, SocketAddr, TcpListener};

use longsplice_lab::{Line, LineOptions};
use longsplice_tests::{Config, Daemon, End, Pair, Policy, veth_line};

pub(crate) const PORT: u16 = 7000;
/// IPv6 addresses of client, forwarder toward each, and server.
const V6: [&str; 4] = ["2001:db8:1::1", "2001:db8:1::2", "2001:db8:2::2", "2001:db8:2::1"];

/// Connections that the listener intercepts.
pub(crate) const TABLE: &str =
    r#"interface = "f0", to = ["198.18.2.0/24", "2001:db8:2::/48"], ports = ["7000-7009", "80"]"#;

pub(crate) struct Lab {
    pub(crate) daemon: Daemon,
    pub(crate) net: Line,
}

/// Makes the nodes, with both families, and a daemon that is not started.
pub(crate) fn lab(name: &str, config: Config) -> Lab {
    let net = veth_line(name, LineOptions::router());
    for (node, devices) in [
        (&net.client, &["c0"][..]),
        (&net.forwarder, &["f0", "f1"]),
        (&net.server, &["s0"]),
    ] {
        for device in devices.iter().chain(&["lo"]) {
            node.sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "0")
                .unwrap();
        }
    }
    net.forwarder.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
    for (node, words) in [
        (&net.client, format!("address add {}/64 dev c0 nodad", V6[0])),
        (&net.forwarder, format!("address add {}/64 dev f0 nodad", V6[1])),
        (&net.forwarder, format!("address add {}/64 dev f1 nodad", V6[2])),
        (&net.server, format!("address add {}/64 dev s0 nodad", V6[3])),
        (&net.client, format!("route add default via {}", V6[1])),
        (&net.server, format!("route add default via {}", V6[2])),
    ] {
        assert!(ip(node, &format!("-6 {words}")).0, "{words}");
    }
    Lab {
        daemon: Daemon::of(&config),
        net,
    }
}

/// Runs `ip`; returns whether it succeeded, and its output.
pub(crate) fn ip(node: &longsplice_lab::Namespace, words: &str) -> (bool, String) {
    let output = std::process::Command::new("ip")
        .args(["-n", node.name()])
        .args(words.split(' '))
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

pub(crate) fn intercepting(policy: Policy<'_>) -> Config {
    Config::new().intercepting(TABLE, policy.splice, policy.detach)
}

impl Lab {
    pub(crate) fn start(&mut self) {
        self.daemon.start(&self.net.forwarder);
    }

    pub(crate) fn server_v4(&self) -> SocketAddr {
        (self.net.server_addr, PORT).into()
    }

    pub(crate) fn server_v6(&self) -> SocketAddr {
        SocketAddr::new(V6[3].parse().unwrap(), PORT)
    }

    /// Returns the address at which the server listens, in each family.
    pub(crate) fn servers(&self) -> [SocketAddr; 2] {
        [self.server_v4(), self.server_v6()]
    }

    /// Opens a listening socket at the server.
    pub(crate) fn listen(&self, at: SocketAddr) -> TcpListener {
        self.net.server.run(|| TcpListener::bind(at)).unwrap().unwrap()
    }

    /// Connects the client; returns the pair, and the client's address as the server sees it.
    pub(crate) fn connect(&self, listener: &TcpListener) -> (Pair, IpAddr) {
        let to = listener.local_addr().unwrap();
        let pair = Pair::connect(&self.net.client, to, listener);
        let peer = peer(&pair.server);
        (pair, peer)
    }

    /// Connects, and fails unless the connection reaches the server without the daemon.
    #[track_caller]
    pub(crate) fn expect_direct(&self, listener: &TcpListener) -> Pair {
        let (mut pair, peer) = self.connect(listener);
        assert_eq!(peer, self.net.client_addr, "not intercepted");
        pair.exchange(100_000);
        pair
    }

    /// Returns the address of the forwarder that this server sees.
    pub(crate) fn forwarder(&self, server: SocketAddr) -> IpAddr {
        match server {
            SocketAddr::V4(_) => self.net.forwarder_server_addr,
            SocketAddr::V6(_) => V6[2].parse().unwrap(),
        }
    }

    /// Returns the rules and routes of the daemon in the forwarder's namespace.
    pub(crate) fn routing(&self) -> Vec<String> {
        let mut found = Vec::new();
        for family in ["-4", "-6"] {
            for what in ["rule show", "route show table all"] {
                let (done, said) = ip(&self.net.forwarder, &format!("{family} {what}"));
                assert!(done, "{said}");
                let ours = said
                    .lines()
                    .filter(|l| l.contains("proto 76") || l.contains("0x4c"));
                found.extend(ours.map(|l| format!("{family} {l}")));
            }
        }
        found
    }
}

pub(crate) fn peer(end: &End) -> IpAddr {
    end.stream.peer_addr().unwrap().ip()
}
