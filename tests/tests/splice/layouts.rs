//! An upgrade and a downgrade between two builds whose records have different layouts: flows of all kinds go on, with
//! their traps and rates, rules for spliced flows hold, and bytes are under way at each change.

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpListener},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use longsplice_lab::{Family, Line, LineOptions};
use longsplice_tests::{Config, Daemon, Load, Pair, Raise, binary, other_layout, soon, veth_line};

/// Kinds of flows, each with a listener of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Detached,
    Dormant,
    /// It comes back when the client has sent [`BUDGET`] bytes.
    BytesTrap,
    /// Dormant; it comes back when the server sends.
    DataTrap,
    /// It has a limit for the server's bytes.
    Rated,
    RatedDormant,
    /// A client of IPv6, a server of IPv4.
    SixToFour,
    /// The reverse, dormant.
    FourToSix,
}

const KINDS: [Kind; 8] = [
    Kind::Detached,
    Kind::Dormant,
    Kind::BytesTrap,
    Kind::DataTrap,
    Kind::Rated,
    Kind::RatedDormant,
    Kind::SixToFour,
    Kind::FourToSix,
];

/// Kinds of which one flow each is busy all the time.
const BUSY: [Kind; 4] = [Kind::Detached, Kind::Dormant, Kind::SixToFour, Kind::FourToSix];

/// Bytes of a small exchange.
const SOME: u64 = 10_000;
/// Bytes of the client that pass before a trap of bytes.
const BUDGET: u64 = 100_000;
/// Rest of a busy flow between two exchanges: without it, they take all processors from this test and others.
const REST: Duration = Duration::from_millis(15);
/// Limit of the server's bytes, in bytes per second, and those that may pass at once.
const RATE: u64 = 400_000;
const BURST: u64 = 1_000_000;

impl Kind {
    /// Returns the families of the client and the server.
    fn families(self) -> [Family; 2] {
        match self {
            Kind::SixToFour => [Family::V6, Family::V4],
            Kind::FourToSix => [Family::V4, Family::V6],
            _ => [Family::V4, Family::V4],
        }
    }

    fn port(self) -> u16 {
        8080 + self as u16
    }

    fn is_dormant(self) -> bool {
        matches!(
            self,
            Kind::Dormant | Kind::DataTrap | Kind::RatedDormant | Kind::FourToSix
        )
    }

    fn is_trapped(self) -> bool {
        matches!(self, Kind::BytesTrap | Kind::DataTrap)
    }

    fn is_rated(self) -> bool {
        matches!(self, Kind::Rated | Kind::RatedDormant)
    }
}

/// Flow under test.
struct Moved {
    kind: Kind,
    pair: Pair,
    /// Time at which the server began to use up its account, and the client's bytes then.
    spent: Option<(Instant, u64)>,
}

impl Moved {
    /// Exchanges bytes, and meets no trap.
    fn exchange(&mut self) {
        match self.kind {
            Kind::DataTrap => self.pair.exchange_unevenly(SOME, 0),
            _ => self.pair.exchange(SOME),
        }
    }

    /// Returns the client's address and the one that it connected to: flows to different ones may have the same port.
    fn ends(&self) -> (SocketAddr, SocketAddr) {
        let client = &self.pair.client.stream;
        (client.local_addr().unwrap(), client.peer_addr().unwrap())
    }

    /// Uses up what may pass at once.
    fn spend(&mut self) {
        if self.spent.is_none() {
            self.spent = Some((Instant::now(), self.pair.client.received()));
            self.pair.exchange_unevenly(0, BURST);
        }
    }

    /// Sends half a second's worth more than the account has, and checks that it took its time: without a limit, or with an
    /// account that began anew, it would pass at once.
    fn is_limited(&mut self) {
        let (since, before) = self.spent.expect("it was used up");
        let allowed = || BURST + (since.elapsed().as_secs_f64() * RATE as f64) as u64;
        let more = allowed() + RATE / 2 - (self.pair.client.received() - before);
        self.pair.exchange_unevenly(0, more);
        let passed = self.pair.client.received() - before;
        // A super-packet passes if the earlier ones owe no more than the burst.
        let allowed = allowed() + (64 << 10);
        assert!(passed <= allowed, "{passed} bytes, of {allowed}: {:?}", self.kind);
    }

    /// Sends beyond the trap.
    fn meet_trap(&mut self) {
        match self.kind {
            Kind::BytesTrap => self.pair.exchange_unevenly(BUDGET, SOME),
            _ => self.pair.exchange(SOME),
        }
    }
}

struct Lab {
    // Fields are dropped in this order: the daemon ends before its namespace.
    daemon: Daemon,
    /// Servers' sockets, of IPv4 and IPv6.
    servers: [TcpListener; 2],
    net: Line,
}

