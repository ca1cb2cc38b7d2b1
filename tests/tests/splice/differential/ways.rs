//! Ways of a connection, each a listener of one daemon.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use longsplice_engine::Side;
use longsplice_lab::{Line, LineOptions, Namespace};
use longsplice_tests::{Config, Daemon, SOON, accept, capture, eventually, veth_line};
use socket2::{Domain, SockRef, Socket, Type};

use crate::differential::{
    play::{Ending, Seen, play},
    script::{Certain, Options, Script},
};

/// First port of the daemon's listeners, and first port of their targets; the number of the way is added.
const FRONT_PORT: u16 = 8080;
const TARGET_PORT: u16 = 7000;

/// Way of a connection.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    splice: &'static str,
    detach: &'static str,
    unsplice: Option<&'static str>,
    /// State in which the script begins; `None`: at once.
    begins: Option<&'static str>,
    /// True if it is spliced and brought back by command, at the turns of the script.
    commanded: bool,
}

impl Way {
    const fn new(name: &'static str, splice: &'static str, detach: &'static str) -> Way {
        Way {
            name,
            splice,
            detach,
            unsplice: None,
            begins: None,
            commanded: false,
        }
    }

    const fn begins(self, state: &'static str) -> Way {
        Way {
            begins: Some(state),
            ..self
        }
    }

    const fn comes_back(self, conditions: &'static str) -> Way {
        Way {
            unsplice: Some(conditions),
            ..self
        }
    }
}

/// All ways; the others are compared with the first.
const WAYS: [Way; 8] = [
    Way::new("relayed", "never", "never"),
    Way::new("dormant", "now", "never").begins("dormant"),
    Way::new("detached", "now", "now").begins("detached"),
    Way::new("spliced at once", "now", "after=5ms"),
    Way::new("spliced in the middle", "after=10kB", "now"),
    Way::new("dormant, comes back", "now", "never").comes_back("bytes=client:20kB,bytes=server:50kB"),
    Way::new("detached, comes back", "now", "now").comes_back("bytes=client:7kB,data=server"),
    Way {
        commanded: true,
        ..Way::new("commanded", "never", "now")
    },
];

/// Laboratory with a daemon that has all ways.
#[derive(Debug)]
pub(crate) struct Ways {
    daemon: Daemon,
    _captures: Vec<longsplice_lab::Process>,
    net: Line,
}

impl Ways {
    /// Sets up a laboratory.
    pub(crate) fn new(name: &str, options: LineOptions) -> Ways {
        let net = veth_line(name, options);
        let mut config = Config::new();
        for (n, way) in WAYS.iter().enumerate() {
            let front = (net.family().unspecified(), FRONT_PORT + n as u16).into();
            config = config.listener(front, target(&net, n), way.splice, way.detach);
            if let Some(conditions) = way.unsplice {
                config = config.with(&format!("unsplice = \"{conditions}\""));
            }
        }
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        Ways {
            daemon,
            _captures: capture(&net),
            net,
        }
    }

