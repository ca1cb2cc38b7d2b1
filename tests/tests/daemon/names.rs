//! A name server that keeps silent: the names of targets are looked up beside everything else. What needs no name is served
//! meanwhile, and what needs one, once it has an address.

use std::{
    fs,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
};

use longsplice_lab::{Line, LineOptions};
use longsplice_repair::tcp_info;
use longsplice_tests::{Config, Daemon, Pair, SOON, eventually, soon, veth_line};

/// Listeners with a name, and the first one's port. The look-ups of so many, one after another, outlast all that a test
/// waits for.
const NAMED: u16 = 5;
const NAMED_PORT: u16 = 8090;
/// Port of a listener whose target is an address.
const PLAIN_PORT: u16 = 8081;
const TARGET_PORT: u16 = 7000;
/// MTU of the client's link and of the server's, in bytes.
const LONG: u16 = 9000;
const SHORT: u16 = 1500;

/// Name server of a test, which answers only when it is told to.
struct NameServer(UdpSocket);

impl NameServer {
    fn new(net: &Line) -> NameServer {
        let socket = net.forwarder.run(|| UdpSocket::bind("127.0.0.1:53"));
        let socket = socket.unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        NameServer(socket)
    }

    /// Waits for a question.
    fn question(&self) -> (Vec<u8>, SocketAddr) {
        eventually("a question", SOON, || self.next())
    }

    fn next(&self) -> Option<(Vec<u8>, SocketAddr)> {
        let mut packet = [0; 512];
        let (len, from) = self.0.recv_from(&mut packet).ok()?;
        Some((packet[..len].to_vec(), from))
    }

    /// Answers all questions by now.
    fn answer_all(&self, address: IpAddr) {
        while let Some((packet, from)) = self.next() {
            self.0.send_to(&answer(packet, address), from).unwrap();
        }
    }
}

/// Returns the answer to a question (RFC 1035 section 4.1): this address, or that there is none of the other family.
fn answer(mut packet: Vec<u8>, address: IpAddr) -> Vec<u8> {
    let (kind, octets) = match address {
        IpAddr::V4(v4) => (1, v4.octets().to_vec()),
        IpAddr::V6(v6) => (28, v6.octets().to_vec()),
    };
    // Keep the question, and drop what follows it (EDNS).
    let name = packet[12..].iter().position(|&byte| byte == 0).unwrap();
    packet.truncate(12 + name + 5);
    let is_asked = packet[12 + name + 2] == kind;
    packet[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_asked), 0, 0, 0, 0]);
    if is_asked {
        // The name of the question, the class IN, valid for a minute.
        packet.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, octets.len() as u8]);
        packet.extend(octets);
    }
    packet
}

/// Makes a daemon ask the name server of the test, and no other one.
fn asking(daemon: Daemon) -> Daemon {
    let dir = daemon.dir();
    let [resolv, switch] = ["resolv.conf", "nsswitch.conf"].map(|name| dir.join(name));
    fs::write(&resolv, "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n").unwrap();
    fs::write(&switch, "hosts: files dns\n").unwrap();
    let (resolv, switch) = (resolv.display(), switch.display());
    let script = format!(
        "mount --bind {resolv} /etc/resolv.conf && mount --bind {switch} /etc/nsswitch.conf && exec \"$@\""
    );
    daemon.under(&["unshare", "--mount", "sh", "-c", &script, "sh"])
}

fn named(net: &Line, config: Config, port: u16) -> Config {
    let listen = SocketAddr::from((net.family().unspecified(), port));
    config.with(&format!(
        "[[listener]]\nlisten = \"{listen}\"\nto = \"slow.example:{TARGET_PORT}\"\nsplice = \"now\"\ndetach = \"now\""
    ))
}

/// Adds the listeners with a name, and then one with an address.
fn slow(net: &Line) -> Config {
    let plain = SocketAddr::from((net.family().unspecified(), PLAIN_PORT));
    let target = SocketAddr::from((net.server_addr, TARGET_PORT));
    (NAMED_PORT..NAMED_PORT + NAMED)
        .fold(Config::new(), |config, port| named(net, config, port))
        .listener(plain, target, "now", "now")
}

/// Daemon that asks the name server, and a server.
struct Lab {
    daemon: Daemon,
    names: NameServer,
    listener: TcpListener,
    net: Line,
}

impl Lab {
    fn new(name: &str, config: impl FnOnce(&Line) -> Config) -> Lab {
        let options = LineOptions {
            mtu_client: LONG,
            mtu_server: SHORT,
            ..Default::default()
        };
        let net = veth_line(name, options);
        let target = SocketAddr::from((net.server_addr, TARGET_PORT));
        let listener = net.server.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let names = NameServer::new(&net);
        let mut daemon = asking(Daemon::of(&config(&net)));
        daemon.start(&net.forwarder);
        Lab {
            daemon,
            names,
            listener,
            net,
        }
    }

    fn front(&self, port: u16) -> SocketAddr {
        (self.net.forwarder_client_addr, port).into()
    }

    /// Checks that a look-up waits for its answer, that the first connection of the listener with an address is spliced
    /// (its client was told of the server's short segments), and that the daemon obeys.
    fn goes_on(mut self) {
        self.names.question();
        let mut pair = Pair::connect(&self.net.client, self.front(PLAIN_PORT), &self.listener);
        self.daemon.wait_state(pair.client_port(), &["detached"]);
        pair.exchange(10_000);
        pair.close();
        self.daemon.reload().unwrap();
        self.daemon.terminate();
        assert_eq!(self.daemon.join(), Some(0));
    }
}

#[test]
fn a_start_does_not_wait_for_names() {
    Lab::new("names-start", slow).goes_on();
}

#[test]
fn a_reload_does_not_wait_for_names() {
    let lab = Lab::new("names-reload", |net| {
        let listen = SocketAddr::from((net.family().unspecified(), 8080));
        let target = SocketAddr::from((net.server_addr, TARGET_PORT));
        Config::new().listener(listen, target, "now", "now")
    });
    lab.daemon.change(&slow(&lab.net)).unwrap();
    lab.goes_on();
}

#[test]
fn a_listener_is_prepared_once_the_name_has_an_address() {
    let lab = Lab::new("names-late", |net| named(net, Config::new(), NAMED_PORT));
    let front = lab.front(NAMED_PORT);
    soon("a client that is told of the server's short segments", || {
        lab.names.answer_all(lab.net.server_addr);
        let client = lab.net.client.run(|| TcpStream::connect(front)).unwrap().unwrap();
        tcp_info(&client).unwrap().snd_mss() < u32::from(SHORT)
    });
}
