//! Thousands of connections, open and idle.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_lab::topology::Nodes;
use socket2::SockRef;

/// What each end sends before the connection is left alone: a request and an answer.
const MESSAGE: [u8; 1024] = [b'x'; 1024];
/// How long one step of setting a connection up may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Open connections, both ends of each. Dropping it resets them: 8,000 sockets in TIME-WAIT would be measured with
/// whatever comes next.
#[derive(Debug)]
pub(crate) struct Held {
    ends: Vec<[TcpStream; 2]>,
}

impl Held {
    /// Opens `count` connections one after the other from the client to `to`; they arrive at `at` in the server.
    pub(crate) fn open(nodes: &Nodes, at: SocketAddr, to: SocketAddr, count: usize) -> Result<Self> {
        let listener = nodes.server.run(|| listen(at))?.context("listen")?;
        let mut ends = Vec::with_capacity(count);
        let opened = nodes.client.run(|| {
            for _ in 0..count {
                ends.push(open_one(&listener, to)?);
            }
            io::Result::Ok(())
        })?;
        opened.with_context(|| format!("open connection {} of {count} to {to}", ends.len() + 1))?;
        Ok(Held { ends })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for end in self.ends.iter().flatten() {
            // It is closed next; how politely makes no difference to what was measured.
            let _ = SockRef::from(end).set_linger(Some(Duration::ZERO));
        }
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    // Applies to accept(2) too.
    SockRef::from(&listener).set_read_timeout(Some(PATIENCE))?;
    Ok(listener)
}

fn open_one(listener: &TcpListener, to: SocketAddr) -> io::Result<[TcpStream; 2]> {
    let mut client = TcpStream::connect_timeout(&to, PATIENCE)?;
    let (mut server, _) = listener.accept()?;
    for end in [&client, &server] {
        end.set_read_timeout(Some(PATIENCE))?;
    }
    let mut message = MESSAGE;
    client.write_all(&MESSAGE)?;
    server.read_exact(&mut message)?;
    server.write_all(&MESSAGE)?;
    client.read_exact(&mut message)?;
    Ok([client, server])
}
