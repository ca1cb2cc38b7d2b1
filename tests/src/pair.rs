//! Connection through the daemon, of which the test itself holds both ends, step by step.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use longsplice_engine::Side;
use longsplice_lab::{Namespace, pattern::Pattern};
use longsplice_repair::tcp_info;
use socket2::SockRef;

use crate::{SOON, accept, patient};

/// End of a connection: it sends a pattern, and compares the bytes that it receives with the other end's.
#[derive(Debug)]
pub struct End {
    /// Socket.
    pub stream: TcpStream,
    out: Pattern,
    sent: u64,
    expected: Pattern,
    received: u64,
}

/// Both ends of a connection through the daemon.
#[derive(Debug)]
pub struct Pair {
    /// Far end of leg A.
    pub client: End,
    /// Far end of leg B.
    pub server: End,
}

impl Pair {
    /// Connects from `namespace` to `front`, and accepts the daemon's connection at `listener`.
    pub fn connect(namespace: &Namespace, front: SocketAddr, listener: &TcpListener) -> Pair {
        let client = namespace
            .run(|| TcpStream::connect_timeout(&front, patient(SOON)))
            .unwrap()
            .unwrap_or_else(|e| panic!("cannot connect to {front}: {e}"));
        Pair::accept(client, listener)
    }

    /// Accepts at `listener` the connection that the daemon makes on behalf of `client`.
    pub fn accept(client: TcpStream, listener: &TcpListener) -> Pair {
        Pair::of(client, accept(listener))
    }

    /// Creates a pair of two sockets whose connections are joined in the middle.
    pub fn of(client: TcpStream, server: TcpStream) -> Pair {
        static SEED: AtomicU64 = AtomicU64::new(1);
        let seed = SEED.fetch_add(2, Ordering::Relaxed);
        let (to_server, to_client) = (Pattern::new(seed), Pattern::new(seed + 1));
        Pair {
            client: End::new(client, to_server, to_client),
            server: End::new(server, to_client, to_server),
        }
    }

    /// Returns the end of a side, and the other one.
    pub fn ends(&mut self, side: Side) -> [&mut End; 2] {
        match side {
            Side::Client => [&mut self.client, &mut self.server],
            Side::Server => [&mut self.server, &mut self.client],
        }
    }

    /// Returns the client's port, which identifies the flow.
    pub fn client_port(&self) -> u16 {
        self.client.stream.local_addr().unwrap().port()
    }

    /// Returns the port from which the daemon connected to the server.
    pub fn source_port(&self) -> u16 {
        self.server.stream.peer_addr().unwrap().port()
    }

    /// Returns the number of segments of both ends known to be lost ([`End::lost`]).
    pub fn lost(&self) -> u32 {
        self.client.lost() + self.server.lost()
    }

    /// Sends so many bytes in each direction at the same time, and checks them.
    pub fn exchange(&mut self, bytes: u64) {
        self.exchange_unevenly(bytes, bytes);
    }

    /// Sends a different number of bytes in each direction at the same time, and checks them.
    pub fn exchange_unevenly(&mut self, to_server: u64, to_client: u64) {
        let (client, server) = (self.client.split(), self.server.split());
        thread::scope(|scope| {
            scope.spawn(|| client.0.send(to_server));
            scope.spawn(|| server.0.send(to_client));
            scope.spawn(|| client.1.receive(to_client));
            server.1.receive(to_server);
        });
    }

    /// Closes both ends, the client first; each receives the other's FIN.
    pub fn close(&mut self) {
        self.client.finish();
        self.server.expect_end();
        self.server.finish();
        self.client.expect_end();
    }
}

/// Sending half of an end.
#[derive(Debug)]
pub struct Sender<'a> {
    stream: &'a TcpStream,
    pattern: Pattern,
    sent: &'a mut u64,
}

/// Receiving half of an end.
#[derive(Debug)]
pub struct Receiver<'a> {
    stream: &'a TcpStream,
    pattern: Pattern,
    received: &'a mut u64,
}

impl Sender<'_> {
    /// Sends so many bytes.
    pub fn send(self, bytes: u64) {
        let until = *self.sent + bytes;
        while *self.sent < until {
            let piece = self.pattern.at(*self.sent, (until - *self.sent) as usize);
            let mut stream = self.stream;
            let n = stream
                .write(piece)
                .unwrap_or_else(|e| panic!("cannot send after {} bytes: {e}", self.sent));
            *self.sent += n as u64;
        }
    }

    /// Sends until the socket takes no more for `quiet`, and returns the number of bytes.
    pub fn fill(self, quiet: Duration) -> u64 {
        let before = *self.sent;
        self.stream.set_nonblocking(true).unwrap();
        let mut moved = Instant::now();
        while moved.elapsed() < quiet {
            let mut stream = self.stream;
            match stream.write(self.pattern.at(*self.sent, 64 << 10)) {
                Ok(n) => {
                    *self.sent += n as u64;
                    moved = Instant::now();
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(2)),
                Err(e) => panic!("cannot send after {} bytes: {e}", self.sent),
            }
        }
        self.stream.set_nonblocking(false).unwrap();
        *self.sent - before
    }
}

