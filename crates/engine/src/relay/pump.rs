//! Moves bytes between two sockets, in user space: the relay, and the delivery of old bytes during a drain.

mod direction;

use std::{future::poll_fn, io, net::Shutdown, pin::Pin, task::Poll};

use futures_util::FutureExt;
use longsplice_dataplane::{PerSide, Side};
use longsplice_repair::options;
use socket2::SockRef;
use tokio::{
    io::{Interest, Ready},
    net::TcpStream,
};

use direction::Direction;

/// Reads in one direction before the other gets its turn: they take bytes that come meanwhile, too.
pub(crate) const TURN: usize = 8;

/// Holds a pair of sockets and the bytes between them.
#[derive(Debug)]
pub(crate) struct Pump {
    /// Both sockets; `None` while the pair is detached.
    sockets: Option<PerSide<TcpStream>>,
    directions: PerSide<Direction>,
}

/// Error of an end that broke the connection.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) error: io::Error,
}

impl Pump {
    pub(crate) fn new(client: TcpStream, server: TcpStream) -> Pump {
        Pump {
            sockets: Some(PerSide { client, server }),
            directions: Default::default(),
        }
    }

    fn sockets(&self) -> &PerSide<TcpStream> {
        self.sockets
            .as_ref()
            .expect("a detached pair is not asked for its sockets")
    }

    pub(crate) fn socket(&self, side: Side) -> &TcpStream {
        &self.sockets()[side]
    }

    /// Takes the sockets of a pair whose pump has finished or pauses.
    pub(crate) fn take_sockets(&mut self) -> PerSide<TcpStream> {
        self.sockets.take().expect("they are taken once")
    }

    /// Continues with new sockets of the same connections, in an unknown state.
    pub(crate) fn put_sockets(&mut self, sockets: PerSide<TcpStream>) {
        self.sockets = Some(sockets);
        for d in &mut self.directions {
            d.eof = false;
            d.shut = false;
            d.stopped = false;
            d.bounded = false;
            d.blocked = false;
            d.known_room = 0;
            d.fresh = true;
        }
    }

    /// Returns the payload bytes read from a side so far.
    pub(crate) fn bytes(&self, side: Side) -> u64 {
        self.directions[side].bytes
    }

    /// Returns the sequence numbers of a side that its socket has handed over so far: payload, and the FIN.
    pub(crate) fn consumed(&self, side: Side) -> u64 {
        let d = &self.directions[side];
        d.bytes + u64::from(d.eof)
    }

    /// Returns the bytes read from a side and not yet written to the other.
    pub(crate) fn held(&self, side: Side) -> usize {
        let d = &self.directions[side];
        d.held.len() - d.written
    }

    /// Returns true if a side has ended its stream, and all of it was read.
    pub(crate) fn eof(&self, side: Side) -> bool {
        self.directions[side].eof
    }

    /// Returns true if the end of a side's stream has been passed on.
    pub(crate) fn passed_eof(&self, side: Side) -> bool {
        self.directions[side].shut
    }

    /// Returns true if both streams have ended and are passed on.
    pub(crate) fn finished(&self) -> bool {
        self.directions.iter().all(|d| d.shut)
    }

    /// Limits the payload bytes that are read from a side, counted from the beginning. The end of its stream passes.
    pub(crate) fn set_limit(&mut self, side: Side, limit: Option<u64>) {
        let d = &mut self.directions[side];
        if d.limit != limit {
            d.limit = limit;
            d.stopped = false;
        }
    }

    /// Leaves everything behind so many bytes of a side to the caller, even an end of the stream there.
    pub(crate) fn set_end(&mut self, side: Side, end: Option<u64>) {
        self.directions[side].end = end;
    }

    /// Leaves bytes in their socket from now on if the other one has no room for them. So a direction can stop at any
    /// byte, whatever the other one does. Bytes held here would wait for an end that may itself wait until it is read
    /// from.
    pub(crate) fn hold_nothing(&mut self) {
        for d in &mut self.directions {
            d.peeks = true;
        }
    }

    /// Limits the payload bytes that are read from a side from now on. At zero it is not even looked at.
    pub(crate) fn set_allowance(&mut self, side: Side, bytes: u64) {
        self.directions[side].allowance = Some(bytes);
    }

