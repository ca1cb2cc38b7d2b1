//! Plays one connection by its script, and records the view of each end.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use longsplice_engine::Side;
use longsplice_lab::pattern::Pattern;
use longsplice_tests::SOON;
use socket2::SockRef;

use crate::differential::script::{Act, Part, Script};

/// End of a stream, as its reader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// In order, by a FIN.
    Fin,
    Reset,
    /// By closing its own socket.
    Own,
    /// Not within [`SOON`], so never.
    Never,
}

/// View of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Number of bytes received.
    pub received: u64,
    /// Offset of the first byte that differs from the one that the other end sent.
    pub wrong: Option<u64>,
    /// End of the stream.
    pub ending: Ending,
    /// True if it wrote all that it should, as far as the socket could tell.
    pub wrote_all: bool,
    /// True if it got a reset, by then or behind the end of the stream.
    pub reset: bool,
}

/// Progress that the halves of an end share.
#[derive(Debug)]
struct Progress {
    now: Mutex<(u64, Option<Ending>)>,
    changed: Condvar,
}

impl Progress {
    fn new() -> Progress {
        Progress {
            now: Mutex::new((0, None)),
            changed: Condvar::new(),
        }
    }

    fn set(&self, received: u64, ending: Option<Ending>) {
        let mut now = self.now.lock().unwrap();
        *now = (received, now.1.or(ending));
        self.changed.notify_all();
    }

    fn leave(&self) {
        self.now.lock().unwrap().1.get_or_insert(Ending::Own);
        self.changed.notify_all();
    }

    fn ending(&self) -> Option<Ending> {
        self.now.lock().unwrap().1
    }

