//! Bytes between two sockets, in user space: the relay, and the delivery of old bytes during a drain.

use std::{cell::RefCell, io, net::Shutdown};

use longsplice_dataplane::Side;
use socket2::SockRef;
use tokio::net::TcpStream;

/// What one read may bring. One buffer for each thread: an idle connection holds none.
const BUFFER: usize = 256 << 10;

/// Reads in one direction before the other gets its turn.
const TURN: usize = 8;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// What has been read from one side and could not yet be written to the other.
#[derive(Debug, Default)]
struct Direction {
    held: Vec<u8>,
    written: usize,
    bytes: u64,
    eof: bool,
    shut: bool,
}

/// A pair of sockets and the bytes between them.
#[derive(Debug)]
pub(crate) struct Pump {
    sockets: [TcpStream; 2],
    directions: [Direction; 2],
}

/// Which of the ends broke the connection, and how.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) error: io::Error,
}

impl Pump {
    pub(crate) fn new(client: TcpStream, server: TcpStream) -> Pump {
        Pump {
            sockets: [client, server],
            directions: Default::default(),
        }
    }

    pub(crate) fn socket(&self, side: Side) -> &TcpStream {
        &self.sockets[side.index()]
    }

    pub(crate) fn into_sockets(self) -> [TcpStream; 2] {
        self.sockets
    }

    /// Payload bytes read from a side so far.
    pub(crate) fn bytes(&self, side: Side) -> u64 {
        self.directions[side.index()].bytes
    }

    /// Sequence numbers of a side that its socket gave to us so far: payload, and the FIN.
    pub(crate) fn consumed(&self, side: Side) -> u64 {
        let d = &self.directions[side.index()];
        d.bytes + u64::from(d.eof)
    }

    /// Bytes read from a side and not yet written to the other.
    pub(crate) fn held(&self, side: Side) -> usize {
        let d = &self.directions[side.index()];
        d.held.len() - d.written
    }

    /// A side has ended its stream, and we have read all of it.
    pub(crate) fn eof(&self, side: Side) -> bool {
        self.directions[side.index()].eof
    }

    /// The end of a side's stream has been passed on.
    pub(crate) fn passed_eof(&self, side: Side) -> bool {
        self.directions[side.index()].shut
    }

    /// Both streams have ended and are passed on.
    pub(crate) fn finished(&self) -> bool {
        self.directions.iter().all(|d| d.shut)
    }

    /// Moves what can be moved now; whether anything was.
    pub(crate) fn step(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        for side in Side::BOTH {
            moved |= self.step_side(side).map_err(|error| Broken { error })?;
        }
        Ok(moved)
    }

    fn step_side(&mut self, side: Side) -> io::Result<bool> {
        let from = &self.sockets[side.index()];
        let to = &self.sockets[side.other().index()];
        let d = &mut self.directions[side.index()];
        let mut moved = false;
        for _ in 0..TURN {
            if !d.flush(to, &mut moved)? || d.eof || !d.fill(from, to, &mut moved)? {
                break;
            }
        }
        if d.eof && d.held.is_empty() && !d.shut {
            d.shut = true;
            moved = true;
            match SockRef::from(to).shutdown(Shutdown::Write) {
                // The other end was reset meanwhile: its next read says so.
                Err(e) if e.kind() != io::ErrorKind::NotConnected => return Err(e),
                _ => {}
            }
        }
        Ok(moved)
    }

    /// Waits until a step can move something.
    pub(crate) async fn ready(&self) {
        let [client, server] = &self.sockets;
        let [up, down] = &self.directions;
        // An error makes a socket ready: the step that follows reports it.
        tokio::select! {
            _ = client.readable(), if up.wants_input() => {}
            _ = server.readable(), if down.wants_input() => {}
            _ = server.writable(), if !up.held.is_empty() => {}
            _ = client.writable(), if !down.held.is_empty() => {}
            () = std::future::pending() => {}
        }
    }
}

impl Direction {
    fn wants_input(&self) -> bool {
        !self.eof && self.held.is_empty()
    }

    /// Writes what is held; whether all of it went.
    fn flush(&mut self, to: &TcpStream, moved: &mut bool) -> io::Result<bool> {
        while self.written < self.held.len() {
            match to.try_write(&self.held[self.written..]) {
                Ok(n) => {
                    self.written += n;
                    *moved = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        // Given back, not kept: most connections hold nothing most of the time.
        self.held = Vec::new();
        self.written = 0;
        Ok(true)
    }

    /// Reads once and writes on; whether it is worth to try again.
    fn fill(&mut self, from: &TcpStream, to: &TcpStream, moved: &mut bool) -> io::Result<bool> {
        SCRATCH.with_borrow_mut(|buffer| {
            let n = match from.try_read(buffer) {
                Ok(0) => {
                    self.eof = true;
                    *moved = true;
                    return Ok(false);
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            };
            self.bytes += n as u64;
            *moved = true;
            let written = match to.try_write(&buffer[..n]) {
                Ok(w) => w,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
                Err(e) => return Err(e),
            };
            if written < n {
                self.held = buffer[written..n].to_vec();
            }
            Ok(written == n)
        })
    }
}
