//! Connections to a server that wait for their next request.

use std::{
    collections::VecDeque,
    io,
    mem::MaybeUninit,
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream, time::Instant};

use super::lease::Reuse;

/// The client for whom a connection was introduced by a PROXY header: peer and local address. Nobody else may use it.
pub(super) type Owner = Option<(SocketAddr, SocketAddr)>;

/// Those of one server, the one that waits longest first.
#[derive(Debug, Default)]
pub(super) struct IdlePool {
    waiting: Mutex<VecDeque<Idle>>,
}

#[derive(Debug)]
struct Idle {
    stream: TcpStream,
    since: Instant,
    owner: Owner,
}

impl IdlePool {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a connection, if it is fit for it; the one that waits longest goes where there would be more than `most`.
    pub(super) fn put(&self, stream: TcpStream, owner: Owner, most: u32) {
        if most == 0 || !sounds_quiet(&stream) {
            return;
        }
        let mut waiting = self.waiting();
        waiting.push_back(Idle {
            stream,
            since: Instant::now(),
            owner,
        });
        while waiting.len() > most as usize {
            waiting.pop_front();
        }
    }

    /// The connection that was used last: its congestion window is the warmest. One that was closed, or on which something came that
    /// nobody asked for, is not given out.
    pub(super) fn take(&self, owner: Owner, timeout: Duration, reuse: Reuse) -> Option<TcpStream> {
        let is_good = match reuse {
            Reuse::No => return None,
            Reuse::Asked => is_quiet,
            Reuse::Unheard => sounds_quiet,
        };
        let mut waiting = self.waiting();
        loop {
            let newest = waiting.iter().rposition(|idle| idle.owner == owner)?;
            let idle = waiting.remove(newest)?;
            if idle.since.elapsed() < timeout && is_good(&idle.stream) {
                return Some(idle.stream);
            }
        }
    }

    /// Closes those that waited too long or that are of no use any more.
    pub(super) fn sweep(&self, timeout: Duration, most: u32) {
        let mut waiting = self.waiting();
        waiting.retain(|idle| idle.since.elapsed() < timeout && sounds_quiet(&idle.stream));
        while waiting.len() > most as usize {
            waiting.pop_front();
        }
    }

    /// Closes the ones that wait longest until there are no more than so many.
    pub(super) fn shrink(&self, most: usize) {
        let mut waiting = self.waiting();
        while waiting.len() > most {
            waiting.pop_front();
        }
    }

    /// Closes all.
    pub(super) fn clear(&self) {
        self.waiting().clear();
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.waiting().len()
    }
}

/// Whether the connection is open and nothing waits on it. Asked of the socket: tokio may not have heard yet.
fn is_quiet(stream: &TcpStream) -> bool {
    is_nothing(&peek(stream))
}

/// The same, as far as tokio has heard: the socket is asked only if something came.
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
            pool.put(near, None, 2);
        }
        assert_eq!(pool.len(), 2);
        assert_eq!(far_ends[0].read(&mut [0]).await.unwrap(), 0);
        let taken = [
            pool.take(None, LONG, Reuse::Asked).unwrap(),
            pool.take(None, LONG, Reuse::Asked).unwrap(),
        ];
        assert_eq!(
            taken.map(|s| s.local_addr().unwrap().port()),
            [ports[2], ports[1]]
        );
        assert!(pool.take(None, LONG, Reuse::Asked).is_none());
    }

    #[tokio::test]
    async fn what_was_closed_or_speaks_unasked_is_not_given_out() {
        let pool = IdlePool::default();
        let (near, far) = pair().await;
        pool.put(near, None, 9);
        drop(far);
        let (near, mut far) = pair().await;
        pool.put(near, None, 9);
        far.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            .await
            .unwrap();
        // On the loopback both have arrived by now.
        assert!(pool.take(None, LONG, Reuse::Asked).is_none());
        assert_eq!(pool.len(), 0);
    }

    #[tokio::test]
    async fn what_was_heard_of_is_not_given_out_and_costs_nothing_to_know() {
        let pool = IdlePool::default();
        for speaks in [false, true] {
            let (near, mut far) = pair().await;
            pool.put(near, None, 9);
            let quiet = pool.take(None, LONG, Reuse::Unheard).unwrap();
            pool.put(quiet, None, 9);
            match speaks {
                true => far.write_all(b"!").await.unwrap(),
                false => far.shutdown().await.unwrap(),
            }
            // The runtime hears of it when it waits for events: until then it is given out.
            while pool.len() > 0 {
                tokio::task::yield_now().await;
                match pool.take(None, LONG, Reuse::Unheard) {
                    Some(unheard) => pool.waiting().push_back(Idle {
                        stream: unheard,
                        since: Instant::now(),
                        owner: None,
                    }),
                    None => break,
                }
            }
            assert_eq!(pool.len(), 0);
        }
        let (near, _far) = pair().await;
        pool.put(near, None, 9);
        assert!(pool.take(None, LONG, Reuse::No).is_none());
        assert_eq!(pool.len(), 1);
    }

    #[tokio::test]
    async fn age_counts_and_what_is_old_is_closed_in_order() {
        let pool = IdlePool::default();
        let (near, mut far) = pair().await;
        pool.put(near, None, 9);
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
        pool.put(near, owner(1), 9);
        assert!(pool.take(owner(2), LONG, Reuse::Asked).is_none());
        assert!(pool.take(None, LONG, Reuse::Asked).is_none());
        assert!(pool.take(owner(1), LONG, Reuse::Asked).is_some());
    }
}