impl Lab {
    fn new(name: &str, more: impl FnOnce(Config, &Line) -> Config) -> Lab {
        // Build it before any flow waits for it.
        other_layout();
        let family = Family::V6;
        let net = veth_line(
            name,
            LineOptions {
                family,
                ..Default::default()
            },
        );
        let target = |family: Family| SocketAddr::from((family.addr(net.server_addr), 7000));
        let listen = |family| {
            net.server
                .run(|| TcpListener::bind(target(family)))
                .unwrap()
                .unwrap()
        };
        let servers = Family::BOTH.map(listen);
        let mut config = Config::new();
        for kind in KINDS {
            let [client, server] = kind.families();
            let front = SocketAddr::from((client.unspecified(), kind.port()));
            let detach = if kind.is_dormant() { "never" } else { "now" };
            config = config.listener(front, target(server), "now", detach);
            config = match kind {
                Kind::BytesTrap => config.with(&format!("unsplice = \"bytes=client:{BUDGET}\"")),
                Kind::DataTrap => config.with("unsplice = \"data=server\""),
                kind if kind.is_rated() => {
                    config.with(&format!("rate_limit = \"server={RATE}B/s,burst={BURST}B\""))
                }
                _ => config,
            };
        }
        let daemon = Daemon::of(&more(config, &net));
        Lab { daemon, servers, net }
    }

    /// Starts the daemon with the layout of the tests' own build, or with the other one.
    fn start(&mut self, other: bool) {
        self.choose(other);
        self.daemon.start(&self.net.forwarder);
    }

    fn choose(&mut self, other: bool) {
        self.daemon.use_binary(match other {
            true => other_layout(),
            false => binary(),
        });
    }

    fn connect(&self, kind: Kind) -> Moved {
        let [client, server] = kind.families();
        let front = SocketAddr::from((client.addr(self.net.forwarder_client_addr), kind.port()));
        let at = Family::BOTH.iter().position(|&family| family == server).unwrap();
        let pair = Pair::connect(&self.net.client, front, &self.servers[at]);
        let spent = None;
        Moved { kind, pair, spent }
    }

    /// Adds flows, up to so many of each kind, and waits until they are spliced.
    fn fill(&self, flows: &mut Vec<Moved>, many: impl Fn(Kind) -> usize) {
        let before = flows.len();
        for kind in KINDS {
            let present = flows.iter().filter(|flow| flow.kind == kind).count();
            flows.extend((present..many(kind)).map(|_| self.connect(kind)));
        }
        let new = &mut flows[before..];
        self.wait_states(new.iter(), |kind| match kind.is_dormant() {
            true => "dormant",
            false => "detached",
        });
        new.iter_mut().for_each(Moved::exchange);
    }

    /// Waits until each of these flows has the state of its kind.
    fn wait_states<'a>(
        &self,
        flows: impl Iterator<Item = &'a Moved> + Clone,
        state: impl Fn(Kind) -> &'static str,
    ) {
        soon("all flows to be spliced", || {
            let listed = self.daemon.flows().into_iter();
            let states: HashMap<_, String> = listed
                .map(|f| ((f.client.peer, f.client.local), f.state))
                .collect();
            let has = |flow: &Moved| states.get(&flow.ends()).map(String::as_str);
            flows.clone().all(|flow| has(flow) == Some(state(flow.kind)))
        });
    }

    /// Fails unless the daemon serves all these flows as detached ones, no other generation is left, the bytes go on, and
    /// each rate is in force.
    fn has_all(&self, flows: &mut [&mut Vec<Moved>]) {
        soon("the old generation to go", || {
            self.daemon.generations().len() == 1
        });
        self.wait_states(flows.iter().flat_map(|flows| flows.iter()), |_| "detached");
        for flows in &mut *flows {
            flows.iter_mut().for_each(Moved::exchange);
        }
        let all = flows.iter_mut().flat_map(|flows| flows.iter_mut());
        each(all.filter(|flow| flow.kind.is_rated()), Moved::is_limited);
    }

    /// Waits until so many flows have come back, and fails if more did.
    fn has_returned(&self, count: usize) {
        let status = self
            .daemon
            .wait_status("the returns", |s| s.resumed_total >= count as u64);
        assert_eq!(status.resumed_total, count as u64, "{status:?}");
    }
}

/// Does something with all these flows at the same time. Returns their number.
fn each<'a>(flows: impl IntoIterator<Item = &'a mut Moved>, work: fn(&mut Moved)) -> usize {
    thread::scope(|scope| {
        let begin = |flow| scope.spawn(move || work(flow));
        flows.into_iter().map(begin).collect::<Vec<_>>().len()
    })
}

fn rated(flows: &mut [Moved]) -> impl Iterator<Item = &mut Moved> {
    flows.iter_mut().filter(|flow| flow.kind.is_rated())
}

