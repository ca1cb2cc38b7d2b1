//! URL-aware switch under test: a daemon between clients and servers that speak HTTP.

mod backend;
mod client;
mod programs;

use std::{fmt::Write as _, net::SocketAddr, path::Path, process::Output};

use longsplice_lab::{Line, LineOptions, NsCommand};

use crate::{Config, Daemon, veth_line};

pub use backend::{Backend, Seen, content};
pub use client::{Client, Reply};
pub use programs::{Nginx, Python};

/// Treatment of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Relays all of them.
    Plain,
    /// Leaves the choice to the daemon: it splices long ones.
    Auto,
    /// Splices each, however short, and parks the sockets meanwhile.
    Dormant,
    /// Splices each, however short, and closes the sockets meanwhile.
    Detached,
}

impl Mode {
    /// Modes in which the treatment of each reply is known.
    pub const ALL: [Mode; 3] = [Mode::Plain, Mode::Dormant, Mode::Detached];

    fn lines(self) -> &'static str {
        match self {
            Mode::Plain => "splice = \"never\"",
            Mode::Auto => "splice = \"auto\"",
            Mode::Dormant => "splice = \"now\"\nsplice_min = \"1\"\ndetach = \"never\"",
            Mode::Detached => "splice = \"now\"\nsplice_min = \"1\"\ndetach = \"now\"",
        }
    }

    /// Returns whether replies are spliced.
    pub fn splices(self) -> bool {
        self != Mode::Plain
    }

    /// Returns a short name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Auto => "auto",
            Mode::Dormant => "dormant",
            Mode::Detached => "detached",
        }
    }
}

/// Length of replies that wait in their middle, in bytes.
const HALVES: usize = 400_000;

/// Port of the listener.
const FRONT_PORT: u16 = 8080;
/// Ports of the servers.
const SERVER_PORTS: [u16; 2] = [7000, 7001];

/// Three nodes on veth pairs; the daemon in the middle one is a switch.
#[derive(Debug)]
pub struct Switch {
    // Fields are dropped in this order: the daemon ends before its namespace.
    /// Daemon; it listens at [`Switch::front`].
    pub daemon: Daemon,
    mode: Mode,
    /// Nodes.
    pub net: Line,
}

/// Additional configuration.
#[derive(Debug, Clone, Copy, Default)]
pub struct More<'a> {
    /// Lines of the global settings.
    pub head: &'a str,
    /// Lines of the listener.
    pub listener: &'a str,
    /// Lines of `[listener.http]`.
    pub http: &'a str,
    /// Lines of the upstream that takes all requests. `@SECOND@` stands for the address of the second server.
    pub upstream: &'a str,
    /// Tables after these: of the listener, routes, upstreams. `@SECOND@` stands for the address of the second
    /// server.
    pub tables: &'a str,
}

impl Switch {
    /// Starts a switch in front of the server at [`Switch::target`].
    pub fn new(name: &str, mode: Mode) -> Switch {
        Switch::with(name, mode, More::default())
    }

    /// Starts a switch with more settings.
    pub fn with(name: &str, mode: Mode, more: More<'_>) -> Switch {
        let net = veth_line(&format!("{name}-{}", mode.name()), LineOptions::default());
        let mut daemon = Daemon::of(&configuration(&net, mode, more, 0));
        daemon.start(&net.forwarder);
        Switch { daemon, mode, net }
    }

    /// Reloads it with the `nth` server in place of the first one, and with these settings. Returns the output of the
    /// command.
    pub fn change(&self, nth: usize, more: More<'_>) -> String {
        let config = configuration(&self.net, self.mode, more, nth);
        self.daemon.change(&config).unwrap()
    }

    /// Returns the address at which clients reach it.
    pub fn front(&self) -> SocketAddr {
        (self.net.forwarder_client_addr, FRONT_PORT).into()
    }

    /// Returns the address at which the server of the upstream must listen.
    pub fn target(&self) -> SocketAddr {
        self.server(0)
    }

