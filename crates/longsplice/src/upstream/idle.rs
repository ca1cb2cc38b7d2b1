//! Keeps idle connections to a server for the next request.
//!
//! A connection stands aside while its last client has not acknowledged all bytes that were forwarded past its socket:
//! the server still retransmits those before anything else. It is given out once the client has acknowledged them, or
//! closed after [`SETTLES_WITHIN`].

use std::{collections::VecDeque, fmt, io, mem::MaybeUninit, net::SocketAddr, time::Duration};

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream, time::Instant};

use crate::resources::{IdleDescriptor, Resources};

/// Closes a connection that stands aside for longer than this. It is closed with a FIN: its server still delivers the
/// rest.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);
/// Limits the connections that stand aside, for each server.
const MOST_ASIDE: usize = 64;

/// Peer and local address of the client that a PROXY header named on the connection. Only that client may reuse it.
pub(super) type Owner = Option<(SocketAddr, SocketAddr)>;

/// Tells whether a connection may be given out again.
pub(super) struct Settles(Box<dyn Fn() -> bool + Send>);

/// Idle connections of one server, the longest idle first.
#[derive(Debug, Default)]
pub(super) struct IdlePool {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    idle: VecDeque<Idle>,
    aside: VecDeque<(Idle, Settles)>,
    /// Counts connections that were closed while they stood aside.
    given_up: u64,
}

#[derive(Debug)]
struct Idle {
    _descriptor: IdleDescriptor,
    stream: TcpStream,
    since: Instant,
    owner: Owner,
}

impl Settles {
    pub(super) fn when(is_settled: impl Fn() -> bool + Send + 'static) -> Settles {
        Settles(Box::new(is_settled))
    }
}

impl fmt::Debug for Settles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Settles")
    }
}

impl IdlePool {
    /// Keeps a connection, if it is open and quiet; it stands aside until it `settles`. Beyond `most`, the longest idle
    /// connection is closed.
    pub(super) fn put(&self, stream: TcpStream, owner: Owner, settles: Option<Settles>, most: u32) {
        if most == 0 || !sounds_quiet(&stream) {
            return;
        }
        // Close it with a FIN if no descriptor can be spared.
        let Some(descriptor) = Resources::of_this_process().try_idle() else {
            return;
        };
        let idle = Idle {
            _descriptor: descriptor,
            stream,
            since: Instant::now(),
            owner,
        };
        let mut waiting = self.waiting.lock();
        match settles {
            Some(settles) => waiting.aside.push_back((idle, settles)),
            None => waiting.idle.push_back(idle),
        }
        if waiting.aside.len() > MOST_ASIDE.min(most as usize) {
            waiting.settle();
        }
        waiting.limit(most as usize);
    }

    /// Returns the connection that was used last: its congestion window is the warmest. A connection that the server
    /// closed, or on which unexpected bytes came, is dropped: the pool peeks at the socket itself, at this moment.
    pub(super) fn take(&self, owner: Owner, timeout: Duration) -> Option<TcpStream> {
        let mut waiting = self.waiting.lock();
        let mut has_settled = false;
        loop {
            let Some(newest) = waiting.idle.iter().rposition(|idle| idle.owner == owner) else {
                // Check the connections that stand aside only if no other is left.
                if has_settled || !waiting.settle() {
                    return None;
                }
                has_settled = true;
                continue;
            };
            let idle = waiting.idle.remove(newest)?;
            if idle.since.elapsed() < timeout && is_quiet(&idle.stream) {
                return Some(idle.stream);
            }
        }
    }

    /// Closes connections that waited too long or cannot be used any more. Closes all if clients wait for descriptors.
    pub(super) fn sweep(&self, timeout: Duration, most: u32) {
        let mut waiting = self.waiting.lock();
        if Resources::of_this_process().is_short() {
            waiting.limit(0);
        }
        waiting.settle();
        let patience = SETTLES_WITHIN.min(timeout);
        waiting.give_up(|idle| idle.since.elapsed() >= patience);
        waiting.aside.retain(|(idle, _)| sounds_quiet(&idle.stream));
        waiting
            .idle
            .retain(|idle| idle.since.elapsed() < timeout && sounds_quiet(&idle.stream));
        waiting.limit(most as usize);
    }

