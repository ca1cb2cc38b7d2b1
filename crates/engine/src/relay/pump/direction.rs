//! Moves the bytes of one direction: reads, writes, and holds what found no room.

use std::{
    cell::RefCell,
    io::{self, Read},
    mem::MaybeUninit,
};

use futures_util::FutureExt;
use longsplice_repair::{options, room, unsent};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

/// Maximum bytes of one read. One buffer for each thread: an idle connection holds none.
pub(super) const BUFFER: usize = 256 << 10;

/// Bytes to read beyond the room that the other socket is known to have: mostly, no more than this is held of a slow reader.
pub(super) const FIRST: usize = 16 << 10;

/// Known room below which a read takes [`FIRST`] bytes more, in bytes. If the write comes short, the kernel reports room once half of
/// the socket's bound is free; to ask for each few kilobytes of it would take three system calls each time.
const ENOUGH: usize = 64 << 10;

/// Unsent bytes that a socket may hold: more would only have to be drained.
const NOTSENT_LOWAT: u32 = 256 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Holds bytes that were read from one side and could not yet be written to the other.
#[derive(Debug, Default)]
pub(super) struct Direction {
    pub(super) held: Vec<u8>,
    pub(super) written: usize,
    pub(super) bytes: u64,
    /// Maximum number of bytes to read; `None`: all.
    pub(super) limit: Option<u64>,
    /// Number of bytes behind which nothing is the pump's, not even an end of the stream.
    pub(super) end: Option<u64>,
    /// True if there is payload beyond the limit, or the pump must not look there.
    pub(super) stopped: bool,
    /// Number of bytes to read before the next look at the rate; `None`: there is no rate limit.
    pub(super) allowance: Option<u64>,
    /// True if bytes leave their socket only once the other one has them: see [`hold_nothing`](super::Pump::hold_nothing).
    pub(super) peeks: bool,
    /// True if the other socket had no room for all bytes.
    pub(super) blocked: bool,
    /// True if the other socket may have more room than is known: it took what a read had beyond that, or all that was held.
    gained: bool,
    /// Bytes that the other socket takes at least, by its last answer: acknowledgements only make room.
    pub(super) known_room: usize,
    /// True if the send queue of the other socket is bounded: most connections are over before that matters.
    pub(super) bounded: bool,
    /// Bound of that queue, in bytes; `None`: [`NOTSENT_LOWAT`].
    pub(super) unsent_limit: Option<u32>,
    /// True if the runtime has not yet reported the socket as readable, and we have not asked it.
    pub(super) fresh: bool,
    pub(super) eof: bool,
    pub(super) shut: bool,
}

impl Direction {
    pub(super) fn wants_input(&self) -> bool {
        !self.eof && !self.wants_room() && !self.stopped && self.allowance != Some(0)
    }

    pub(super) fn wants_room(&self) -> bool {
        !self.held.is_empty() || self.blocked
    }

    /// Returns the number of bytes that may be read now.
    pub(super) fn room(&self) -> usize {
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
    pub(super) fn look_beyond(&mut self, from: &TcpStream) -> io::Result<()> {
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
    pub(super) fn flush(&mut self, to: &TcpStream, moved: &mut bool) -> io::Result<bool> {
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
    pub(super) fn fill(&mut self, from: &TcpStream, to: &TcpStream, moved: &mut bool) -> io::Result<bool> {
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
        if std::mem::take(&mut self.gained) {
            self.ask_for_room(to)?;
        }
        let beyond = if self.known_room < ENOUGH { FIRST } else { 0 };
        let most = (self.known_room + beyond).min(BUFFER);
        SCRATCH.with_borrow_mut(|buffer| {
            let buffer = &mut buffer[..room.min(allowed).min(most)];
            let (n, behind) = self.read(from, buffer);
            let ends = matches!(behind, Some(Ok(()))) && !self.is_at_end(n);
            let (before, mut all) = (self.bytes, true);
            if n > 0 {
                let written = self.pass_on(from, to, &mut buffer[..n], ends)?;
                self.gained = written == buffer.len() && beyond > 0;
                all = written == n;
            }
            *moved |= self.bytes > before;
            match behind {
                Some(Ok(())) => {
                    self.find_end(from)?;
                    *moved |= self.eof;
                    Ok(false)
                }
                Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
                Some(Err(e)) => Err(e),
                None => Ok(all),
            }
        })
    }

    /// Reads once, and goes on behind few bytes. Returns how many there are, and what it found behind them: the end of the stream,
    /// or an error; `None` if it did not look.
    ///
    /// If few bytes are the last ones, they leave in one segment with the end. Alone, the end would wait for a congestion window that
    /// the bytes have filled. Behind many bytes, others come while they are written.
    fn read(&mut self, from: &TcpStream, buffer: &mut [u8]) -> (usize, Option<io::Result<()>>) {
        let flags = match self.peeks {
            true => RecvFlags::PEEK,
            false => RecvFlags::empty(),
        };
        let mut n = 0;
        loop {
            match self.receive(from, |socket| Ok(recv(&*socket, &mut buffer[n..], flags)?.0)) {
                Ok(0) => return (n, Some(Ok(()))),
                Ok(more) => n += more,
                Err(error) => return (n, Some(Err(error))),
            }
            if self.peeks || n == buffer.len() || n > FIRST {
                return (n, None);
            }
        }
    }

    /// Writes bytes that were read, and accounts for them. Returns how many went.
    fn pass_on(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        bytes: &mut [u8],
        ends: bool,
    ) -> io::Result<usize> {
        let n = bytes.len();
        let written = write_all_that_fits(to, bytes, ends)?;
        self.known_room = match written < n {
            true => 0,
            false => self.known_room.saturating_sub(n),
        };
        if self.peeks {
            self.blocked = written < n;
            discard(from, &mut bytes[..written])?;
        } else {
            self.held = bytes[written..].to_vec();
        }
        let passed = if self.peeks { written } else { n } as u64;
        self.bytes += passed;
        self.allowance = self.allowance.map(|left| left - passed);
        if !self.bounded && self.bytes > u64::from(NOTSENT_LOWAT / 2) {
            self.bounded = true;
            self.known_room = 0;
            options::set_notsent_lowat(to, self.unsent_limit())?;
        }
        Ok(written)
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