    /// Waits until `holds` returns true; an error where the stream ends before, or stalls.
    fn wait(&self, mut holds: impl FnMut(u64, Option<Ending>) -> bool) -> io::Result<()> {
        let mut now = self.now.lock().unwrap();
        // Tiny buffers take their time: a stream stalls when no byte comes for so long.
        while !holds(now.0, now.1) && now.1.is_none() {
            let before = *now;
            let same = |now: &mut (u64, Option<Ending>)| *now == before;
            let (after, waited) = self.changed.wait_timeout_while(now, SOON, same).unwrap();
            now = after;
            if waited.timed_out() {
                break;
            }
        }
        match holds(now.0, now.1) {
            true => Ok(()),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Plays both parts on the two ends of a connection, and returns the views of client and server. `turn` is called at
/// each [`Act::Turn`].
pub(crate) fn play(
    script: &Script,
    client: TcpStream,
    server: TcpStream,
    seed: u64,
    turn: impl Fn() + Sync,
) -> [Seen; 2] {
    let turn = &turn;
    thread::scope(|scope| {
        let ends = [(Side::Client, client), (Side::Server, server)].map(|(side, stream)| {
            let part = &script.parts[side];
            let [out, expected] = [side, side.other()].map(|s| Pattern::new(seed ^ s.index() as u64));
            // Wait for a reset only in a script that has one.
            let may_reset = script
                .parts
                .iter()
                .flat_map(|p| &p.acts)
                .any(|a| ends_in_reset(*a));
            scope.spawn(move || end(stream, part, out, expected, may_reset, turn))
        });
        ends.map(|end| end.join().unwrap())
    })
}

fn ends_in_reset(act: Act) -> bool {
    matches!(act, Act::Reset | Act::KnockUntilReset)
}

fn end(
    stream: TcpStream,
    part: &Part,
    out: Pattern,
    expected: Pattern,
    may_reset: bool,
    turn: impl Fn(),
) -> Seen {
    let progress = Progress::new();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream.set_nodelay(true).unwrap();
    SockRef::from(&stream).set_out_of_band_inline(true).unwrap();
    let (written, (received, wrong)) = thread::scope(|scope| {
        let reader = scope.spawn(|| read(&stream, part, expected, &progress));
        let written = write(&stream, &part.acts, out, &progress, turn);
        (written, reader.join().unwrap())
    });
    let ending = match (progress.ending().unwrap(), &written) {
        // The kernel reports a reset once. Behind a FIN it reports EPIPE.
        (Ending::Fin, Err(e)) if e.kind() == ErrorKind::ConnectionReset => Ending::Reset,
        (ending, _) => ending,
    };
    let leaves = part.acts.iter().any(|act| matches!(act, Act::Reset | Act::Leave));
    let told = !leaves && may_reset && is_reset(&stream);
    // An end that leaves or resets does so here, by dropping its socket.
    Seen {
        received,
        wrong,
        ending,
        wrote_all: written.is_ok(),
        reset: ending == Ending::Reset || told,
    }
}

/// Returns whether a reset comes behind the end of the stream.
fn is_reset(stream: &TcpStream) -> bool {
    let start = Instant::now();
    loop {
        // A reset that a write has reported is not reported again, but the connection is gone.
        if matches!(stream.take_error(), Ok(Some(_))) || stream.peer_addr().is_err() {
            return true;
        }
        if start.elapsed() > SOON {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reads the stream. Returns the number of bytes, and the offset of the first wrong one.
fn read(mut stream: &TcpStream, part: &Part, expected: Pattern, progress: &Progress) -> (u64, Option<u64>) {
    let reading = part.reading;
    thread::sleep(reading.late);
    let (start, mut received, mut wrong) = (Instant::now(), 0, None);
    let mut buffer = vec![0; reading.most];
    let ending = loop {
        let next = stream.read(&mut buffer);
        if progress.ending().is_some() {
            // The writer has closed the socket.
            return (received, wrong);
        }
        match next {
            Ok(0) => break Ending::Fin,
            Ok(n) => {
                let at = expected.mismatch(received, &buffer[..n]);
                wrong = wrong.or(at.map(|at| received + at as u64));
                received += n as u64;
                progress.set(received, None);
            }
            Err(e) if e.kind() == ErrorKind::ConnectionReset => break Ending::Reset,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break Ending::Never,
            Err(e) => panic!("cannot read: {e}"),
        }
        if let Some(rate) = reading.rate {
            let due = Duration::from_secs_f64(received as f64 / rate as f64);
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
    };
    // The writer may have set an ending before.
    progress.set(received, Some(ending));
    (received, wrong)
}

/// Writes by the acts. Returns an error at the first act that fails, and skips the rest.
fn write(
    stream: &TcpStream,
    acts: &[Act],
    out: Pattern,
    progress: &Progress,
    turn: impl Fn(),
) -> io::Result<()> {
    let mut sent = 0;
    for act in acts {
        match *act {
            Act::Write { bytes, piece } => write_pieces(stream, out, &mut sent, bytes, piece)?,
            Act::Urgent => {
                SockRef::from(stream).send_out_of_band(out.at(sent, 1))?;
                sent += 1;
            }
            Act::Await(bytes) => progress.wait(|received, _| received >= bytes)?,
            Act::AwaitEnd => progress.wait(|_, ending| ending == Some(Ending::Fin))?,
            Act::Turn => turn(),
            Act::Finish => stream.shutdown(Shutdown::Write)?,
            Act::Reset => {
                SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
                stop_reading(stream, progress);
            }
            Act::Leave => stop_reading(stream, progress),
            Act::KnockUntilReset => knock(stream)?,
        }
    }
    Ok(())
}

fn write_pieces(
    mut stream: &TcpStream,
    out: Pattern,
    sent: &mut u64,
    bytes: u64,
    piece: usize,
) -> io::Result<()> {
    let until = *sent + bytes;
    while *sent < until {
        let most = piece.min((until - *sent) as usize);
        *sent += stream.write(out.at(*sent, most))? as u64;
    }
    Ok(())
}

/// Stops the reader without a word to the other end.
fn stop_reading(stream: &TcpStream, progress: &Progress) {
    progress.leave();
    // It fails where the other end was quicker.
    let _ = stream.shutdown(Shutdown::Read);
}

fn knock(mut stream: &TcpStream) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < SOON {
        if stream.write(&[0]).is_err() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(ErrorKind::TimedOut.into())
}