impl Receiver<'_> {
    /// Receives so many bytes, and compares them.
    pub fn receive(self, bytes: u64) {
        self.receive_slowly(bytes, None);
    }

    /// Receives so many bytes at so many bytes per second, and compares them.
    pub fn receive_slowly(self, bytes: u64, rate: Option<u64>) {
        let (start, before) = (Instant::now(), *self.received);
        let until = before + bytes;
        let mut buffer = vec![0; 64 << 10];
        while *self.received < until {
            let most = buffer.len().min((until - *self.received) as usize);
            let mut stream = self.stream;
            let n = match stream.read(&mut buffer[..most]) {
                Ok(0) => panic!("the stream ended after {} bytes, of {until}", self.received),
                Ok(n) => n,
                // A machine that was stopped for a while interrupts calls with a limit of time (signal(7)).
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => panic!("cannot receive after {} bytes, of {until}: {e}", self.received),
            };
            if let Some(at) = self.pattern.mismatch(*self.received, &buffer[..n]) {
                panic!("the byte at {} is wrong", *self.received + at as u64);
            }
            *self.received += n as u64;
            if let Some(rate) = rate {
                let due = Duration::from_secs_f64((*self.received - before) as f64 / rate as f64);
                thread::sleep(due.saturating_sub(start.elapsed()));
            }
        }
    }
}

impl End {
    fn new(stream: TcpStream, out: Pattern, expected: Pattern) -> End {
        stream.set_read_timeout(Some(patient(SOON))).unwrap();
        stream.set_write_timeout(Some(patient(SOON))).unwrap();
        stream.set_nodelay(true).unwrap();
        End {
            stream,
            out,
            sent: 0,
            expected,
            received: 0,
        }
    }

    /// Returns its two halves, for two threads.
    pub fn split(&mut self) -> (Sender<'_>, Receiver<'_>) {
        let sender = Sender {
            stream: &self.stream,
            pattern: self.out,
            sent: &mut self.sent,
        };
        let receiver = Receiver {
            stream: &self.stream,
            pattern: self.expected,
            received: &mut self.received,
        };
        (sender, receiver)
    }

    /// Sends so many bytes.
    pub fn send(&mut self, bytes: u64) {
        self.split().0.send(bytes);
    }

    /// Sends until the socket takes no more; see [`Sender::fill`].
    pub fn fill(&mut self) -> u64 {
        self.split().0.fill(Duration::from_millis(300))
    }

    /// Receives so many bytes, and compares them.
    pub fn receive(&mut self, bytes: u64) {
        self.split().1.receive(bytes);
    }

    /// Sends its FIN.
    pub fn finish(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Expects the FIN of the other end, and not a byte more.
    pub fn expect_end(&mut self) {
        match self.read_one() {
            Ok(0) => {}
            Ok(_) => panic!("more than {} bytes came", self.received),
            Err(e) => panic!("no end in order after {} bytes: {e}", self.received),
        }
    }

    /// Expects a reset within `limit`; bytes before it are compared. Returns the number of all bytes that came.
    pub fn expect_reset(&mut self, limit: Duration) -> u64 {
        self.stream.set_read_timeout(Some(patient(limit))).unwrap();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let mut stream = &self.stream;
            match stream.read(&mut buffer) {
                Ok(0) => panic!(
                    "an end in order, after {} bytes, where a reset was due",
                    self.received
                ),
                Ok(n) => {
                    let wrong = self.expected.mismatch(self.received, &buffer[..n]);
                    assert_eq!(wrong, None, "after {} bytes", self.received);
                    self.received += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return self.received,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => panic!("no reset within {limit:?}, after {} bytes: {e}", self.received),
            }
        }
    }

    /// Closes the socket with a reset.
    pub fn reset(self) {
        SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }

    fn read_one(&self) -> io::Result<usize> {
        let mut stream = &self.stream;
        stream.read(&mut [0])
    }

    /// Checks bytes of this end that another reader received, right behind those received before, and counts them as
    /// received by the other end.
    pub fn vouch(&mut self, bytes: &[u8]) {
        let wrong = self.expected.mismatch(self.received, bytes);
        assert_eq!(wrong, None, "{} bytes after {} bytes", bytes.len(), self.received);
        self.received += bytes.len() as u64;
    }

    /// Returns the total number of bytes that have reached the socket.
    pub fn arrived(&self) -> u64 {
        tcp_info(&self.stream).unwrap().bytes_received()
    }

    /// Returns the number of segments that the socket has retransmitted.
    pub fn sent_again(&self) -> u32 {
        tcp_info(&self.stream).unwrap().total_retrans()
    }

    /// Returns the number of retransmitted segments known to be lost. On a busy machine some are retransmitted
    /// needlessly, and the other end reports that a moment later: so this number may fall.
    pub fn lost(&self) -> u32 {
        tcp_info(&self.stream).unwrap().total_lost()
    }

    /// Returns the number of bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}
