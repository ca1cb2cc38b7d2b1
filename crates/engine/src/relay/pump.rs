//! Moves bytes between two sockets, in user space: the relay, and the delivery of old bytes during a drain.

use std::{
    cell::RefCell,
    future::poll_fn,
    io::{self, Read},
    mem::MaybeUninit,
    net::Shutdown,
    pin::Pin,
    task::Poll,
};

use futures_util::FutureExt;
use longsplice_dataplane::{PerSide, Side};
use longsplice_repair::{options, room, unsent};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::SockRef;
use tokio::{
    io::{Interest, Ready},
    net::TcpStream,
};

/// Maximum bytes of one read. One buffer for each thread: an idle connection holds none.
const BUFFER: usize = 256 << 10;

/// Bytes to read beyond the room that the other socket is known to have: mostly, no more than this is held of a slow reader.
const FIRST: usize = 16 << 10;

/// Known room below which a read takes [`FIRST`] bytes more, in bytes. If the write comes short, the kernel reports room once half of
/// the socket's bound is free; to ask for each few kilobytes of it would take three system calls each time.
const ENOUGH: usize = 64 << 10;

/// Unsent bytes that a socket may hold: more would only have to be drained.
const NOTSENT_LOWAT: u32 = 256 << 10;

/// Reads in one direction before the other gets its turn: they take bytes that come meanwhile, too.
pub(crate) const TURN: usize = 8;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Holds bytes that were read from one side and could not yet be written to the other.
#[derive(Debug, Default)]
struct Direction {
    held: Vec<u8>,
    written: usize,
    bytes: u64,
    /// Maximum number of bytes to read; `None`: all.
    limit: Option<u64>,
    /// Number of bytes behind which nothing is the pump's, not even an end of the stream.
    end: Option<u64>,
    /// True if there is payload beyond the limit, or the pump must not look there.
    stopped: bool,
    /// Number of bytes to read before the next look at the rate; `None`: there is no rate limit.
    allowance: Option<u64>,
    /// True if bytes leave their socket only once the other one has them: see [`Pump::hold_nothing`].
    peeks: bool,
    /// True if the other socket had no room for all bytes.
    blocked: bool,
    /// True if the other socket may have more room than is known: it took what a read had beyond that, or all that was held.
    gained: bool,
    /// Bytes that the other socket takes at least, by its last answer: acknowledgements only make room.
    known_room: usize,
    /// True if the send queue of the other socket is bounded: most connections are over before that matters.
    bounded: bool,
    /// Bound of that queue, in bytes; `None`: [`NOTSENT_LOWAT`].
    unsent_limit: Option<u32>,
    /// True if the runtime has not yet reported the socket as readable, and we have not asked it.
    fresh: bool,
    eof: bool,
    shut: bool,
}

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

    /// Limits the bytes of a side that wait in the other socket to be sent for the first time.
    ///
    /// # Errors
    /// None is known for a TCP socket.
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

impl Direction {
    fn wants_input(&self) -> bool {
        !self.eof && !self.wants_room() && !self.stopped && self.allowance != Some(0)
    }

    fn wants_room(&self) -> bool {
        !self.held.is_empty() || self.blocked
    }

