//! Bytes between two sockets, in user space: the relay, and the delivery of old bytes during a drain.

use std::{cell::RefCell, io, io::Read, mem::MaybeUninit, net::Shutdown};

use longsplice_dataplane::Side;
use longsplice_repair::options;
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

/// What one read may bring. One buffer for each thread: an idle connection holds none.
const BUFFER: usize = 256 << 10;

/// Unsent bytes that a socket may hold: more would only have to be drained.
const NOTSENT_LOWAT: u32 = 256 << 10;

/// Reads in one direction before the other gets its turn: what comes meanwhile is taken along.
pub(crate) const TURN: usize = 8;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// What has been read from one side and could not yet be written to the other.
#[derive(Debug, Default)]
struct Direction {
    held: Vec<u8>,
    written: usize,
    bytes: u64,
    /// How many of them may be read at most; `None`: all.
    limit: Option<u64>,
    /// Behind so many nothing is the pump's, an end of the stream neither.
    end: Option<u64>,
    /// There is payload beyond the limit, or nobody wants to know.
    stopped: bool,
    /// How many bytes may be read before the next look at the rate; `None`: there is none.
    allowance: Option<u64>,
    /// The socket that it goes to holds no more than it should: most connections are over before that matters.
    bounded: bool,
    /// The runtime has not yet said whether the socket is readable, nor been asked by us.
    fresh: bool,
    eof: bool,
    shut: bool,
}

/// A pair of sockets and the bytes between them.
#[derive(Debug)]
pub(crate) struct Pump {
    /// `None` while the pair is detached.
    sockets: Option<[TcpStream; 2]>,
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
            sockets: Some([client, server]),
            directions: Default::default(),
        }
    }

    fn sockets(&self) -> &[TcpStream; 2] {
        self.sockets
            .as_ref()
            .expect("nobody asks a detached pair for its sockets")
    }

    pub(crate) fn socket(&self, side: Side) -> &TcpStream {
        &self.sockets()[side.index()]
    }

    /// The sockets of a pair whose pump has come to an end, or to a rest.
    pub(crate) fn take_sockets(&mut self) -> [TcpStream; 2] {
        self.sockets.take().expect("they are taken once")
    }

    /// Goes on with new sockets of the same connections, of which nothing is known but what they say.
    pub(crate) fn put_sockets(&mut self, sockets: [TcpStream; 2]) {
        self.sockets = Some(sockets);
        for d in &mut self.directions {
            d.eof = false;
            d.shut = false;
            d.stopped = false;
            d.bounded = false;
            d.fresh = true;
        }
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

    /// Lets no more than so many payload bytes of a side be read, counted from the beginning. The end of its stream passes.
    pub(crate) fn set_limit(&mut self, side: Side, limit: Option<u64>) {
        let d = &mut self.directions[side.index()];
        if d.limit != limit {
            d.limit = limit;
            d.stopped = false;
        }
    }

    /// Has the pump leave all that is behind so many bytes of a side to the caller, an end of the stream there, too.
    pub(crate) fn set_end(&mut self, side: Side, end: Option<u64>) {
        self.directions[side.index()].end = end;
    }

    /// Lets no more than so many payload bytes of a side be read from now on. What waits then is not looked at.
    pub(crate) fn set_allowance(&mut self, side: Side, bytes: u64) {
        self.directions[side.index()].allowance = Some(bytes);
    }

    /// What a side sends is not looked at before it is allowed more.
    pub(crate) fn is_held_back(&self, side: Side) -> bool {
        self.directions[side.index()].allowance == Some(0)
    }

    /// There is payload beyond the limit of a side.
    pub(crate) fn stopped(&self, side: Side) -> bool {
        self.directions[side.index()].stopped
    }

    /// All that was read has been written.
    pub(crate) fn is_empty(&self) -> bool {
        Side::BOTH.iter().all(|&side| self.held(side) == 0)
    }

    /// Moves what can be moved now, by so many reads in each direction; whether anything was.
    pub(crate) fn step(&mut self, reads: usize) -> Result<bool, Broken> {
        let mut moved = false;
        for side in Side::BOTH {
            moved |= self.step_side(side, reads).map_err(|error| Broken { error })?;
        }
        Ok(moved)
    }

    /// Moves nothing, and looks beyond the limits that are reached.
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
        let (from, to) = (&sockets[side.index()], &sockets[side.other().index()]);
        let d = &mut self.directions[side.index()];
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
                // The other end was reset meanwhile: its next read says so.
                Err(e) if e.kind() != io::ErrorKind::NotConnected => return Err(e),
                _ => {}
            }
        }
        Ok(moved)
    }

    /// Waits until a step can move something.
    pub(crate) async fn ready(&self) {
        let [client, server] = self.sockets();
        let [up, down] = &self.directions;
        // An error makes a socket ready: the step that follows reports it.
        tokio::select! {
            _ = client.readable(), if up.wants_input() => {}
            _ = server.readable(), if down.wants_input() => {}
            _ = server.writable(), if !up.held.is_empty() => {}
            _ = client.writable(), if !down.held.is_empty() => {}
            // A reset behind the end of a stream: no read tells of it.
            _ = client.ready(Interest::ERROR), if up.eof => {}
            _ = server.ready(Interest::ERROR), if down.eof => {}
            () = std::future::pending() => {}
        }
    }
}

/// The error of a socket from which nothing is read any more, if it has one.
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
        !self.eof && self.held.is_empty() && !self.stopped && self.allowance != Some(0)
    }

    /// How many bytes may be read now.
    fn room(&self) -> usize {
        let left = self
            .limit
            .map_or(u64::MAX, |limit| limit.saturating_sub(self.bytes));
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Asks the socket itself the first time, and the runtime before each later time: what was let in for a new socket is
    /// there before the runtime knows.
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

    /// At the limit, whether there is anything beyond.
    fn look_beyond(&mut self, from: &TcpStream) -> io::Result<()> {
        if self.end.is_some_and(|end| self.bytes >= end) {
            // Passed on, an end of the stream would end the other connection, too.
            self.stopped = true;
            return Ok(());
        }
        self.look(from)
    }

    /// At the limit: sees what comes next, and leaves it where it is.
    fn look(&mut self, from: &TcpStream) -> io::Result<()> {
        let mut byte = [MaybeUninit::uninit()];
        let next = self.receive(from, |socket| socket.peek(&mut byte));
        match next {
            // Read for good: only then the FIN counts among what was copied.
            Ok(0) => self.eof = matches!((&*SockRef::from(from)).read(&mut [0]), Ok(0)),
            Ok(_) => self.stopped = true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        Ok(())
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
        let room = self.room();
        if room == 0 {
            self.look_beyond(from)?;
            *moved |= self.eof;
            return Ok(false);
        }
        let allowed = usize::try_from(self.allowance.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        if allowed == 0 {
            return Ok(false);
        }
        SCRATCH.with_borrow_mut(|buffer| {
            let buffer = &mut buffer[..room.min(allowed).min(BUFFER)];
            let n = match self.receive(from, |socket| (&*socket).read(buffer)) {
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
            if !self.bounded && self.bytes > u64::from(NOTSENT_LOWAT / 2) {
                self.bounded = true;
                options::set_notsent_lowat(to, NOTSENT_LOWAT)?;
            }
            self.allowance = self.allowance.map(|left| left - n as u64);
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
