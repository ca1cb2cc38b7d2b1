//! Honest server: it reads requests by the letter, records them, and answers as the path says.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use longsplice_lab::{Namespace, pattern::Pattern};
use longsplice_repair::unacknowledged;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    runtime::{Builder, Runtime},
    sync::Semaphore,
    time::timeout,
};

use super::client::field;
use crate::stop_listening;

/// Request as the server received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Number of its connection, from 0.
    pub connection: usize,
    /// Head, with its empty line; or the bytes that came in place of a request.
    pub head: String,
    /// Body, without chunk framing.
    pub body: Vec<u8>,
    /// True if all of it was well-formed.
    pub is_whole: bool,
}

impl Seen {
    /// Returns method, target and version.
    pub fn first_line(&self) -> &str {
        self.head.split("\r\n").next().unwrap_or_default()
    }

    /// Returns the value of a field, if there is one of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }
}

/// Returns the body of `/length/N` and its like.
pub fn content(length: usize) -> Vec<u8> {
    Pattern::new(length as u64).prefix(length)
}

#[derive(Debug)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    go_on: Semaphore,
    well: AtomicBool,
    unasked: AtomicUsize,
}

/// The server. Dropping it ends its connections.
///
/// | path | answer |
/// |---|---|
/// | `/length/N` | N bytes of [`content`] |
/// | `/chunked/N` | the same in chunks, with an extension and a trailer |
/// | `/close/N` | the same up to the end of the connection |
/// | `/old/N` | the same, of HTTP/1.0 |
/// | `/halves/N` | the same; the second half waits for [`Backend::go_on`] |
/// | `/strict/N` | the same, once it may [go on](Backend::go_on); it stops where the other end closes its half |
/// | `/deaf/N` | as `/length/N`; the server does not react to the end of this connection |
/// | `/last/N` | the same, and then the end of the connection, of which its head does not speak |
/// | `/twice/N` | the same, and behind it a reply that answers nothing |
/// | `/short/N` | one byte less than was promised, and the end |
/// | `/status/S` | that status, and no body |
/// | `/health` | 200, or 503: see [`Backend::set_well`] |
/// | `/vanish` | `ok`; of one that is not well, the end of the connection |
/// | `/hints` | 103, then `ok` |
/// | `/echo` | the request's body |
/// | `/reject` | 403 at once, without reading the body |
/// | `/mute` | nothing |
/// | `/upgrade` | 101, then all that comes |
/// | `/raw/…` | the bytes in hexadecimal, and the end |
/// | all else | `ok` |
#[derive(Debug)]
pub struct Backend {
    shared: Arc<Shared>,
    /// Its socket, until it stops.
    listening: Option<TcpListener>,
    // Dropped without waiting: its tasks are to end.
    runtime: Option<Runtime>,
}

