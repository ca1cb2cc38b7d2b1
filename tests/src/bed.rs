//! Laboratory with a daemon in its middle.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
};

use longsplice_lab::{
    Emulated, Error, Family, Line, LineOptions, LinkSpec, Namespace, Process, cleanup, topology,
};

use crate::{Config, Daemon, Pair, family, soon};

/// Times at which a listener splices and detaches.
#[derive(Debug, Clone, Copy)]
pub struct Policy<'a> {
    /// Setting `splice`.
    pub splice: &'a str,
    /// Setting `detach`.
    pub detach: &'a str,
}

/// Policies that splice at once, to both depths.
impl Policy<'static> {
    /// Splices as soon as connected; closes the sockets.
    pub const DETACHED: Policy<'static> = Policy {
        splice: "now",
        detach: "now",
    };
    /// Splices as soon as connected; parks the sockets.
    pub const DORMANT: Policy<'static> = Policy {
        splice: "now",
        detach: "never",
    };
    /// Relays until told to splice; then detaches.
    pub const ON_DEMAND: Policy<'static> = Policy {
        splice: "never",
        detach: "now",
    };
    /// Relays until told to splice; then parks the sockets.
    pub const ON_DEMAND_DORMANT: Policy<'static> = Policy {
        splice: "never",
        detach: "never",
    };
    /// Both of these, with the states that a command leads to.
    pub const BOTH_ON_DEMAND: [(Policy<'static>, &'static str); 2] = [
        (Policy::ON_DEMAND, "detached"),
        (Policy::ON_DEMAND_DORMANT, "dormant"),
    ];
}

/// Three nodes on veth pairs, a daemon in the middle one with a listener, and a plain listening socket at the server.
#[derive(Debug)]
pub struct Bed {
    // Fields are dropped in this order: the daemon ends before its namespace.
    /// Daemon; it listens at [`Bed::front`].
    pub daemon: Daemon,
    /// Server's socket, at [`Bed::target`].
    pub listener: TcpListener,
    _captures: Vec<Process>,
    /// Nodes.
    pub net: Line,
}

/// Port that daemons listen on.
const FRONT_PORT: u16 = 8080;
/// Port of servers.
const TARGET_PORT: u16 = 7000;

impl Bed {
    /// Starts a bed whose listener has this policy.
    pub fn new(name: &str, policy: Policy<'_>) -> Bed {
        Bed::with(name, LineOptions::default(), policy, |c| c)
    }

    /// Starts a bed with other nodes and further settings.
    pub fn with(
        name: &str,
        options: LineOptions,
        policy: Policy<'_>,
        more: impl FnOnce(Config) -> Config,
    ) -> Bed {
        Bed::on(veth_line(name, options), policy, more)
    }

    /// Starts a bed on nodes that the test has changed already.
    pub fn on(net: Line, policy: Policy<'_>, more: impl FnOnce(Config) -> Config) -> Bed {
        let target = SocketAddr::from((net.server_addr, TARGET_PORT));
        Bed::toward(target, net, policy, more)
    }

    /// Starts a bed on nodes whose server listens at another address of its own.
    pub fn toward(
        target: SocketAddr,
        net: Line,
        policy: Policy<'_>,
        more: impl FnOnce(Config) -> Config,
    ) -> Bed {
        let listener = net.server.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let front = SocketAddr::from((net.family().unspecified(), FRONT_PORT));
        let config = Config::new().listener(front, target, policy.splice, policy.detach);
        let mut daemon = Daemon::of(&more(config));
        daemon.start(&net.forwarder);
        Bed {
            daemon,
            listener,
            _captures: capture(&net),
            net,
        }
    }

    /// Returns the address at which the client reaches the daemon.
    pub fn front(&self) -> SocketAddr {
        (self.net.forwarder_client_addr, FRONT_PORT).into()
    }

    /// Returns the address at which the daemon reaches the server.
    pub fn target(&self) -> SocketAddr {
        (self.net.server_addr, TARGET_PORT).into()
    }

    /// Connects the client through the daemon to the server.
    pub fn connect(&self) -> Pair {
        Pair::connect(&self.net.client, self.front(), &self.listener)
    }

    /// Connects, and waits until the connection is spliced (and detached, under that policy).
    pub fn connect_spliced(&self, state: &str) -> Pair {
        let pair = self.connect();
        self.daemon.wait_state(pair.client_port(), &[state]);
        pair
    }

    /// Splices a connection by command, and waits until it is spliced.
    pub fn splice(&self, pair: &Pair, state: &str) {
        self.daemon.splice_to(pair.client_port(), state);
    }
}

/// Makes nodes on veth pairs; a test without root fails with the reason.
pub fn veth_line(name: &str, options: LineOptions) -> Line {
    prepare();
    let family = match options.family {
        Family::V4 => family(),
        Family::V6 => Family::V6,
    };
    or_needs_root(Line::new(name, LineOptions { family, ..options }))
}

/// Runs `nft` in a namespace with these commands, and returns what it prints. Fails unless it succeeds.
pub fn nft(namespace: &Namespace, commands: &str) -> String {
    let done = namespace.command("nft").args([commands]).output().unwrap();
    assert!(done.status.success(), "nft {commands}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Captures the packets of all nodes with `tcpdump` (headers only) in the folder that the environment variable
/// `LONGSPLICE_PCAP` names, to find the cause of a failure. Without the variable it captures nothing.
pub fn capture(net: &topology::Nodes) -> Vec<Process> {
    let Some(dir) = std::env::var_os("LONGSPLICE_PCAP") else {
        return Vec::new();
    };
    let begin = |namespace: &Namespace| {
        let file = Path::new(&dir).join(format!("{}.pcap", namespace.name()));
        let tcpdump = namespace.command("tcpdump");
        let tcpdump = tcpdump
            .args([
                "-q",
                "-U",
                "--immediate-mode",
                "-Z",
                "root",
                "-s",
                "96",
                "-i",
                "any",
                "-w",
            ])
            .arg(&file);
        let process = tcpdump.spawn().unwrap();
        soon("tcpdump", || file.exists());
        process
    };
    [&net.client, &net.forwarder, &net.server].map(begin).into()
}

/// Makes nodes on emulated links.
pub fn emulated(name: &str, client_link: LinkSpec, server_link: LinkSpec) -> Emulated {
    prepare();
    or_needs_root(Emulated::of(family(), name, client_link, server_link))
}

/// Makes an interrupted test remove its topology.
fn prepare() {
    cleanup::install().expect("signals can be caught");
}

fn or_needs_root<T>(result: Result<T, Error>) -> T {
    match result {
        Ok(value) => value,
        Err(Error::NeedsRoot) => panic!("this test needs root"),
        Err(error) => panic!("{error}"),
    }
}
