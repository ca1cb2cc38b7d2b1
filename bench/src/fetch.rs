//! Sends HTTP/1.1 requests over a number of connections: as fast as answers come, or at a rate.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use longsplice_lab::Namespace;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::timeout;

/// Longest time for one answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Number of bytes read at a time.
const PIECE: usize = 256 << 10;
/// Longest head that is accepted.
const HEAD: usize = 8 << 10;
/// Load to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load<'a> {
    /// Address to connect to.
    pub(crate) at: SocketAddr,
    /// Path of a file.
    pub(crate) path: &'a str,
    /// Its length in bytes, which every answer must have.
    pub(crate) length: u64,
    /// Number of connections at a time.
    pub(crate) connections: usize,
    /// True if a connection serves more than one request.
    pub(crate) persistent: bool,
    /// Number of requests begun in a second; `None`: each as soon as the one before has its answer.
    pub(crate) rate: Option<f64>,
    /// Time for which requests are begun.
    pub(crate) duration: Duration,
}

/// Result of a load. A single answer with another status or length fails the whole load.
#[derive(Debug, Clone)]
pub(crate) struct Fetched {
    /// Number of answered requests.
    pub(crate) requests: u64,
    /// Time from the moment at which a request was due to the last byte of its answer, in microseconds.
    pub(crate) times_us: Vec<f64>,
}