    /// Limits the bytes of a side that wait in the other socket to be sent for the first time. No error is known for a
    /// TCP socket.
    pub(crate) fn limit_unsent(&mut self, side: Side, bytes: u32) -> io::Result<()> {
        let d = &mut self.directions[side];
        if d.unsent_limit != Some(bytes) {
            d.unsent_limit = Some(bytes);
            d.bounded = true;
            d.known_room = 0;
            options::set_notsent_lowat(self.socket(side.other()), bytes)?;
        }
        Ok(())
    }

    /// Returns true if a side is not looked at before it is allowed more.
    pub(crate) fn is_held_back(&self, side: Side) -> bool {
        self.directions[side].allowance == Some(0)
    }

    /// Returns true if there is payload beyond the limit of a side.
    pub(crate) fn stopped(&self, side: Side) -> bool {
        self.directions[side].stopped
    }

    /// Returns true if all bytes that were read have been written.
    pub(crate) fn is_empty(&self) -> bool {
        Side::BOTH.iter().all(|&side| self.held(side) == 0)
    }

    /// Moves available bytes, by so many reads in each direction. Returns true if any moved.
    pub(crate) fn step(&mut self, reads: usize) -> Result<bool, Broken> {
        let mut moved = false;
        for side in Side::BOTH {
            moved |= self.step_side(side, reads).map_err(|error| Broken { error })?;
        }
        Ok(moved)
    }

    /// Looks beyond the limits that are reached, and moves nothing.
    pub(crate) fn look_beyond_limits(&mut self) -> Result<(), Broken> {
        for (socket, d) in self.sockets.iter().flatten().zip(&mut self.directions) {
            if !d.eof && d.room() == 0 {
                d.look_beyond(socket).map_err(|error| Broken { error })?;
            }
        }
        Ok(())
    }

    fn step_side(&mut self, side: Side, reads: usize) -> io::Result<bool> {
        let sockets = self.sockets.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let (from, to) = (&sockets[side], &sockets[side.other()]);
        let d = &mut self.directions[side];
        let mut moved = false;
        if d.eof {
            check_alive(from)?;
        }
        for _ in 0..reads {
            if !d.flush(to, &mut moved)? || d.eof || !d.fill(from, to, &mut moved)? {
                break;
            }
        }
        if d.eof && d.held.is_empty() && !d.shut {
            d.shut = true;
            moved = true;
            match SockRef::from(to).shutdown(Shutdown::Write) {
                // The other end was reset meanwhile: its next read reports that.
                Err(e) if e.kind() != io::ErrorKind::NotConnected => return Err(e),
                _ => {}
            }
        }
        Ok(moved)
    }

    /// Waits until a step can move something.
    pub(crate) async fn ready(&self) {
        let PerSide { client, server } = self.sockets();
        let PerSide {
            client: up,
            server: down,
        } = &self.directions;
        let mut errors = [
            up.eof.then(|| error_of(client)),
            down.eof.then(|| error_of(server)),
        ];
        // Poll, rather than await six futures of the runtime: they would take a kilobyte of each pair. An error makes a socket
        // ready: the step that follows reports it.
        poll_fn(|cx| {
            let is_ready = (up.wants_input() && client.poll_read_ready(cx).is_ready())
                || (down.wants_input() && server.poll_read_ready(cx).is_ready())
                || (up.wants_room() && server.poll_write_ready(cx).is_ready())
                || (down.wants_room() && client.poll_write_ready(cx).is_ready())
                || errors
                    .iter_mut()
                    .flatten()
                    .any(|error| error.poll_unpin(cx).is_ready());
            match is_ready {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Waits for an error of a socket whose stream has ended: no read reports a reset behind the end.
fn error_of(socket: &TcpStream) -> Pin<Box<impl Future<Output = io::Result<Ready>>>> {
    Box::pin(socket.ready(Interest::ERROR))
}

/// Returns the error of a socket from which nothing is read any more, if it has one.
fn check_alive(socket: &TcpStream) -> io::Result<()> {
    let gone = socket.try_io(Interest::ERROR, || {
        socket.take_error()?.ok_or(io::ErrorKind::WouldBlock.into())
    });
    match gone {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Ok(error) | Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
