//! Helpers of the privileged tests.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use longsplice_lab::{
    Emulated, Error, Family, Line, LineOptions, LinkReport, LinkSpec, MultiServer, MultiServerOptions,
    Namespace, cleanup,
};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use parking_lot::{Mutex, MutexGuard};

/// Makes a topology of veth pairs; a test without root fails with the reason.
pub(crate) fn veth_line(name: &str, options: LineOptions) -> Line {
    prepare();
    or_needs_root(Line::new(name, options))
}

/// Makes a topology of emulated links.
pub(crate) fn emulated(name: &str, client_link: LinkSpec, server_link: LinkSpec) -> Emulated {
    emulated_of(Family::V4, name, client_link, server_link)
}

/// Makes a topology of emulated links, known by the addresses of a family.
pub(crate) fn emulated_of(
    family: Family,
    name: &str,
    client_link: LinkSpec,
    server_link: LinkSpec,
) -> Emulated {
    prepare();
    or_needs_root(Emulated::of(family, name, client_link, server_link))
}

/// Makes a topology of emulated links given as text.
pub(crate) fn linked(name: &str, client_link: &str, server_link: &str) -> Emulated {
    emulated(name, client_link.parse().unwrap(), server_link.parse().unwrap())
}

/// Makes a topology with several servers.
pub(crate) fn multi_server(name: &str, options: MultiServerOptions) -> MultiServer {
    prepare();
    or_needs_root(MultiServer::new(name, options))
}

/// Makes a namespace.
pub(crate) fn namespace(prefix: &str) -> Namespace {
    prepare();
    or_needs_root(Namespace::new(prefix))
}

/// Makes an interrupted test leave nothing behind.
fn prepare() {
    cleanup::install().expect("signals can be caught");
}

/// Returns the value, or fails the test with the need for root.
fn or_needs_root<T>(result: Result<T, Error>) -> T {
    match result {
        Ok(value) => value,
        Err(Error::NeedsRoot) => panic!("this test needs root"),
        Err(error) => panic!("{error}"),
    }
}

/// Polls until `condition` holds, where no event announces it.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Serializes tests that look at the clock: each has the processors to itself, as far as this program goes.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// UDP sockets at the client and at the server, connected to each other, with room for many packets.
pub(crate) struct Udp {
    pub(crate) client: UdpSocket,
    pub(crate) server: UdpSocket,
}

impl Udp {
    pub(crate) fn new(net: &Emulated) -> Udp {
        let at = |namespace: &Namespace, addr: IpAddr| {
            let socket = namespace.run(|| UdpSocket::bind((addr, 0))).unwrap().unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            setsockopt(&socket, RcvBufForce, &(8 << 20)).unwrap();
            socket
        };
        let (client, server) = (at(&net.client, net.client_addr), at(&net.server, net.server_addr));
        let to = |socket: &UdpSocket| -> SocketAddr { socket.local_addr().unwrap() };
        client.connect(to(&server)).unwrap();
        server.connect(to(&client)).unwrap();
        Udp { client, server }
    }

    /// Sends packets numbered from 0 to the server, one right after the other, `len` bytes each, and waits until each
    /// has passed the client's link or been dropped there. Returns their numbers in the order of arrival, and the time
    /// between the first and the last arrival.
    pub(crate) fn send(&self, net: &Emulated, count: u32, len: usize) -> (Vec<u32>, Duration) {
        let (arrived, _) = self.send_timed(net, count, len);
        let times = [arrived.first(), arrived.last()].map(|one| one.map(|(_, at)| *at));
        let [Some(first), Some(last)] = times else {
            return (Vec::new(), Duration::ZERO);
        };
        (
            arrived.into_iter().map(|(number, _)| number).collect(),
            last - first,
        )
    }

    /// Sends as [`Udp::send`] does, at most `attempts` times, until a run counts whose sending took no longer than `within`: a
    /// sender that was preempted is no burst. Returns the numbers of that run, in the order of arrival.
    pub(crate) fn send_at_once(
        &self,
        net: &Emulated,
        count: u32,
        len: usize,
        within: Duration,
        attempts: usize,
    ) -> Vec<u32> {
        let run = || self.send_timed(net, count, len);
        let mut runs = (0..attempts).filter_map(|_| net.emulator().counted(1, run).ok());
        let (arrived, took) = runs
            .find(|(_, took)| *took <= within)
            .unwrap_or_else(|| panic!("{count} packets were never sent within {within:?}"));
        println!("{count} packets were sent in {took:?}");
        arrived.into_iter().map(|(number, _)| number).collect()
    }

    /// Sends as [`Udp::send`] does. Returns the numbers and times of arrival, and the time that sending took.
    fn send_timed(&self, net: &Emulated, count: u32, len: usize) -> (Vec<(u32, Instant)>, Duration) {
        let mut packet = vec![0; len];
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| self.receive_all(net, count));
            let start = Instant::now();
            for number in 0..count {
                packet[..4].copy_from_slice(&number.to_be_bytes());
                self.client.send(&packet).unwrap();
            }
            let took = start.elapsed();
            (receiver.join().unwrap(), took)
        })
    }

    /// Receives until all packets that the link delivered have arrived.
    fn receive_all(&self, net: &Emulated, count: u32) -> Vec<(u32, Instant)> {
        let mut arrived = Vec::new();
        let mut packet = [0; 2000];
        loop {
            let report = to_server(net);
            let known = report.forwarded + report.lost + report.dropped;
            let all = known == u64::from(count)
                && arrived.len() as u64 == report.forwarded + report.duplicated - report.corrupted;
            if all {
                return arrived;
            }
            if self.server.recv(&mut packet).is_err() {
                // The assertions of the caller report it.
                return arrived;
            }
            let number = u32::from_be_bytes(packet[..4].try_into().unwrap());
            arrived.push((number, Instant::now()));
        }
    }
}

/// Returns the report of the client's link on packets to the server.
pub(crate) fn to_server(net: &Emulated) -> longsplice_lab::Report {
    let [LinkReport { to_server, .. }, _] = net.link_reports().try_into().unwrap();
    to_server
}