impl Load<'_> {
    /// Runs the load in the client's namespace, on the calling thread's core.
    pub(crate) fn run(&self, client: &Namespace) -> Result<Fetched> {
        client.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("start a runtime")?;
            runtime.block_on(LocalSet::new().run_until(self.fetch()))
        })?
    }

    async fn fetch(&self) -> Result<Fetched> {
        let until = Instant::now() + self.duration;
        let request = self.request();
        let scratch = Rc::new(RefCell::new(vec![0; PIECE]));
        let due = self.rate.map(|rate| Rc::new(Due::at_rate(rate, self.duration)));
        let mut tasks = Vec::new();
        for _ in 0..self.connections {
            let worker = Worker {
                at: self.at,
                request: request.clone(),
                length: self.length,
                persistent: self.persistent,
                scratch: Rc::clone(&scratch),
            };
            tasks.push(match &due {
                None => tokio::task::spawn_local(worker.without_pause(until)),
                Some(due) => tokio::task::spawn_local(worker.when_due(Rc::clone(due))),
            });
        }
        if let Some(due) = &due {
            // Connect first: persistent connections are open before the first request is due, so that only requests are
            // measured.
            due.ready(self.connections).await?;
            due.begin()?;
        }
        let mut times_us = Vec::new();
        for task in tasks {
            let times = task.await.map_err(|_| anyhow!("a connection's task panicked"))?;
            times_us.extend(times.with_context(|| format!("fetch {} from {}", self.path, self.at))?);
        }
        Ok(Fetched {
            requests: times_us.len() as u64,
            times_us,
        })
    }

    fn request(&self) -> Rc<[u8]> {
        let connection = match self.persistent {
            true => "",
            false => "Connection: close\r\n",
        };
        let head = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: longsplice-bench\r\nAccept: */*\r\n{connection}\r\n",
            self.path, self.at
        );
        head.into_bytes().into()
    }
}

/// Schedule of requests.
#[derive(Debug)]
struct Due {
    /// Time of its beginning.
    start: Cell<Instant>,
    period: Duration,
    /// Total number of requests.
    most: u32,
    /// Number of requests taken.
    taken: Cell<u32>,
    /// One permit for each request that is due.
    now: Arc<Semaphore>,
    /// One permit for each connection that is ready, or failed.
    ready: Semaphore,
}

impl Due {
    /// Creates a schedule of requests at equal distances.
    fn at_rate(rate: f64, duration: Duration) -> Due {
        Due {
            start: Cell::new(Instant::now()),
            period: Duration::from_secs_f64(1.0 / rate),
            most: (rate * duration.as_secs_f64()) as u32,
            taken: Cell::new(0),
            now: Arc::new(Semaphore::new(0)),
            ready: Semaphore::new(0),
        }
    }

    /// Waits until so many connections are ready.
    async fn ready(&self, connections: usize) -> Result<()> {
        let connections = u32::try_from(connections)?;
        drop(self.ready.acquire_many(connections).await?);
        Ok(())
    }

    /// Gives the permits from a thread: the runtime's timers tick once a millisecond, a thread sleeps more precisely.
    fn begin(&self) -> Result<()> {
        self.start.set(Instant::now());
        let (start, period, most, now) = (self.start.get(), self.period, self.most, Arc::clone(&self.now));
        let give = move || {
            for number in 1..=most {
                thread::sleep((start + period * number).saturating_duration_since(Instant::now()));
                now.add_permits(1);
            }
        };
        let thread = thread::Builder::new().name("due".into());
        thread.spawn(give).context("start a thread")?;
        Ok(())
    }

    /// Waits until the next request is due, and returns the time at which it was due; `None`: there are no
    /// more.
    async fn take(&self) -> Option<Instant> {
        let number = self.taken.get() + 1;
        if number > self.most {
            return None;
        }
        self.taken.set(number);
        // The connection that waits first gets the first one: permits come in the order of the numbers.
        self.now.acquire().await.ok()?.forget();
        Some(self.start.get() + self.period * number)
    }
}

/// Worker: uses one connection, or one after the other.
struct Worker {
    at: SocketAddr,
    request: Rc<[u8]>,
    length: u64,
    persistent: bool,
    /// Buffer for bodies, whose content is ignored.
    scratch: Rc<RefCell<Vec<u8>>>,
}

impl Worker {
    async fn without_pause(self, until: Instant) -> Result<Vec<f64>> {
        let (mut stream, mut times) = (None, Vec::new());
        while Instant::now() < until {
            let begun = Instant::now();
            stream = self.exchange_in_time(stream).await?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    }

    async fn when_due(self, due: Rc<Due>) -> Result<Vec<f64>> {
        let connected = match self.persistent {
            true => self.connect().await.map(Some),
            false => Ok(None),
        };
        due.ready.add_permits(1);
        let (mut stream, mut times) = (connected?, Vec::new());
        while let Some(begun) = due.take().await {
            stream = self.exchange_in_time(stream).await?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    }

    async fn exchange_in_time(&self, stream: Option<TcpStream>) -> Result<Option<TcpStream>> {
        let done = timeout(PATIENCE, self.exchange(stream)).await;
        done.with_context(|| format!("no answer in {PATIENCE:?}"))?
    }

    async fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.at).await.context("connect")?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Sends a request and reads its answer; returns the connection, if it can be used again.
    async fn exchange(&self, stream: Option<TcpStream>) -> Result<Option<TcpStream>> {
        let mut stream = match stream {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        stream.write_all(&self.request).await.context("send a request")?;
        let mut left = self.head(&stream).await?;
        while left > 0 {
            let read = self.piece(&stream).await? as u64;
            ensure!(read > 0, "the connection ended {left} bytes before its answer");
            left = left.checked_sub(read).context("more came than was announced")?;
        }
        if self.persistent {
            return Ok(Some(stream));
        }
        ensure!(
            self.piece(&stream).await? == 0,
            "more came than one answer on a connection that was to close"
        );
        Ok(None)
    }

    /// Reads the head of an answer; returns the length of the rest of its body.
    async fn head(&self, stream: &TcpStream) -> Result<u64> {
        // Almost always it comes at once, together with the beginning of the body.
        let mut earlier: Vec<u8> = Vec::new();
        loop {
            let read = self.piece(stream).await?;
            ensure!(read > 0, "the connection ended before the head of an answer");
            let scratch = self.scratch.borrow();
            let piece = &scratch[..read];
            let all = match earlier.is_empty() {
                true => piece,
                false => {
                    earlier.extend_from_slice(piece);
                    &earlier
                }
            };
            if let Some((head, length)) = parse(all)? {
                ensure!(
                    length == self.length,
                    "an answer has {length} bytes instead of {}",
                    self.length
                );
                let body = (all.len() - head) as u64;
                return length.checked_sub(body).context("more came than was announced");
            }
            if earlier.is_empty() {
                earlier = piece.to_vec();
            }
            ensure!(earlier.len() < HEAD, "the head of an answer does not end");
        }
    }

    /// Reads the available bytes into the scratch; returns 0 at the end of the connection.
    async fn piece(&self, stream: &TcpStream) -> Result<usize> {
        loop {
            // Mostly there are bytes by now, or there were when the last piece was read.
            match stream.try_read(&mut self.scratch.borrow_mut()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.context("read an answer"),
            }
            stream.readable().await.context("wait for an answer")?;
        }
    }
}

/// Parses the head; returns its length, and that of the body, or `None` for an incomplete head.
fn parse(bytes: &[u8]) -> Result<Option<(usize, u64)>> {
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut answer = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(head) = answer.parse(bytes).context("read the head of an answer")? else {
        return Ok(None);
    };
    if answer.code != Some(200) {
        bail!("an answer has status {}", answer.code.unwrap_or_default());
    }
    let length = answer
        .headers
        .iter()
        .find(|f| f.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|f| std::str::from_utf8(f.value).ok()?.parse().ok());
    Ok(Some((head, length.context("an answer has no length")?)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn load(at: SocketAddr, persistent: bool, rate: Option<f64>) -> Load<'static> {
        Load {
            at,
            path: "/x",
            length: 5,
            connections: 2,
            persistent,
            rate,
            duration: Duration::from_millis(300),
        }
    }

    fn fetch(load: &Load<'_>) -> Result<Fetched> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(LocalSet::new().run_until(load.fetch()))
    }

    /// Starts a server that gives this answer to each request, in two pieces.
    fn server(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                stream.set_nodelay(true).unwrap();
                thread::spawn(move || {
                    let mut request = [0; 1000];
                    while let Ok(n @ 1..) = stream.read(&mut request) {
                        let close = request[..n].windows(7).any(|w| w == b": close");
                        let (one, two) = answer.split_at(20);
                        if stream.write_all(one.as_bytes()).is_err()
                            || stream.write_all(two.as_bytes()).is_err()
                        {
                            return;
                        }
                        if close {
                            return;
                        }
                    }
                });
            }
        });
        at
    }

    #[test]
    fn answers_are_counted_and_checked() {
        let good = server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        for (persistent, rate, about) in [
            (true, None, 3..1_000_000),
            (false, None, 3..1_000_000),
            (true, Some(200.0), 55..62),
        ] {
            let fetched = fetch(&load(good, persistent, rate)).unwrap();
            assert!(
                about.contains(&fetched.requests),
                "{persistent} {rate:?} {fetched:?}"
            );
            assert_eq!(fetched.times_us.len() as u64, fetched.requests);
        }
        for (answer, says) in [
            ("HTTP/1.1 503 No\r\nContent-Length: 5\r\n\r\nhello", "status 503"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello!",
                "6 bytes instead of 5",
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!", "more came"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
                "before its answer",
            ),
            ("HTTP/1.1 200 OK\r\nDate: none\r\n\r\n", "no length"),
        ] {
            let error = fetch(&load(server(answer), false, None)).unwrap_err();
            assert!(format!("{error:#}").contains(says), "{error:#}");
        }
    }
}
