//! Holds thousands of connections, open and idle.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longsplice_lab::topology::Nodes;
use socket2::SockRef;

/// Message that each end sends before the connection is left alone: a request and an answer.
const MESSAGE: [u8; 1024] = [b'x'; 1024];
/// Longest piece that a client reads at a time.
const PIECE: usize = 16 << 10;
/// Longest time for one step of setting up a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Request and answer of RFC 6455; the key and its answer are those of section 1.3.
const UPGRADE: &[u8] =
    b"GET /chat HTTP/1.1\r\nHost: server.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// First exchange on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Plain TCP, without a handshake of its own.
    Plain,
    /// Handshake of a WebSocket.
    WebSocket,
}

/// Open connections, both ends of each. Dropping it resets them: 8,000 sockets in TIME-WAIT would disturb the next
/// measurement.
#[derive(Debug)]
pub(crate) struct Held {
    ends: Vec<[TcpStream; 2]>,
}

impl Held {
    /// Opens `count` connections one after the other from the client to `to`; they arrive at `at` in the server.
    pub(crate) fn open(nodes: &Nodes, at: SocketAddr, to: SocketAddr, count: usize) -> Result<Self> {
        Held::open_by(1, Opening::Plain, nodes, at, to, count)
    }

    /// Opens `count` connections, `threads` of them at a time. The two ends of an element may then belong to different
    /// connections.
    pub(crate) fn open_by(
        threads: usize,
        opening: Opening,
        nodes: &Nodes,
        at: SocketAddr,
        to: SocketAddr,
        count: usize,
    ) -> Result<Self> {
        let listener = nodes.server.run(|| listen(at))?.context("listen")?;
        let share = |number| count / threads + usize::from(number < count % threads);
        let open = |count| (0..count).map(|_| open_one(opening, &listener, to)).collect();
        let opened = nodes.client.run(|| {
            thread::scope(|scope| {
                let one = |number| {
                    let (share, open) = (&share, &open);
                    scope.spawn(move || -> io::Result<Vec<_>> { open(share(number)) })
                };
                // Start all threads before the first join.
                let all: Vec<_> = (0..threads).map(one).collect();
                let all = all.into_iter().map(|thread| thread.join());
                all.map(|opened| opened.map_err(|_| io::Error::other("a thread panicked"))?)
                    .collect::<io::Result<Vec<_>>>()
            })
        })?;
        let ends = opened.with_context(|| format!("open {count} connections to {to}"))?;
        Ok(Held {
            ends: ends.into_iter().flatten().collect(),
        })
    }

    /// Sends each write as a segment from now on (this departs from RFC 1122 section 4.2.3.4).
    pub(crate) fn set_nodelay(&self) -> Result<()> {
        let mut ends = self.ends.iter().flatten();
        Ok(ends.try_for_each(|end| end.set_nodelay(true))?)
    }

    /// Sends `size` bytes each way on each connection, every one of them `byte`, and compares what arrives.
    pub(crate) fn exchange(&mut self, size: usize, byte: u8) -> Result<()> {
        let (sent, mut got) = (vec![byte; size], vec![!byte; size]);
        for [client, _] in &mut self.ends {
            client.write_all(&sent).context("send a segment")?;
        }
        for [_, server] in &mut self.ends {
            server.read_exact(&mut got).context("wait for a segment")?;
            ensure!(got == sent, "another segment arrived than was sent");
            server.write_all(&sent).context("answer a segment")?;
        }
        for [client, _] in &mut self.ends {
            got.fill(!byte);
            client.read_exact(&mut got).context("wait for an answer")?;
            ensure!(got == sent, "another answer arrived than was sent");
        }
        Ok(())
    }

    /// Sends `size` bytes to the client on each connection.
    pub(crate) fn send(&mut self, size: usize) -> Result<()> {
        let sent = vec![b'x'; size];
        let mut servers = self.ends.iter_mut().map(|[_, server]| server);
        servers
            .try_for_each(|server| server.write_all(&sent))
            .context("send to a client")
    }

    /// Sends `size` bytes to the client on each connection, in pieces, which the clients read.
    pub(crate) fn download(&mut self, size: usize) -> Result<()> {
        let mut left = size;
        while left > 0 {
            let mut piece = vec![0; left.min(PIECE)];
            left -= piece.len();
            self.send(piece.len())?;
            for [client, _] in &mut self.ends {
                client.read_exact(&mut piece).context("wait for a piece")?;
            }
        }
        Ok(())
    }

    /// Closes all connections in order, the client first; returns when both ends of each have read the other's FIN.
    pub(crate) fn close(mut self) -> Result<()> {
        let shut = |from: &TcpStream| from.shutdown(Shutdown::Write);
        self.ends.iter().try_for_each(|[client, _]| shut(client))?;
        for [_, server] in &mut self.ends {
            end_of(server)?;
            shut(server)?;
        }
        self.ends.iter_mut().try_for_each(|[client, _]| end_of(client))
    }
}

/// Reads the end of a stream.
fn end_of(stream: &mut TcpStream) -> Result<()> {
    let read = stream.read(&mut [0]).context("read the end of a connection")?;
    ensure!(read == 0, "a connection brought a byte that was not sent");
    Ok(())
}

impl Drop for Held {
    fn drop(&mut self) {
        for end in self.ends.iter().flatten() {
            // The socket is closed next; a reset makes no difference to the measurement.
            let _ = SockRef::from(end).set_linger(Some(Duration::ZERO));
        }
    }
}

/// Reads an HTTP head, and not a byte more.
fn head_of(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
        if head.len() > 8192 {
            return Err(io::Error::other("the head of a message does not end"));
        }
    }
    match head.starts_with(b"GET ") || head.starts_with(b"HTTP/1.1 101 ") {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&head).into_owned())),
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    // This applies to accept(2), too.
    SockRef::from(&listener).set_read_timeout(Some(PATIENCE))?;
    Ok(listener)
}

fn open_one(opening: Opening, listener: &TcpListener, to: SocketAddr) -> io::Result<[TcpStream; 2]> {
    let mut client = TcpStream::connect_timeout(&to, PATIENCE)?;
    client.set_read_timeout(Some(PATIENCE))?;
    if opening == Opening::WebSocket {
        // A switch connects to the server only after it has read a request.
        client.write_all(UPGRADE)?;
    }
    let (mut server, _) = listener.accept()?;
    server.set_read_timeout(Some(PATIENCE))?;
    if opening == Opening::WebSocket {
        head_of(&mut server)?;
        server.write_all(SWITCHING)?;
        head_of(&mut client)?;
    }
    let mut message = MESSAGE;
    client.write_all(&MESSAGE)?;
    server.read_exact(&mut message)?;
    server.write_all(&MESSAGE)?;
    client.read_exact(&mut message)?;
    Ok([client, server])
}
