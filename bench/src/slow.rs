//! HTTP clients that read slowly: each requests one file, and reads a little of it at a time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use longsplice_lab::Namespace;
use longsplice_lab::cores::Pinned;
use socket2::SockRef;

use crate::cores;

/// Number of bytes that a client reads at a time, and interval between two reads.
const PIECE: usize = 4 << 10;
const PERIOD: Duration = Duration::from_millis(500);
/// Number of groups that read one after the other, rather than all at once.
const GROUPS: usize = 10;
/// Longest time for a connection to be made.
const PATIENCE: Duration = Duration::from_secs(10);

/// Readers at work. Dropping it resets their connections.
#[derive(Debug)]
pub(crate) struct SlowReaders {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl SlowReaders {
    /// Connects so many from a namespace, each of which requests `path`, and lets them read on the ends' core.
    pub(crate) fn start(client: &Namespace, at: SocketAddr, path: &str, count: usize) -> Result<SlowReaders> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nUser-Agent: longsplice-bench\r\n\r\n");
        let ask = || -> std::io::Result<TcpStream> {
            let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
            stream.write_all(request.as_bytes())?;
            stream.set_nonblocking(true)?;
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
            Ok(stream)
        };
        let streams = client.run(|| (0..count).map(|_| ask()).collect::<std::io::Result<Vec<_>>>())?;
        let streams = streams.with_context(|| format!("connect {count} slow readers to {at}"))?;
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let read = move || read_slowly(streams, &until);
        let thread = thread::Builder::new().name("slow readers".into()).spawn(read);
        Ok(SlowReaders {
            over,
            thread: Some(thread.context("start a thread")?),
        })
    }

    /// Ends them; returns the number of those that were connected until now.
    pub(crate) fn end(mut self) -> Result<usize> {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("they are ended once")?;
        thread
            .join()
            .map_err(|_| anyhow!("the thread of the slow readers panicked"))
    }
}

impl Drop for SlowReaders {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Reads until `over`; returns the number of connections that lived until then.
fn read_slowly(mut streams: Vec<TcpStream>, over: &AtomicBool) -> usize {
    // A thread that cannot be pinned reads on any core.
    let _ends = Pinned::to(cores::ENDS);
    let mut piece = [0; PIECE];
    let mut alive = vec![true; streams.len()];
    let mut next = Instant::now();
    for group in (0..GROUPS).cycle() {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let members = streams.iter_mut().zip(&mut alive).skip(group).step_by(GROUPS);
        for (stream, lives) in members.filter(|(_, lives)| **lives) {
            *lives = match stream.read(&mut piece) {
                Ok(read) => read > 0,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            };
        }
        next += PERIOD / GROUPS as u32;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    alive.iter().filter(|lives| **lives).count()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn they_read_a_little_at_a_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.write_all(&[b'x'; 10 * PIECE]).unwrap();
        let other = near.try_clone().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let reads = thread::spawn(move || read_slowly(vec![near], &until));
        thread::sleep(PERIOD * 2);
        over.store(true, Ordering::Relaxed);
        assert_eq!(reads.join().unwrap(), 1, "it lives");
        let (mut rest, mut left) = (vec![0; 20 * PIECE], 0);
        while let Ok(n @ 1..) = (&other).read(&mut rest) {
            left += n;
        }
        assert!((6 * PIECE..10 * PIECE).contains(&left), "{left}");
    }
}