    /// Returns an address at which another server can listen.
    pub fn server(&self, nth: usize) -> SocketAddr {
        (self.net.server_addr, SERVER_PORTS[nth]).into()
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.front())
    }

    /// Connects the client to it.
    pub fn connect(&self) -> Client {
        Client::connect(&self.net.client, self.front())
    }

    /// Returns a command in the client's node.
    pub fn client(&self, program: &str) -> NsCommand<'_> {
        let command = self.net.client.command(program);
        command.env("no_proxy", "*").env("LC_ALL", "C")
    }

    /// Runs curl with these words, silent but for errors; it fails after a minute.
    pub fn curl(&self, words: &[&str]) -> Output {
        let usual = ["--disable", "-sS", "--max-time", "60"];
        self.client("curl").args(usual).args(words).output().unwrap()
    }

    /// Fetches a reply whose second half waits until the first one has arrived, and until the reply is spliced, if the
    /// mode splices: shorter replies may be over before that.
    pub fn get_halves(&self, client: &mut Client, server: &Backend) {
        let half = self.get_half("halves", client);
        server.go_on();
        self.get_other_half(half, client);
    }

    /// Fetches the first half of such a reply, under another path; waits until it is spliced, if the mode splices.
    pub fn get_half(&self, name: &str, client: &mut Client) -> Vec<u8> {
        client.send(format!("GET /{name}/{HALVES} HTTP/1.1\r\nHost: switch\r\n\r\n"));
        client.read_until(b"\r\n\r\n").unwrap();
        let half = client.read_exactly(HALVES / 2).unwrap();
        self.wait_spliced(client);
        half
    }

    /// Reads the second half, and checks the whole reply.
    pub fn get_other_half(&self, half: Vec<u8>, client: &mut Client) {
        let rest = client.read_exactly(HALVES - half.len()).unwrap();
        assert!([half, rest].concat() == content(HALVES), "{:?}", self.mode);
    }

    /// Fetches the files of these names with curl on one connection, into a folder. Returns the number of connections
    /// that each of them took, one per line. More words may follow.
    pub fn curl_files(&self, names: &[String], into: &Path, more: &[&str]) -> String {
        let into = into.display().to_string();
        let urls: Vec<String> = names.iter().map(|name| self.url(&format!("/{name}"))).collect();
        let usual = [
            "--fail",
            "--remote-name-all",
            "--output-dir",
            &into,
            "-w",
            "%{num_connects}\n",
        ];
        let mut words = [&usual, more].concat();
        words.extend(urls.iter().map(String::as_str));
        let output = self.curl(&words);
        let says = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{says}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until this client's connection is spliced as the mode demands (one of [`Mode::ALL`]); returns at once in a
    /// mode without splices.
    pub fn wait_spliced(&self, client: &Client) {
        if self.mode.splices() {
            self.daemon.wait_state(client.port(), &[self.mode.name()]);
        }
    }

    /// Returns the servers of all upstreams, as `longsplice servers --json` shows them.
    pub fn servers(&self) -> Vec<serde_json::Value> {
        let upstreams = self.daemon.upstreams();
        let servers = upstreams.iter().flat_map(|u| u["servers"].as_array().unwrap());
        servers.cloned().collect()
    }

    /// Fails unless the daemon spliced replies exactly if the mode splices. At least one reply must have been slow.
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

fn configuration(net: &Line, mode: Mode, more: More<'_>, nth: usize) -> Config {
    let mut text = String::new();
    let front = SocketAddr::from((net.family().unspecified(), FRONT_PORT));
    let servers = SERVER_PORTS.map(|port| SocketAddr::from((net.server_addr, port)).to_string());
    let filled = |text: &str| text.replace("@SECOND@", &servers[1]);
    write!(
        text,
        "[[listener]]\nname = \"web\"\nlisten = \"{front}\"\nprotocol = \"http\"\nupstream = \"servers\"\n{}\n{}\n\
         [listener.http]\n{}\n{}\n[[upstream]]\nname = \"servers\"\nservers = [\"{}\"]\n{}\n",
        mode.lines(),
        more.listener,
        more.http,
        filled(more.tables),
        servers[nth],
        filled(more.upstream),
    )
    .unwrap();
    Config::new().set(more.head).with(&text)
}