    /// Closes the longest idle connections until no more than `most` are left; those that stand aside first.
    pub(super) fn shrink(&self, most: usize) {
        let mut waiting = self.waiting.lock();
        let aside = most.saturating_sub(waiting.idle.len());
        waiting.give_up_to(aside);
        waiting.limit(most);
    }

    /// Closes those of one owner. The ones that stand aside do not count as given up.
    pub(super) fn close_of(&self, owner: Owner) {
        let mut waiting = self.waiting.lock();
        waiting.idle.retain(|idle| idle.owner != owner);
        waiting.aside.retain(|(idle, _)| idle.owner != owner);
    }

    /// Closes all.
    pub(super) fn clear(&self) {
        let mut waiting = self.waiting.lock();
        waiting.idle.clear();
        waiting.aside.clear();
    }

    /// Returns the number of connections that can be given out.
    pub(super) fn len(&self) -> usize {
        self.waiting.lock().idle.len()
    }

    /// Returns the number of connections that stand aside.
    pub(super) fn aside(&self) -> usize {
        self.waiting.lock().aside.len()
    }

    /// Returns the number of connections that were closed because they did not settle in time, or were too many.
    pub(super) fn given_up(&self) -> u64 {
        self.waiting.lock().given_up
    }
}

impl Waiting {
    /// Moves settled connections to the idle ones, and returns whether there were any.
    fn settle(&mut self) -> bool {
        let before = self.idle.len();
        for _ in 0..self.aside.len() {
            match self.aside.pop_front() {
                Some((idle, settles)) if (settles.0)() => self.idle.push_back(idle),
                Some(unsettled) => self.aside.push_back(unsettled),
                None => break,
            }
        }
        self.idle.len() > before
    }

    fn limit(&mut self, most: usize) {
        self.give_up_to(MOST_ASIDE.min(most));
        while self.idle.len() > most {
            self.idle.pop_front();
        }
    }

    fn give_up_to(&mut self, most: usize) {
        let too_many = self.aside.len().saturating_sub(most);
        self.aside.drain(..too_many);
        self.given_up += too_many as u64;
    }

    fn give_up(&mut self, is_late: impl Fn(&Idle) -> bool) {
        let before = self.aside.len();
        self.aside.retain(|(idle, _)| !is_late(idle));
        self.given_up += (before - self.aside.len()) as u64;
    }
}

/// Returns whether the connection is open and has nothing to read. Peeks at the socket: tokio may not know yet.
pub(super) fn is_quiet(stream: &TcpStream) -> bool {
    is_nothing(&peek(stream))
}

/// Returns whether the connection is open and has nothing to read, as far as tokio knows. Peeks at the socket only if
/// tokio saw an event.
fn sounds_quiet(stream: &TcpStream) -> bool {
    is_nothing(&stream.try_io(Interest::READABLE, || peek(stream)))
}

fn peek(stream: &TcpStream) -> io::Result<usize> {
    SockRef::from(stream).peek(&mut [MaybeUninit::uninit()])
}