impl Backend {
    /// Starts a server in a node.
    pub fn start(at: &Namespace, listen: SocketAddr) -> Backend {
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            connections: AtomicUsize::new(0),
            go_on: Semaphore::new(0),
            well: AtomicBool::new(true),
            unasked: AtomicUsize::new(0),
        });
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = at.run(|| TcpListener::bind(listen)).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listening = Some(listener.try_clone().unwrap());
        let backend = Arc::clone(&shared);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let number = backend.connections.fetch_add(1, Ordering::Relaxed);
                let connection = Connection {
                    shared: Arc::clone(&backend),
                    number,
                    stream: BufReader::new(stream),
                    keeps_open: false,
                };
                // Errors show in the recorded requests.
                tokio::spawn(async { connection.serve().await.ok() });
            }
        });
        Backend {
            shared,
            listening,
            runtime: Some(runtime),
        }
    }

    /// Returns the requests received so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    /// Returns the requests received so far, and forgets them.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.shared.seen.lock())
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Sets the answer to health checks: healthy, as at first, or not.
    pub fn set_well(&self, is_well: bool) {
        self.shared.well.store(is_well, Ordering::Relaxed);
    }

    /// Returns the number of unrequested replies that have reached the other end.
    pub fn unasked(&self) -> usize {
        self.shared.unasked.load(Ordering::Relaxed)
    }

    /// Lets one `/halves`, `/strict`, `/last` or `/twice` go on.
    pub fn go_on(&self) {
        self.shared.go_on.add_permits(1);
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.take() {
            stop_listening(listening);
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

struct Connection {
    shared: Arc<Shared>,
    number: usize,
    stream: BufReader<TcpStream>,
    /// True if it stays open when the other end has closed its half.
    keeps_open: bool,
}

/// Result of an exchange: true if the connection goes on.
type Next = io::Result<bool>;

impl Connection {
    async fn serve(mut self) -> io::Result<()> {
        self.stream.get_ref().set_nodelay(true)?;
        while let Some(head) = self.head().await? {
            if !self.answer(&head).await? {
                break;
            }
        }
        if self.keeps_open {
            std::future::pending::<()>().await;
        }
        self.stream.get_mut().shutdown().await
    }

    /// Reads a whole head; returns `None` at the end of the connection between two requests.
    async fn head(&mut self) -> io::Result<Option<String>> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if self.stream.read_until(b'\n', &mut head).await? == 0 {
                if !head.is_empty() {
                    self.record(&head, Vec::new(), false);
                }
                return Ok(None);
            }
        }
        Ok(Some(String::from_utf8_lossy(&head).into_owned()))
    }

    fn record(&self, head: impl AsRef<[u8]>, body: Vec<u8>, is_whole: bool) {
        self.shared.seen.lock().push(Seen {
            connection: self.number,
            head: String::from_utf8_lossy(head.as_ref()).into_owned(),
            body,
            is_whole,
        });
    }

    async fn body(&mut self, head: &str) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if let Some(length) = field(head, "Content-Length") {
            body.resize(length.parse().map_err(io::Error::other)?, 0);
            self.stream.read_exact(&mut body).await?;
            return Ok(body);
        }
        if field(head, "Transfer-Encoding").is_none() {
            return Ok(body);
        }
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).await?;
            let size = line.split([';', '\r']).next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
            let start = body.len();
            body.resize(start + size, 0);
            self.stream.read_exact(&mut body[start..]).await?;
            // Read the end of the data, or that of the trailers.
            loop {
                line.clear();
                self.stream.read_line(&mut line).await?;
                match line.as_str() {
                    "\r\n" => break,
                    _ if size == 0 && line.ends_with("\r\n") => {}
                    _ => return Err(io::Error::other(line)),
                }
            }
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn answer(&mut self, head: &str) -> Next {
        let first = head.split("\r\n").next().unwrap_or_default();
        let target = first.split(' ').nth(1).unwrap_or_default();
        let path = target.split('?').next().unwrap_or_default().to_owned();
        if path == "/reject" {
            self.record(head, Vec::new(), true);
            self.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
                .await?;
            return Ok(false);
        }
        if field(head, "Expect").is_some() {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let body = match self.body(head).await {
            Ok(body) => body,
            Err(e) => {
                self.record(head, Vec::new(), false);
                return Err(e);
            }
        };
        self.record(head, body.clone(), true);
        let goes_on = self.reply(head, &path, &body).await?;
        let says = field(head, "Connection").unwrap_or_default().to_ascii_lowercase();
        let persists = match first.ends_with("HTTP/1.1") {
            true => says != "close",
            false => says == "keep-alive",
        };
        Ok(goes_on && persists)
    }

    async fn reply(&mut self, head: &str, path: &str, body: &[u8]) -> Next {
        let (kind, argument) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
        let n: usize = argument.parse().unwrap_or_default();
        let is_head = head.starts_with("HEAD ");
        let is_old = head.split("\r\n").next().unwrap_or_default().ends_with("1.0");
        match kind {
            "strict" => {
                self.may_go_on().await?;
                self.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n\r\n").as_bytes())
                    .await?;
                for piece in content(n).chunks(64 << 10) {
                    // Look for its end, without a wait.
                    if timeout(Duration::ZERO, self.stream.fill_buf()).await.is_ok() {
                        return Ok(false);
                    }
                    self.write(piece).await?;
                }
                Ok(true)
            }
            "length" | "halves" | "deaf" | "last" | "twice" | "short" => {
                let keep = if is_old { "Connection: keep-alive\r\n" } else { "" };
                self.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n{keep}\r\n").as_bytes())
                    .await?;
                if !is_head {
                    self.content(kind, n).await?;
                }
                self.keeps_open |= kind == "deaf";
                if kind == "twice" {
                    self.say_unasked().await?;
                }
                Ok(kind != "short" && kind != "last")
            }
            "chunked" => {
                self.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    .await?;
                if !is_head {
                    self.chunks(n).await?;
                }
                Ok(true)
            }
            "close" => {
                self.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                    .await?;
                self.write(&content(n)).await.map(|()| false)
            }
            "old" => {
                self.write(b"HTTP/1.0 200 OK\r\n\r\n").await?;
                self.write(&content(n)).await.map(|()| false)
            }
            "status" => self
                .write(format!("HTTP/1.1 {n} Whatever\r\nETag: \"x\"\r\n\r\n").as_bytes())
                .await
                .map(|()| true),
            "raw" => self.write(&unhex(argument)).await.map(|()| false),
            "/hints" => {
                let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                self.write(hints).await.map(|()| true)
            }
            "/health" => {
                let status = if self.shared.well.load(Ordering::Relaxed) {
                    200
                } else {
                    503
                };
                let head = format!("HTTP/1.1 {status} Health\r\nContent-Length: 0\r\n\r\n");
                self.write(head.as_bytes()).await.map(|()| true)
            }
            "/vanish" if !self.shared.well.load(Ordering::Relaxed) => Ok(false),
            "/mute" => std::future::pending().await,
            "/upgrade" => {
                self.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n",
                )
                .await?;
                let mut buffer = vec![0; 64 << 10];
                loop {
                    let n = self.stream.read(&mut buffer).await?;
                    if n == 0 {
                        return Ok(false);
                    }
                    self.write(&buffer[..n]).await?;
                }
            }
            _ => {
                let body = if kind == "/echo" { body } else { b"ok" };
                self.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes())
                    .await?;
                self.write(if is_head { b"" } else { body }).await.map(|()| true)
            }
        }
    }

    async fn content(&mut self, kind: &str, n: usize) -> io::Result<()> {
        let content = content(n);
        match kind {
            "short" => self.write(&content[..n - 1]).await,
            "halves" | "last" | "twice" => {
                self.write(&content[..n / 2]).await?;
                self.may_go_on().await?;
                self.write(&content[n / 2..]).await
            }
            _ => self.write(&content).await,
        }
    }

    /// Waits for [`Backend::go_on`].
    async fn may_go_on(&self) -> io::Result<()> {
        let permit = self.shared.go_on.acquire().await;
        permit.map_err(io::Error::other).map(|permit| permit.forget())
    }

    /// Sends an unrequested reply once the last reply has arrived, and counts it once it has arrived, too.
    async fn say_unasked(&mut self) -> io::Result<()> {
        self.all_came().await?;
        self.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nunasked")
            .await?;
        // It counts as arrived also where the other end closed the connection because of it.
        let came = self.all_came().await;
        self.shared.unasked.fetch_add(1, Ordering::Relaxed);
        came
    }

    /// Waits until the other end has acknowledged everything, or has reset the connection.
    async fn all_came(&self) -> io::Result<()> {
        let stream = self.stream.get_ref();
        while unacknowledged(stream)? > 0 && stream.take_error()?.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Sends chunks of many lengths.
    async fn chunks(&mut self, n: usize) -> io::Result<()> {
        let content = content(n);
        let mut rest = &content[..];
        let mut sizes = [1, 15, 4_000, 100_000].into_iter().cycle();
        while !rest.is_empty() {
            let size = sizes.next().unwrap_or(1).min(rest.len());
            self.write(format!("{size:x};a=\"b\"\r\n").as_bytes()).await?;
            self.write(&rest[..size]).await?;
            self.write(b"\r\n").await?;
            rest = &rest[size..];
        }
        self.write(b"0\r\nDigest: none\r\n\r\n").await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes).await
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}
