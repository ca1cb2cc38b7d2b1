//! Makes connections, with a handshake or without, and carries traffic between two sockets, compared byte by byte.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use longsplice_core::seq::Seq;
use longsplice_repair::{
    Image, ImageOptions, Window, canonical, close_silently, probe_repair, thaw, unacknowledged, unread,
};

/// Time within which an event must happen, or the test fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn need_privilege() {
    if let Err(e) = probe_repair() {
        panic!("this test needs CAP_NET_ADMIN (run it as root): {e}");
    }
}

/// Loopback addresses for tests that could fail differently by family: IPv4, IPv6, and IPv4 over IPv6 sockets.
pub(crate) const LOOPBACKS: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
    IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped()),
];

/// Makes the two ends of a connection, the connecting one first.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    pair_at(LOOPBACKS[0])
}

/// Makes a connection at each of [`LOOPBACKS`].
pub(crate) fn pairs() -> impl Iterator<Item = (TcpStream, TcpStream)> {
    LOOPBACKS
        .into_iter()
        .inspect(|ip| println!("at {ip}"))
        .map(pair_at)
}

fn pair_at(ip: IpAddr) -> (TcpStream, TcpStream) {
    pair_of(&TcpListener::bind((ip, 0)).unwrap())
}

/// Makes a connection to the given listener, the connecting end first.
pub(crate) fn pair_of(listener: &TcpListener) -> (TcpStream, TcpStream) {
    need_privilege();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Images of both ends of a connection that never existed. A test may change them before they are thawed apart.
pub(crate) struct Made {
    pub(crate) a: Image,
    pub(crate) b: Image,
}

impl Made {
    /// Makes images of which A sends from sequence number `a`, B from `b`; both have promised `window` bytes.
    pub(crate) fn new(a: u32, b: u32, window: u32) -> Made {
        need_privilege();
        Made::at(Ipv4Addr::LOCALHOST.into(), a, b, window)
    }

    /// Makes such images on an address of this host.
    pub(crate) fn at(ip: IpAddr, a: u32, b: u32, window: u32) -> Made {
        let [first, second] = free_ports(ip);
        let image = |local, peer, send_next, receive_next| Image {
            local,
            peer,
            send_next,
            receive_next,
            options: ImageOptions {
                mss: 1460,
                send_scale: 9,
                receive_scale: 9,
                sack: true,
                timestamps: true,
            },
            timestamp_clock: 4_000_000,
            window: Window {
                send: window,
                send_wl1: receive_next,
                largest: window,
                receive: window,
            },
        };
        Made {
            a: image(first, second, Seq::new(a), Seq::new(b)),
            b: image(second, first, Seq::new(b), Seq::new(a)),
        }
    }

    pub(crate) fn thaw(&self) -> (TcpStream, TcpStream) {
        (thawed(&self.a), thawed(&self.b))
    }
}

/// Returns two addresses with different ports that are free.
fn free_ports(ip: IpAddr) -> [SocketAddr; 2] {
    // Both are bound at the same time, or the second port could be the first one.
    let both = [(); 2].map(|()| TcpListener::bind((ip, 0)).unwrap());
    both.each_ref().map(|listener| listener.local_addr().unwrap())
}

/// Builds the socket of an image and makes it blocking.
pub(crate) fn thawed(image: &Image) -> TcpStream {
    let socket = TcpStream::from(thaw(image).unwrap());
    socket.set_nonblocking(false).unwrap();
    socket
}

/// Closes a socket silently and builds it again.
pub(crate) fn replaced(socket: TcpStream) -> TcpStream {
    let image = Image::of(&socket).unwrap();
    let was = [socket.local_addr().unwrap(), socket.peer_addr().unwrap()];
    close_silently(socket.into()).unwrap();
    let thawed = thawed(&image);
    let is = [thawed.local_addr().unwrap(), thawed.peer_addr().unwrap()];
    assert_eq!(is, was.map(canonical));
    thawed
}

/// Generator of numbers that look random (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        println!("seed {seed}");
        Random(seed)
    }

    /// Returns a number from 0 to `end`, exclusively.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32 % end
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// Sends bytes from one end to the other, and checks that they arrive.
pub(crate) fn carry(from: &TcpStream, to: &TcpStream, bytes: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| write(from, bytes));
        expect(to, bytes);
    });
}

/// Writes bytes, for as long as a test may take.
pub(crate) fn write(mut to: &TcpStream, mut bytes: &[u8]) {
    let end = Instant::now() + PATIENCE;
    to.set_write_timeout(Some(PATIENCE)).unwrap();
    while !bytes.is_empty() {
        let n = to.write(bytes).unwrap();
        bytes = &bytes[n..];
        assert!(Instant::now() < end, "{} bytes were not taken", bytes.len());
    }
}

/// Checks that these bytes arrive, and no more of them are there.
pub(crate) fn expect(mut from: &TcpStream, bytes: &[u8]) {
    let end = Instant::now() + PATIENCE;
    from.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut got = vec![0; bytes.len()];
    let mut len = 0;
    while len < got.len() {
        match from.read(&mut got[len..]) {
            Ok(n @ 1..) if Instant::now() < end => len += n,
            other => panic!("{len} of {} bytes came, then {other:?}", got.len()),
        }
    }
    // Avoid assert_eq, which would print the bytes.
    assert!(got == bytes, "other bytes arrived than were sent");
    assert_eq!(unread(from).unwrap(), 0);
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until all written bytes are acknowledged.
pub(crate) fn settle(sockets: [&TcpStream; 2]) {
    for socket in sockets {
        until("acknowledged", || unacknowledged(socket).unwrap() == 0);
    }
}

/// Returns the state of the socket with these ports in the kernel's tables, in hex as `/proc/net/tcp` has it.
pub(crate) fn kernel_state(local: SocketAddr, remote: SocketAddr) -> Option<String> {
    let (local, remote) = (
        format!(":{:04X}", local.port()),
        format!(":{:04X}", remote.port()),
    );
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap());
    tables.iter().flat_map(|table| table.lines()).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let found = words.next()?.ends_with(&local) && words.next()?.ends_with(&remote);
        found.then(|| words.next().map(str::to_owned)).flatten()
    })
}