fn is_nothing(peeked: &io::Result<usize>) -> bool {
    matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let (near, far) = tokio::join!(near, listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    #[tokio::test]
    async fn the_last_one_used_comes_first_and_the_limit_holds() {
        let pool = IdlePool::default();
        let mut far_ends = Vec::new();
        let mut ports = Vec::new();
        for _ in 0..3 {
            let (near, far) = pair().await;
            ports.push(near.local_addr().unwrap().port());
            far_ends.push(far);
            pool.put(near, None, None, 2);
        }
        assert_eq!(pool.len(), 2);
        assert_eq!(far_ends[0].read(&mut [0]).await.unwrap(), 0);
        let taken = [pool.take(None, LONG).unwrap(), pool.take(None, LONG).unwrap()];
        assert_eq!(
            taken.map(|s| s.local_addr().unwrap().port()),
            [ports[2], ports[1]]
        );
        assert!(pool.take(None, LONG).is_none());
    }

    #[tokio::test]
    async fn what_was_closed_or_speaks_unasked_is_not_given_out() {
        let pool = IdlePool::default();
        let (near, far) = pair().await;
        pool.put(near, None, None, 9);
        drop(far);
        let (near, mut far) = pair().await;
        pool.put(near, None, None, 9);
        far.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            .await
            .unwrap();
        // On the loopback, both events have arrived by now.
        assert!(pool.take(None, LONG).is_none());
        assert_eq!(pool.len(), 0);
    }

    #[tokio::test]
    async fn what_comes_at_the_last_moment_is_seen() {
        let pool = IdlePool::default();
        for speaks in [false, true] {
            let (near, far) = pair().await;
            pool.put(near, None, None, 9);
            let quiet = pool.take(None, LONG).unwrap();
            pool.put(quiet, None, None, 9);
            // tokio sees neither event before this task awaits.
            let far = far.into_std().unwrap();
            match speaks {
                true => drop(io::Write::write(&mut &far, b"!").unwrap()),
                false => far.shutdown(std::net::Shutdown::Write).unwrap(),
            }
            assert!(pool.take(None, LONG).is_none());
        }
    }

    #[tokio::test]
    async fn one_that_is_not_settled_stands_aside_until_it_is() {
        let pool = IdlePool::default();
        let settled = Arc::new(AtomicBool::new(false));
        let settles = || {
            let settled = Arc::clone(&settled);
            Some(Settles::when(move || settled.load(Ordering::Relaxed)))
        };
        let (near, _far) = pair().await;
        let port = near.local_addr().unwrap().port();
        pool.put(near, None, settles(), 9);
        assert!(pool.take(None, LONG).is_none());
        pool.sweep(LONG, 9);
        assert_eq!((pool.len(), pool.aside()), (0, 1));
        settled.store(true, Ordering::Relaxed);
        let taken = pool.take(None, LONG).unwrap();
        assert_eq!(taken.local_addr().unwrap().port(), port);
        // A connection that does not settle is closed after the time limit, …
        settled.store(false, Ordering::Relaxed);
        pool.put(taken, None, settles(), 9);
        pool.sweep(Duration::ZERO, 9);
        assert_eq!((pool.len(), pool.aside(), pool.given_up()), (0, 0, 1));
        // … or beyond the number limit: the longest waiting first, and before any idle connection.
        let mut far_ends = Vec::new();
        for _ in 0..3 {
            let (near, far) = pair().await;
            far_ends.push(far);
            pool.put(near, None, settles(), 2);
        }
        assert_eq!((pool.aside(), pool.given_up()), (2, 2));
        assert_eq!(far_ends[0].read(&mut [0]).await.unwrap(), 0);
        let (near, _far) = pair().await;
        pool.put(near, None, None, 2);
        pool.shrink(2);
        assert_eq!((pool.len(), pool.aside()), (1, 1));
        assert_eq!(far_ends[1].read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn those_that_have_settled_are_not_closed_for_those_that_have_not() {
        let pool = IdlePool::default();
        let mut far_ends = Vec::new();
        for n in 0..4 {
            let (near, far) = pair().await;
            far_ends.push(far);
            let settles = Settles::when(move || n == 0);
            pool.put(near, None, Some(settles), 3);
        }
        assert_eq!((pool.len(), pool.aside(), pool.given_up()), (1, 3, 0));
    }

    #[tokio::test]
    async fn age_counts_and_what_is_old_is_closed_in_order() {
        let pool = IdlePool::default();
        let (near, mut far) = pair().await;
        pool.put(near, None, None, 9);
        pool.sweep(LONG, 9);
        assert_eq!(pool.len(), 1);
        pool.sweep(Duration::ZERO, 9);
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_client_gets_its_own() {
        let pool = IdlePool::default();
        let owner = |port| Some(([127, 0, 0, 1], port).into()).map(|a: SocketAddr| (a, a));
        let (near, _far) = pair().await;
        pool.put(near, owner(1), None, 9);
        assert!(pool.take(owner(2), LONG).is_none());
        assert!(pool.take(None, LONG).is_none());
        assert!(pool.take(owner(1), LONG).is_some());
    }
}
