//! A URL-aware switch under test: a daemon between clients and servers that speak HTTP.

mod backend;
mod client;
mod programs;

use std::{fmt::Write as _, net::SocketAddr, process::Output};

use longsplice_lab::{NsCommand, Three, ThreeOptions};

use crate::{Config, Daemon, three};

pub use backend::{Backend, Seen, content};
pub use client::{Client, Reply};
pub use programs::{Nginx, Python};

/// What becomes of the replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All are relayed.
    Plain,
    /// As the daemon thinks fit: the long ones are spliced.
    Auto,
    /// Each is spliced, however short; the sockets are parked meanwhile.
    Dormant,
    /// Each is spliced, however short; there are no sockets meanwhile.
    Detached,
}

impl Mode {
    /// Those in which it is known what becomes of each.
    pub const ALL: [Mode; 3] = [Mode::Plain, Mode::Dormant, Mode::Detached];

    fn lines(self) -> &'static str {
        match self {
            Mode::Plain => "splice = \"never\"",
            Mode::Auto => "splice = \"auto\"",
            Mode::Dormant => "splice = \"now\"\nsplice_from = \"1\"\ndetach = \"never\"",
            Mode::Detached => "splice = \"now\"\nsplice_from = \"1\"\ndetach = \"now\"",
        }
    }

    /// Whether replies are spliced.
    pub fn splices(self) -> bool {
        self != Mode::Plain
    }

    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Auto => "auto",
            Mode::Dormant => "dormant",
            Mode::Detached => "detached",
        }
    }
}

/// The port of the listener.
const FRONT_PORT: u16 = 8080;
/// Where servers listen, each at its own.
const SERVER_PORTS: [u16; 2] = [7000, 7001];

/// Three nodes on veth pairs; the daemon in the middle one is a switch.
#[derive(Debug)]
pub struct Switch {
    // In this order: the daemon ends before its namespace.
    /// The daemon; it listens at [`Switch::front`].
    pub daemon: Daemon,
    mode: Mode,
    /// The nodes.
    pub net: Three,
}

/// What is configured besides.
#[derive(Debug, Clone, Copy, Default)]
pub struct More<'a> {
    /// Lines of `[listener.http]`.
    pub http: &'a str,
    /// Lines of the upstream that takes all.
    pub upstream: &'a str,
    /// Tables after these: routes, upstreams. `@SECOND@` is where the second server listens.
    pub tables: &'a str,
}

impl Switch {
    /// One in front of the server at [`Switch::target`].
    pub fn new(name: &str, mode: Mode) -> Switch {
        Switch::with(name, mode, More::default())
    }

    /// The same, with more settings.
    pub fn with(name: &str, mode: Mode, more: More<'_>) -> Switch {
        let net = three(&format!("{name}-{}", mode.name()), ThreeOptions::default());
        let mut daemon = Daemon::of(&configuration(&net, mode, more));
        daemon.start(&net.forwarder);
        Switch { daemon, mode, net }
    }

    /// Where clients find it.
    pub fn front(&self) -> SocketAddr {
        (self.net.forwarder_client_addr, FRONT_PORT).into()
    }

    /// Where the server of the upstream is to listen.
    pub fn target(&self) -> SocketAddr {
        self.server(0)
    }

    /// Where another server can listen.
    pub fn server(&self, nth: usize) -> SocketAddr {
        (self.net.server_addr, SERVER_PORTS[nth]).into()
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.front())
    }

    /// A connection of the client to it.
    pub fn connect(&self) -> Client {
        Client::connect(&self.net.client, self.front())
    }

    /// A program in the client's node.
    pub fn client(&self, program: &str) -> NsCommand<'_> {
        let command = self.net.client.command(program);
        command.env("no_proxy", "*").env("LC_ALL", "C")
    }

    /// Runs curl with these words, silent but for errors; it fails after a minute.
    pub fn curl(&self, words: &[&str]) -> Output {
        let usual = ["--disable", "-sS", "--max-time", "60"];
        self.client("curl").args(usual).args(words).output().unwrap()
    }

    /// A reply of which the second half waits until the first one has come, and until it is spliced where replies are:
    /// shorter ones may be over before they could be.
    pub fn get_halves(&self, client: &mut Client, server: &Backend) {
        const LENGTH: usize = 400_000;
        client.send(format!("GET /halves/{LENGTH} HTTP/1.1\r\nHost: switch\r\n\r\n"));
        client.read_until(b"\r\n\r\n").unwrap();
        let mut body = client.read_exactly(LENGTH / 2).unwrap();
        self.wait_spliced(client);
        server.go_on();
        body.extend(client.read_exactly(LENGTH - body.len()).unwrap());
        assert!(body == content(LENGTH), "{:?}", self.mode);
    }

    /// Waits until this client's connection is spliced as the mode has it (one of [`Mode::ALL`]); does not wait where nothing is.
    pub fn wait_spliced(&self, client: &Client) {
        if self.mode.splices() {
            self.daemon.wait_state(client.port(), &[self.mode.name()]);
        }
    }

    /// Fails unless replies were spliced where they should be, and only there. At least one has to have been slow.
    pub fn assert_mode(&self) {
        let status = self.daemon.status();
        assert_eq!(
            status.spliced_total > 0,
            self.mode.splices(),
            "{:?}: {status:?}",
            self.mode
        );
    }
}

fn configuration(net: &Three, mode: Mode, more: More<'_>) -> Config {
    let mut text = String::new();
    let front = SocketAddr::from((net.family().unspecified(), FRONT_PORT));
    let [server, second] = SERVER_PORTS.map(|port| SocketAddr::from((net.server_addr, port)));
    write!(
        text,
        "[[listener]]\nname = \"web\"\nlisten = \"{front}\"\nprotocol = \"http\"\nupstream = \"servers\"\n{}\n\
         [listener.http]\n{}\n{}\n[[upstream]]\nname = \"servers\"\nservers = [\"{server}\"]\n{}\n",
        mode.lines(),
        more.http,
        more.tables.replace("@SECOND@", &second.to_string()),
        more.upstream,
    )
    .unwrap();
    Config::new().with(&text)
}