    /// Returns the number of bytes that may be read now.
    fn room(&self) -> usize {
        let left = self
            .limit
            .map_or(u64::MAX, |limit| limit.saturating_sub(self.bytes));
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Reads from the socket itself the first time, and asks the runtime before each later time: bytes that were injected
    /// for a new socket are there before the runtime reports them.
    fn receive(
        &mut self,
        from: &TcpStream,
        mut how: impl FnMut(SockRef<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match std::mem::take(&mut self.fresh) {
            true => how(SockRef::from(from)),
            false => from.try_io(Interest::READABLE, || how(SockRef::from(from))),
        }
    }

    /// Looks beyond the limit, unless all behind it is the caller's.
    fn look_beyond(&mut self, from: &TcpStream) -> io::Result<()> {
        if self.is_at_end(0) {
            // Stop here: passed on, an end of the stream would end the other connection, too.
            self.stopped = true;
            return Ok(());
        }
        self.look(from)
    }

    /// Looks at the next byte beyond the limit, and leaves it in the socket.
    fn look(&mut self, from: &TcpStream) -> io::Result<()> {
        let mut byte = [MaybeUninit::uninit()];
        let next = self.receive(from, |socket| socket.peek(&mut byte));
        match next {
            // Read it off the socket: only then `copied_seq` counts the FIN.
            Ok(0) => self.eof = matches!((&*SockRef::from(from)).read(&mut [0]), Ok(0)),
            Ok(_) => self.stopped = true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Writes held bytes. Returns true if all of them went.
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
        self.gained |= self.written > 0;
        // Free the memory: most connections hold nothing most of the time.
        self.held = Vec::new();
        self.written = 0;
        Ok(true)
    }

    /// Reads once and writes on. Returns true if another attempt may move more.
    fn fill(&mut self, from: &TcpStream, to: &TcpStream, moved: &mut bool) -> io::Result<bool> {
        let room = self.room();
        if room == 0 {
            self.look_beyond(from)?;
            *moved |= self.eof;
            return Ok(false);
        }
        let allowed = usize::try_from(self.allowance.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        // Copy nothing in vain while there is no room.
        if allowed == 0 || (self.blocked && to.writable().now_or_never().is_none()) {
            return Ok(false);
        }
        self.gained |= std::mem::take(&mut self.blocked);
        let flags = match self.peeks {
            true => RecvFlags::PEEK,
            false => RecvFlags::empty(),
        };
        if std::mem::take(&mut self.gained) {
            self.ask_for_room(to)?;
        }
        let beyond = if self.known_room < ENOUGH { FIRST } else { 0 };
        let most = (self.known_room + beyond).min(BUFFER);
        SCRATCH.with_borrow_mut(|buffer| {
            let buffer = &mut buffer[..room.min(allowed).min(most)];
            let asked = buffer.len();
            let read = self.receive(from, |socket| Ok(recv(&*socket, &mut *buffer, flags)?.0));
            let mut n = match read {
                Ok(0) => {
                    self.find_end(from)?;
                    *moved |= self.eof;
                    return Ok(false);
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            };
            // Look for the end before few bytes are written: if they are the last ones, both leave in one segment. Alone, the end
            // would wait for a congestion window that the bytes have filled. Behind many bytes, others come while they are written.
            let mut next = None;
            while !self.peeks && n < asked && n <= FIRST && next.is_none() {
                match self.receive(from, |socket| Ok(recv(&*socket, &mut buffer[n..], flags)?.0)) {
                    Ok(0) => next = Some(Ok(())),
                    Ok(more) => n += more,
                    Err(e) => next = Some(Err(e)),
                }
            }
            let ends = matches!(next, Some(Ok(()))) && !self.is_at_end(n);
            let written = write_all_that_fits(to, &buffer[..n], ends)?;
            self.known_room = match written < n {
                true => 0,
                false => self.known_room.saturating_sub(n),
            };
            if self.peeks {
                self.blocked = written < n;
                discard(from, &mut buffer[..written])?;
            } else {
                self.held = buffer[written..n].to_vec();
            }
            self.gained = written == asked && beyond > 0;
            let passed = if self.peeks { written } else { n } as u64;
            *moved |= passed > 0;
            self.bytes += passed;
            self.allowance = self.allowance.map(|left| left - passed);
            if !self.bounded && self.bytes > u64::from(NOTSENT_LOWAT / 2) {
                self.bounded = true;
                self.known_room = 0;
                options::set_notsent_lowat(to, self.unsent_limit())?;
            }
            match next {
                Some(Ok(())) => {
                    self.find_end(from)?;
                    Ok(false)
                }
                Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
                Some(Err(e)) => Err(e),
                None => Ok(written == n),
            }
        })
    }

    fn unsent_limit(&self) -> u32 {
        self.unsent_limit.unwrap_or(NOTSENT_LOWAT)
    }

    /// Asks how many bytes a socket takes now: more would be held, or be copied in vain.
    fn ask_for_room(&mut self, to: &TcpStream) -> io::Result<()> {
        let free = room(to)?;
        self.known_room = match self.bounded {
            true => free.min(self.unsent_limit().saturating_sub(unsent(to)?) as usize),
            false => free,
        };
        Ok(())
    }

    /// Returns whether nothing is the pump's behind so many bytes more, not even an end of the stream.
    fn is_at_end(&self, more: usize) -> bool {
        self.end.is_some_and(|end| self.bytes + more as u64 >= end)
    }

    /// Notes the end of the stream. In peek mode, reads it off the socket, so that `copied_seq` counts the FIN.
    fn find_end(&mut self, from: &TcpStream) -> io::Result<()> {
        if self.is_at_end(0) {
            self.stopped = true;
            return Ok(());
        }
        self.eof = !self.peeks || (&*SockRef::from(from)).read(&mut [0])? == 0;
        Ok(())
    }
}

/// Writes until the socket has no room. Returns the number of bytes that went. The last ones wait for the end of the stream
/// if it `ends` behind them: it is to be passed on at once.
fn write_all_that_fits(to: &TcpStream, bytes: &[u8], ends: bool) -> io::Result<usize> {
    let flags = match ends {
        true => SendFlags::MORE | SendFlags::NOSIGNAL,
        false => SendFlags::NOSIGNAL,
    };
    let mut written = 0;
    while written < bytes.len() {
        match to.try_io(Interest::WRITABLE, || Ok(send(to, &bytes[written..], flags)?)) {
            Ok(n) => written += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(written)
}

/// Removes as many bytes from a socket as the buffer has: they were peeked at, and are not copied once more.
fn discard(from: &TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let mut left = buffer.len();
    while left > 0 {
        match recv(from, &mut buffer[..left], RecvFlags::TRUNC)?.1 {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => left -= n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
