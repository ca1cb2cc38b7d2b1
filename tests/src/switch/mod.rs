//! A URL-aware switch under test: a daemon between clients and servers that speak HTTP.

mod backend;
mod client;
mod programs;

use std::{fmt::Write as _, net::SocketAddr, path::Path, process::Output};

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

/// How long replies are that wait in their middle.
const HALVES: usize = 400_000;

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
    /// Lines of the listener.
    pub listener: &'a str,
    /// Lines of `[listener.http]`.
    pub http: &'a str,
    /// Lines of the upstream that takes all. `@SECOND@` is where the second server listens.
    pub upstream: &'a str,
    /// Tables after these: of the listener, routes, upstreams. `@SECOND@`, likewise.
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
        let mut daemon = Daemon::of(&configuration(&net, mode, more, 0));
        daemon.start(&net.forwarder);
        Switch { daemon, mode, net }
    }

    /// Has it reload: another server is in the place of the first one, and these are the settings. What the command said.
    pub fn change(&self, nth: usize, more: More<'_>) -> String {
        let config = configuration(&self.net, self.mode, more, nth);
        self.daemon.change(&config).unwrap()
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
        let half = self.get_half("halves", client);
        server.go_on();
        self.get_other_half(half, client);
    }

    /// The first half of such a reply, which may have another name; it is spliced then, where replies are.
    pub fn get_half(&self, name: &str, client: &mut Client) -> Vec<u8> {
        client.send(format!("GET /{name}/{HALVES} HTTP/1.1\r\nHost: switch\r\n\r\n"));
        client.read_until(b"\r\n\r\n").unwrap();
        let half = client.read_exactly(HALVES / 2).unwrap();
        self.wait_spliced(client);
        half
    }

    /// The second one, which must fit.
    pub fn get_other_half(&self, half: Vec<u8>, client: &mut Client) {
        let rest = client.read_exactly(HALVES - half.len()).unwrap();
        assert!([half, rest].concat() == content(HALVES), "{:?}", self.mode);
    }

    /// Has curl fetch the files of these names on one connection, into a folder; how many connections each of them took, a line
    /// for each. More words may follow.
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

fn configuration(net: &Three, mode: Mode, more: More<'_>, nth: usize) -> Config {
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
    Config::new().with(&text)
}
