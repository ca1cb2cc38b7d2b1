//! An end that reads only after all its bytes are written, beside another one with next to no buffer: both directions
//! are full, and the pair comes back all the while. It never stalls.
//!
//! `LONGSPLICE_ECHOES` sets how often each condition is tried, with 20 MB each time; `make soak` does it a hundred
//! times.

use std::{
    env,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
};

use longsplice_lab::{Line, LineOptions, pattern::Pattern};
use longsplice_tests::{Bed, Config, Daemon, Policy, SOON, patient, veth_line};

/// `tcp_rmem` of the client.
const TINY: &str = "4096 8192 16384";

/// All kinds of conditions, near and far.
const CONDITIONS: [&str; 10] = [
    "data",
    "data=client",
    "data=server",
    "data=client:50kB,data=server:1kB",
    "bytes=client:100kB",
    "bytes=server:100kB",
    "bytes=server:1MiB",
    "bytes=client:300kB,bytes=server:200kB",
    "idle=5ms",
    "after=20ms",
];

fn with_tiny_client(name: &str) -> Line {
    let net = veth_line(name, LineOptions::default());
    net.client.sysctl("net.ipv4.tcp_rmem", TINY).unwrap();
    net
}

/// Echoes; reads on only when the last bytes are written.
fn echo(listener: &TcpListener, count: u64) {
    for _ in 0..count {
        let mut stream = listener.accept().unwrap().0;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let n = stream.read(&mut buffer).unwrap();
            if n == 0 {
                break;
            }
            stream.write_all(&buffer[..n]).unwrap();
        }
    }
}

/// Sends so many bytes, and reads them at the same time.
fn exchange(net: &Line, front: SocketAddr, bytes: u64, seed: u64, name: &str) {
    let stream = net.client.run(|| TcpStream::connect(front)).unwrap().unwrap();
    stream.set_read_timeout(Some(patient(SOON))).unwrap();
    let pattern = Pattern::new(seed);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0;
            while sent < bytes {
                let piece = pattern.at(sent, (bytes - sent) as usize);
                sent += (&stream).write(piece).unwrap() as u64;
            }
            stream.shutdown(Shutdown::Write).unwrap();
        });
        let (mut buffer, mut received) = (vec![0; 64 << 10], 0);
        loop {
            match (&stream).read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    assert_eq!(pattern.mismatch(received, &buffer[..n]), None, "{name}");
                    received += n as u64;
                }
                Err(error) => panic!("{name}: {error} after {received} bytes"),
            }
        }
        assert_eq!(received, bytes, "{name}");
    });
}

#[test]
fn an_echo_passes_whatever_brings_the_pair_back() {
    let soak = env::var("LONGSPLICE_ECHOES").map(|s| s.parse::<u64>().unwrap());
    let (count, bytes) = soak.map_or((1, 4 << 20), |count| (count, 20_000_000));
    let net = with_tiny_client("tb-echo");
    let target = SocketAddr::from((net.server_addr, 7000));
    let listener = net.server.run(|| TcpListener::bind(target)).unwrap().unwrap();
    let mut fronts = Vec::new();
    let mut config = Config::new();
    for unsplice in CONDITIONS {
        for detach in ["never", "now"] {
            let front = SocketAddr::from((net.forwarder_client_addr, 8080 + fronts.len() as u16));
            fronts.push((front, format!("{unsplice}, detach {detach}")));
            config = config
                .listener(front, target, "now", detach)
                .with(&format!("unsplice = \"{unsplice}\""));
        }
    }
    let mut daemon = Daemon::of(&config);
    daemon.start(&net.forwarder);
    thread::scope(|scope| {
        scope.spawn(|| echo(&listener, count * fronts.len() as u64));
        for round in 0..count {
            for (front, name) in &fronts {
                exchange(&net, *front, bytes, round + 1, name);
            }
        }
    });
    daemon.wait_reaped();
}

/// Runs a pair on which each end has sent more than the buffers hold before the server reads.
fn full(name: &str, policy: Policy<'_>, unsplice: &str, during: impl Fn(&Bed, u16)) {
    const MUCH: u64 = 12 << 20;
    let net = with_tiny_client(name);
    for key in ["tcp_rmem", "tcp_wmem"] {
        net.forwarder
            .sysctl(&format!("net.ipv4.{key}"), "4096 65536 262144")
            .unwrap();
    }
    let bed = Bed::on(net, policy, |c| match unsplice {
        "" => c,
        conditions => c.with(&format!("unsplice = \"{conditions}\"")),
    });
    let mut pair = bed.connect();
    let port = pair.client_port();
    if unsplice.is_empty() {
        // A splice cannot begin with both directions full.
        bed.daemon.wait_state(port, &["dormant", "detached"]);
    }
    let (client, server) = (pair.client.split(), pair.server.split());
    thread::scope(|scope| {
        scope.spawn(|| client.0.send(MUCH));
        scope.spawn(|| {
            server.0.send(MUCH);
            server.1.receive(MUCH);
        });
        during(&bed, port);
        client.1.receive(MUCH);
    });
    pair.close();
    bed.daemon.wait_reaped();
}

#[test]
fn a_server_reads_nothing_before_all_of_its_own_is_taken() {
    for policy in [Policy::DORMANT, Policy::DETACHED] {
        for unsplice in ["data=server", "bytes=server:100kB", "data"] {
            full("tb-full", policy, unsplice, |_, _| {});
        }
    }
}

#[test]
fn the_same_of_a_pair_that_is_asked_back() {
    for policy in [Policy::DORMANT, Policy::DETACHED] {
        full("tb-asked", policy, "", |bed, port| {
            let flow = bed.daemon.wait_state(port, &["dormant", "detached"]);
            bed.daemon.unsplice(flow.id).unwrap();
            bed.daemon.wait_state(port, &["relay", "undraining"]);
        });
    }
}