fn trapped(flows: &mut [Moved]) -> impl Iterator<Item = &mut Moved> {
    flows.iter_mut().filter(|flow| flow.kind.is_trapped())
}

/// Moves 200 flows forward and 200 back, each time over a SIGKILL. About a half of them ends in between and is replaced; the
/// rest is moved twice.
#[test]
fn flows_outlive_kills_between_two_layouts() {
    let mut lab = Lab::new("layouts-kill", |config, _| {
        config.with("[[rule]]\nname = \"all\"\nfrom_ports = \"7000\"\nspliced = true\naction = \"count\"")
    });
    lab.start(false);
    let mut busy = Vec::new();
    lab.fill(&mut busy, |kind| usize::from(BUSY.contains(&kind)));
    let mut staying = Vec::new();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for flow in &mut busy {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    flow.pair.exchange(100_000);
                    thread::sleep(REST);
                }
            });
        }
        // However this test ends, the transfers end, too.
        let _end = Raise(&over);
        for other in [true, false] {
            let (mut leaving, mut hasty) = (Vec::new(), Vec::new());
            lab.fill(&mut staying, |_| 13);
            lab.fill(&mut hasty, |kind| if kind.is_trapped() { 4 } else { 0 });
            lab.fill(&mut leaving, |kind| if kind.is_trapped() { 8 } else { 12 });
            let moved = staying.len() + leaving.len() + hasty.len();
            assert_eq!(moved, 200);
            each(rated(&mut staying).chain(rated(&mut leaving)), Moved::spend);
            // Those that ended before leave their records for a while.
            soon("the others to be gone", || {
                lab.daemon.flows().len() == moved + BUSY.len()
            });
            lab.daemon.kill();
            thread::scope(|scope| {
                // These meet their traps while there is no daemon.
                for flow in &mut hasty {
                    scope.spawn(|| flow.meet_trap());
                }
                lab.start(other);
            });
            // A predecessor of another layout is looked for beside all else.
            let all = moved + BUSY.len();
            soon("all flows to be adopted", || {
                lab.daemon.status().adopted_total as usize == all
            });
            lab.has_returned(hasty.len());
            lab.has_all(&mut [&mut staying, &mut leaving]);
            let [counted] = &lab.daemon.rules().rules[..] else {
                panic!("there is one rule");
            };
            let spliced = (all - hasty.len()) as u64;
            assert!(
                counted.flows >= spliced && counted.bytes >= spliced * SOME,
                "{counted:?}"
            );
            let met = each(trapped(&mut leaving), Moved::meet_trap);
            lab.has_returned(hasty.len() + met);
            if !other {
                let all = each(trapped(&mut staying), Moved::meet_trap);
                lab.has_returned(hasty.len() + met + all);
            }
            let mut ending = hasty.into_iter().chain(leaving);
            ending.by_ref().for_each(|mut flow| flow.pair.close());
        }
    });
    for mut flow in staying.into_iter().chain(busy) {
        flow.pair.close();
    }
    lab.daemon.wait_reaped();
}

/// Replaces daemons of the two builds by each other, while new connections come.
#[test]
fn replacements_between_two_layouts_refuse_and_reset_nothing() {
    const FRONT: u16 = 8090;
    const SERVER: u16 = 7001;
    let server = |net: &Line| SocketAddr::from((Family::V4.addr(net.server_addr), SERVER));
    let mut lab = Lab::new("layouts-replace", |config, net| {
        let listen = (Family::V4.unspecified(), FRONT).into();
        config.listener(listen, server(net), "now", "now")
    });
    lab.start(false);
    let target = lab.net.server.run(|| TcpListener::bind(server(&lab.net)));
    let front = (Family::V4.addr(lab.net.forwarder_client_addr), FRONT).into();
    let load = Load::start(&lab.net.client, front, target.unwrap().unwrap(), 4);
    let mut flows = Vec::new();
    for other in [true, false] {
        lab.fill(&mut flows, |_| 3);
        each(rated(&mut flows), Moved::spend);
        lab.choose(other);
        lab.daemon.replace(&lab.net.forwarder);
        flows.iter_mut().for_each(Moved::exchange);
        assert_eq!(lab.daemon.join_replaced(), [Some(0)]);
        lab.has_all(&mut [&mut flows]);
        let before = load.served();
        soon("the load to be served", || load.served() > before + 30);
        let met = each(trapped(&mut flows), Moved::meet_trap);
        lab.has_returned(met);
        trapped(&mut flows).for_each(|flow| flow.pair.close());
        flows.retain(|flow| !flow.kind.is_trapped());
    }
    let (served, errors) = load.end();
    assert!(errors.is_empty(), "of {served} connections: {errors:?}");
    flows.iter_mut().for_each(|flow| flow.pair.close());
    lab.daemon.wait_reaped();
}
