//! Waits for events whose time is unknown.

use std::{
    env,
    io::ErrorKind,
    net::{TcpListener, TcpStream},
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Limit of time for an action that takes moments on an idle machine. Only a failing test waits so long.
pub const SOON: Duration = Duration::from_secs(20);

/// Shortest and longest interval between two polls. It grows with the wait: a daemon that answers all the time takes the
/// processor from those that other tests wait for.
const LOOKS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(40)];

/// Part of the wait so far that an interval takes.
const SHARE: u32 = 16;

/// Scales a limit of time to this machine: the environment variable `LONGSPLICE_PATIENCE` is a factor, for an emulated
/// machine; without it, the limit stays as it is.
pub fn patient(limit: Duration) -> Duration {
    static FACTOR: LazyLock<u32> = LazyLock::new(|| {
        let word = env::var("LONGSPLICE_PATIENCE");
        word.map_or(1, |word| {
            word.parse().expect("LONGSPLICE_PATIENCE: a whole number")
        })
    });
    limit * *FACTOR
}

/// Polls until `probe` returns a value, at most for `limit` ([`patient`]).
pub fn eventually<T>(what: &str, limit: Duration, probe: impl FnMut() -> Option<T>) -> T {
    eventually_or(|| what.to_owned(), limit, probe)
}

/// Polls until `probe` returns a value, at most for `limit`; on failure `what` describes the expectation and
/// the state.
pub fn eventually_or<T>(
    what: impl Fn() -> String,
    limit: Duration,
    mut probe: impl FnMut() -> Option<T>,
) -> T {
    let (limit, start) = (patient(limit), Instant::now());
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain for {}", what());
        thread::sleep((start.elapsed() / SHARE).clamp(LOOKS[0], LOOKS[1]));
    }
}

/// Waits until `condition` holds, for [`SOON`].
pub fn soon(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, SOON, || condition().then_some(()));
}

/// Raises its flag when it is dropped: threads that run until then end, however a test ends.
#[derive(Debug)]
pub struct Raise<'a>(pub &'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Accepts a connection; fails unless one comes soon.
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    eventually("a connection to the server", SOON, || match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(false).unwrap();
            Some(stream)
        }
        Err(e) if e.kind() == ErrorKind::WouldBlock => None,
        Err(e) => panic!("cannot accept: {e}"),
    })
}

/// Ends listening now: connections are refused from here on. Closing alone would end it only once the children of other
/// tests, which have its descriptor until they run their programs, have closed it, too.
pub fn stop_listening(listener: TcpListener) {
    let socket = socket2::SockRef::from(&listener);
    socket.shutdown(std::net::Shutdown::Both).unwrap();
}
