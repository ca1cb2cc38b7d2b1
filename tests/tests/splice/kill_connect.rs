//! The daemon dies by SIGKILL while it connects to servers: the kernel finishes a handshake by itself, and a server
//! must not mistake the end of a killed daemon for that of a client that was done.
//!
//! `LONGSPLICE_CYCLES` sets the number of kills (`make soak`).

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use longsplice_lab::{Line, Namespace};
use longsplice_tests::{Config, Daemon, SOON, patient, rng, soon, times, veth_line};
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

/// States of `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
const SYN_SENT: &str = "02";

/// Returns the addresses of the server and of the daemon.
fn places(net: &Line) -> (SocketAddr, SocketAddr) {
    let front = (net.forwarder_client_addr, 8080).into();
    ((net.server_addr, 7000).into(), front)
}

/// Returns the number of sockets of a namespace that are in this state toward a port.
fn toward(namespace: &Namespace, port: u16, state: &str) -> usize {
    let lists = namespace.run(|| {
        let list = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        list("tcp").unwrap_or_default() + &list("tcp6").unwrap_or_default()
    });
    let port = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let mut words = line.split_whitespace().skip(2);
        words.next().is_some_and(|peer| peer.ends_with(&port)) && words.next() == Some(state)
    };
    lists.unwrap().lines().filter(is_one).count()
}

/// Listens with room for so many connections and one more.
fn listen(namespace: &Namespace, at: SocketAddr, room: i32) -> TcpListener {
    let listen = || {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        socket.listen(room)?;
        Ok::<_, std::io::Error>(socket.into())
    };
    namespace.run(listen).unwrap().unwrap()
}

/// Reads a connection to its end; returns the number of bytes, and the error that ended it.
fn end_of(mut server: TcpStream) -> (usize, Option<ErrorKind>) {
    server.set_read_timeout(Some(patient(SOON))).unwrap();
    let (mut space, mut bytes) = ([0; 4096], 0);
    loop {
        match server.read(&mut space) {
            Ok(0) => return (bytes, None),
            Ok(n) => bytes += n,
            Err(e) => return (bytes, Some(e.kind())),
        }
    }
}

/// Lets the kernel finish a connection of a stopped daemon, and kills the daemon. The server has no room for another
/// connection, so the daemon's SYN stays unanswered. The daemon is stopped, and the server makes room: the SYN that the
/// kernel repeats is answered, and the connection comes up without the daemon.
fn dies_before_it_hears(splice: &'static str, more: impl FnOnce(Config) -> Config) {
    let net = veth_line("kill-syn", Default::default());
    let (target, front) = places(&net);
    let mut daemon = Daemon::of(&more(Config::new().listener(front, target, splice, "now")));
    daemon.start(&net.forwarder);
    let listener = listen(&net.server, target, 0);
    let filler = net.server.run(|| TcpStream::connect(target)).unwrap().unwrap();
    let mut client = net.client.run(|| TcpStream::connect(front)).unwrap().unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")
        .unwrap();
    soon("a SYN of the daemon", || {
        toward(&net.forwarder, target.port(), SYN_SENT) == 1
    });
    daemon.signal(Signal::STOP);
    drop((filler, listener.accept().unwrap()));
    soon("its connection", || {
        toward(&net.forwarder, target.port(), ESTABLISHED) == 1
    });
    daemon.kill();
    let end = end_of(listener.accept().unwrap().0);
    assert_eq!(end, (0, Some(ErrorKind::ConnectionReset)), "{splice}");
}

#[test]
fn a_connection_that_came_up_unheard_is_reset() {
    dies_before_it_hears("never", |c| c);
    dies_before_it_hears("now", |c| c);
}

#[test]
fn one_of_http_too() {
    dies_before_it_hears("auto", |c| c.with("protocol = \"http\""));
}

/// Persistent clients connect and send, all at once; the daemon dies meanwhile.
#[test]
fn no_server_sees_an_end_in_order_of_clients_that_stay() {
    const CLIENTS: usize = 8;
    const EACH: usize = 25;
    let kills = times("LONGSPLICE_CYCLES", 3);
    let mut rng = rng();
    let net = veth_line("kill-many", Default::default());
    let (target, front) = places(&net);
    let mut daemon = Daemon::of(&Config::new().listener(front, target, "never", "now"));
    daemon.start(&net.forwarder);
    let listener = listen(&net.server, target, 4096);
    let (mut seen, mut empty) = (0, 0);
    for kill in 0..kills {
        let delay = Duration::from_micros(rng.u64(0..30_000));
        let clients = thread::scope(|scope| {
            let connect = || {
                let one = || {
                    let mut client = TcpStream::connect(front)?;
                    client.write_all(b"x")?;
                    Ok::<_, std::io::Error>(client)
                };
                let all = || (0..EACH).map_while(|_| one().ok()).collect::<Vec<_>>();
                net.client.run(all).unwrap()
            };
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(connect)).collect();
            thread::sleep(delay);
            daemon.kill();
            clients.into_iter().map(|c| c.join().unwrap()).collect::<Vec<_>>()
        });
        listener.set_nonblocking(true).unwrap();
        while let Ok((server, _)) = listener.accept() {
            server.set_nonblocking(false).unwrap();
            let (bytes, error) = end_of(server);
            seen += 1;
            empty += u32::from(bytes == 0);
            assert_eq!(
                error,
                Some(ErrorKind::ConnectionReset),
                "kill {kill}, after {bytes} bytes"
            );
        }
        drop(clients);
        daemon.start(&net.forwarder);
    }
    eprintln!("{kills} kills: {seen} connections at the server, {empty} of them without a byte");
}
