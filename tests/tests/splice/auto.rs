//! Compares the decisions of the policy `auto` for plain TCP, over a short and a long path, with and without losses, for three shapes of
//! traffic.

use std::{
    net::{SocketAddr, TcpListener},
    thread,
    time::{Duration, Instant},
};

use longsplice_lab::{Direction, Emulated, LinkSpec, Queue};
use longsplice_tests::{Config, Daemon, Pair, emulated, family, patient};

/// Rate of both links, in bit/s.
const RATE: u64 = 100_000_000;
/// Bytes of one step of a stream, and of one request or reply.
const STEP: u64 = 250_000;
const MESSAGE: u64 = 1_000;
/// Longest time for a decision.
const DECIDED: Duration = Duration::from_secs(15);
/// Number of connections that may be tried for a decision.
const ATTEMPTS: usize = 4;
/// Seed of the losses: the same packets of a stream are lost in each run, of the first 1,500 some eight.
const SEED: u64 = 7;

/// Decision: spliced, or relayed with one of the reasons for which a stream is not asked about again for seconds.
const SPLICED: &str = "spliced";
const LASTING: [&str; 3] = ["advised_loss", "advised_throughput", "advised_bbr"];
/// Decision on a pair that carries little.
const QUIET: &str = "advised_quiet";
/// Pause before a burst: longer than the lull behind which the advisor takes a stream for another one.
const PAUSE: Duration = Duration::from_millis(3_500);

/// Shape of a connection's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Upload,
    Download,
    Requests,
    IdleThenBurst,
}

impl Shape {
    /// Passes some bytes, or waits a moment. `was_quiet`: the connection was seen to carry little.
    fn step(self, pair: &mut Pair, was_quiet: bool) {
        match self {
            Shape::Upload => pair.exchange_unevenly(STEP, 0),
            Shape::Download => pair.exchange_unevenly(0, STEP),
            Shape::Requests => pair.exchange_unevenly(MESSAGE, MESSAGE),
            Shape::IdleThenBurst if was_quiet => pair.exchange_unevenly(0, STEP),
            Shape::IdleThenBurst => thread::sleep(Duration::from_millis(20)),
        }
    }

    /// Returns true if no other decision follows while the traffic stays like this.
    fn is_final(self, decision: &str) -> bool {
        decision == SPLICED || LASTING.contains(&decision) || (decision == QUIET && self == Shape::Requests)
    }
}

struct Lab {
    daemon: Daemon,
    listener: TcpListener,
    net: Emulated,
}

impl Lab {
    /// Starts a daemon between two links with these round-trip times, in milliseconds.
    fn new(name: &str, [client, server]: [u64; 2], loss: f64) -> Lab {
        let link = |rtt| {
            LinkSpec::symmetric(Direction {
                delay: Duration::from_millis(rtt) / 2,
                rate: Some(RATE),
                queue: Queue::Bytes(4 << 20),
                loss,
                seed: SEED,
                ..Direction::default()
            })
        };
        let net = emulated(name, link(client), link(server));
        let target = SocketAddr::from((net.server_addr, 7000));
        let listener = net.server.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let front = SocketAddr::from((family().unspecified(), 8080));
        let mut daemon = Daemon::of(&Config::new().listener(front, target, "auto", "now"));
        daemon.start(&net.forwarder);
        Lab {
            daemon,
            listener,
            net,
        }
    }

    /// Passes traffic until the daemon has decided; returns the decision, or the last reason.
    fn decision(&self, shape: Shape) -> String {
        let front = (self.net.forwarder_client_addr, 8080).into();
        let mut pair = Pair::connect(&self.net.client, front, &self.listener);
        let (port, start) = (pair.client_port(), Instant::now());
        let (mut last, mut was_quiet) = (String::new(), false);
        while start.elapsed() < patient(DECIDED) && !shape.is_final(&last) {
            shape.step(&mut pair, was_quiet);
            let flows = self.daemon.flows();
            let flow = flows
                .into_iter()
                .find(|flow| flow.client.peer.port() == port)
                .unwrap();
            last = match flow.state.as_str() {
                "detached" => SPLICED.to_owned(),
                _ => flow.reason.unwrap_or_default(),
            };
            if shape == Shape::IdleThenBurst && last == QUIET && !was_quiet {
                was_quiet = true;
                thread::sleep(PAUSE);
            }
        }
        eprintln!("{shape:?}: {last} after {:?}", start.elapsed());
        pair.exchange_unevenly(0, STEP);
        pair.close();
        last
    }
}

fn decides(name: &str, rtts: [u64; 2], loss: f64, expected: [(Shape, &str); 4]) {
    let lab = Lab::new(name, rtts, loss);
    let mut last = String::new();
    for (shape, decision) in expected {
        // On a busy machine a connection may carry too little to count as a stream: the next one has another chance.
        let decisions: Vec<String> = (0..ATTEMPTS)
            .map_while(|n| {
                (n == 0 || last != decision).then(|| {
                    last = lab.decision(shape);
                    last.clone()
                })
            })
            .collect();
        assert_eq!(
            decisions.last().map(String::as_str),
            Some(decision),
            "{shape:?}: {decisions:?}"
        );
        last.clear();
    }
}

#[test]
fn over_a_short_path_streams_are_spliced() {
    decides(
        "auto-short",
        [2, 2],
        0.0,
        [
            (Shape::Upload, SPLICED),
            (Shape::Download, SPLICED),
            (Shape::Requests, QUIET),
            (Shape::IdleThenBurst, SPLICED),
        ],
    );
}

#[test]
fn over_a_short_path_with_losses_streams_are_relayed() {
    decides(
        "auto-shortloss",
        [2, 2],
        0.005,
        [
            (Shape::Upload, "advised_loss"),
            (Shape::Download, "advised_loss"),
            (Shape::Requests, QUIET),
            (Shape::IdleThenBurst, "advised_loss"),
        ],
    );
}

/// The sender on the long leg has a window for the whole path, the one on the short leg has not.
#[test]
fn over_a_long_path_a_stream_of_the_short_leg_is_relayed() {
    decides(
        "auto-long",
        [20, 80],
        0.0,
        [
            (Shape::Upload, "advised_throughput"),
            (Shape::Download, SPLICED),
            (Shape::Requests, QUIET),
            (Shape::IdleThenBurst, SPLICED),
        ],
    );
}

#[test]
fn over_a_long_path_with_losses_streams_are_relayed() {
    decides(
        "auto-longloss",
        [20, 80],
        0.005,
        [
            (Shape::Upload, "advised_loss"),
            (Shape::Download, "advised_loss"),
            (Shape::Requests, QUIET),
            (Shape::IdleThenBurst, "advised_loss"),
        ],
    );
}