    /// Plays the script of this seed on all ways at once, and compares the views.
    pub(crate) fn play(&mut self, seed: u64) {
        let script = Script::of(seed);
        self.set(script.options);
        let seen: Vec<[Seen; 2]> = thread::scope(|scope| {
            let way = |n| {
                let (this, script) = (&*self, &script);
                scope.spawn(move || this.play_on(n, script, seed))
            };
            let all: Vec<_> = (0..WAYS.len()).map(way).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let relayed = comparable(&script, seen[0]);
        let differs = |n: &usize| comparable(&script, seen[*n]) != relayed;
        let differing: Vec<_> = (0..WAYS.len()).filter(differs).map(|n| WAYS[n].name).collect();
        let told = || {
            let ways = WAYS.iter().zip(&seen);
            let lines: Vec<_> = ways
                .map(|(way, seen)| format!("{}: {seen:?}", way.name))
                .collect();
            format!(
                "LONGSPLICE_SEED={seed} repeats it\n{script:#?}\n{}",
                lines.join("\n")
            )
        };
        assert!(
            differing.is_empty(),
            "not as in a relay: {differing:?}; {}",
            told()
        );
        // The relay itself must have followed the script.
        assert!(is_as_written(&script, &seen[0]), "{}", told());
    }

    /// Sets the options of connections to come.
    fn set(&self, options: Options) {
        let set = |namespace: &Namespace, option: &str, on: bool, [off, yes]: [&str; 2]| {
            let value = if on { yes } else { off };
            namespace.sysctl(&format!("net.ipv4.{option}"), value).unwrap();
        };
        let nodes = [&self.net.client, &self.net.server];
        for (side, node) in Side::BOTH.into_iter().zip(nodes) {
            set(node, "tcp_timestamps", options.timestamps, ["0", "1"]);
            set(node, "tcp_sack", options.sack[side], ["0", "1"]);
            set(node, "tcp_window_scaling", options.scaling[side], ["0", "1"]);
        }
        // Value 2 accepts ECN, and does not request it.
        for node in [&self.net.client, &self.net.forwarder] {
            set(node, "tcp_ecn", options.ecn, ["2", "1"]);
        }
    }

    fn play_on(&self, n: usize, script: &Script, seed: u64) -> [Seen; 2] {
        let way = WAYS[n];
        let listener = self.listen(n, script.parts[1].buffer);
        let client = self.connect(n, script.parts[0].buffer);
        let server = accept(&listener);
        let port = client.local_addr().unwrap().port();
        if let Some(state) = way.begins {
            self.daemon.wait_state(port, &[state]);
        }
        play(script, client, server, seed, || {
            if way.commanded {
                self.turn(port);
            }
        })
    }

    /// Splices the flow, or takes it back. It may change or end by itself at the same time.
    fn turn(&self, client_port: u16) {
        let flows = self.daemon.flows().into_iter();
        let Some(flow) = flows.into_iter().find(|f| f.client.peer.port() == client_port) else {
            return;
        };
        let _ = match flow.state.as_str() {
            "relay" | "undraining" => self.daemon.request_splice(flow.id),
            _ => self.daemon.unsplice(flow.id),
        };
    }

    /// Listens as the server of a way.
    fn listen(&self, n: usize, buffer: Option<usize>) -> TcpListener {
        let at = target(&self.net, n);
        // A child that another test has just begun has the socket of the listener before until it runs its program.
        let listener = eventually("the server's port to be free", SOON, || {
            match self.net.server.run(|| TcpListener::bind(at)).unwrap() {
                Err(error) if error.kind() == ErrorKind::AddrInUse => None,
                bound => Some(bound.unwrap()),
            }
        });
        set_buffers(SockRef::from(&listener), buffer);
        listener
    }

    fn connect(&self, n: usize, buffer: Option<usize>) -> TcpStream {
        let front = SocketAddr::from((self.net.forwarder_client_addr, FRONT_PORT + n as u16));
        let socket = || Socket::new(Domain::for_address(front), Type::STREAM, None);
        let socket = self.net.client.run(socket).unwrap().unwrap();
        set_buffers(SockRef::from(&socket), buffer);
        socket.connect_timeout(&front.into(), SOON).unwrap();
        socket.into()
    }

    /// Fails unless splices, detachments and returns occurred as the ways demand, and all records are reaped.
    pub(crate) fn settle(&self, scripts: u64) {
        self.daemon.wait_reaped();
        let status = self.daemon.status();
        // Two of the ways begin spliced.
        assert!(status.spliced_total >= 2 * scripts, "{status:?}");
        assert!(status.detached_total >= scripts, "{status:?}");
        assert!(status.resumed_total > scripts / 4, "{status:?}");
        let counts = (status.spliced_total, status.detached_total, status.resumed_total);
        eprintln!("{counts:?} splices, detachments and returns");
    }
}

fn target(net: &Line, n: usize) -> SocketAddr {
    (net.server_addr, TARGET_PORT + n as u16).into()
}

fn set_buffers(socket: SockRef<'_>, bytes: Option<usize>) {
    if let Some(bytes) = bytes {
        socket.set_recv_buffer_size(bytes).unwrap();
        socket.set_send_buffer_size(bytes).unwrap();
    }
}

/// Returns the part of the views that must be equal on all ways.
fn comparable(script: &Script, seen: [Seen; 2]) -> [Seen; 2] {
    match script.certain {
        Certain::All => seen,
        Certain::Endings => seen.map(|seen| Seen {
            received: 0,
            wrote_all: true,
            ..seen
        }),
    }
}

/// Returns whether all bytes are right, no end waits for ever, and, unless chance decides, all bytes arrived.
fn is_as_written(script: &Script, seen: &[Seen; 2]) -> bool {
    Side::BOTH.into_iter().all(|side| {
        let seen = seen[side];
        let whole = seen.wrote_all && seen.received == script.sends(side.other());
        seen.wrong.is_none() && seen.ending != Ending::Never && (whole || script.certain == Certain::Endings)
    })
}
