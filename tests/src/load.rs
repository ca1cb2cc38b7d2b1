//! Connections that come and go while a daemon is replaced: each is served, or counted.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use longsplice_lab::Namespace;

/// Payload of a connection, both ways, in bytes.
const BYTES: usize = 200;

/// Pause of each client between two connections.
const PAUSE: Duration = Duration::from_millis(5);

/// Longest wait of a client for an answer.
const ANSWER: Duration = Duration::from_secs(20);

/// Clients that connect again and again, and a server that returns what they send.
#[derive(Debug)]
pub struct Load {
    over: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Vec<io::Error>>>,
}

impl Load {
    /// Starts clients in `namespace` that connect to `front`; `server` is the socket behind it.
    pub fn start(namespace: &Namespace, front: SocketAddr, server: TcpListener, clients: usize) -> Load {
        thread::spawn(move || {
            for connection in server.incoming().flatten() {
                thread::spawn(move || echo(connection));
            }
        });
        let (over, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let client = |_| {
            let (over, served) = (Arc::clone(&over), Arc::clone(&served));
            let begin = || thread::spawn(move || run(front, &over, &served));
            namespace.run(begin).expect("the namespace")
        };
        Load {
            clients: (0..clients).map(client).collect(),
            over,
            served,
        }
    }

    /// Returns the number of connections that were served so far.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Ends it, and returns the number of connections that were served, and the errors of the others.
    pub fn end(self) -> (u64, Vec<io::Error>) {
        self.over.store(true, Ordering::Relaxed);
        let errors = self
            .clients
            .into_iter()
            .flat_map(|client| client.join().expect("a client"));
        let errors = errors.collect();
        (self.served.load(Ordering::Relaxed), errors)
    }
}

fn echo(mut connection: TcpStream) -> io::Result<()> {
    let mut bytes = [0; BYTES];
    loop {
        match connection.read(&mut bytes)? {
            0 => return Ok(()),
            long => connection.write_all(&bytes[..long])?,
        }
    }
}

fn run(front: SocketAddr, over: &AtomicBool, served: &AtomicU64) -> Vec<io::Error> {
    let mut errors = Vec::new();
    let mut number = 0_u8;
    while !over.load(Ordering::Relaxed) {
        number = number.wrapping_add(1);
        match once(front, number) {
            Ok(()) => drop(served.fetch_add(1, Ordering::Relaxed)),
            Err(error) => errors.push(error),
        }
        thread::sleep(PAUSE);
    }
    errors
}

fn once(front: SocketAddr, number: u8) -> io::Result<()> {
    let mut client = TcpStream::connect(front)?;
    client.set_read_timeout(Some(ANSWER))?;
    let sent: Vec<u8> = (0..BYTES).map(|n| number.wrapping_add(n as u8)).collect();
    client.write_all(&sent)?;
    client.shutdown(std::net::Shutdown::Write)?;
    let mut received = Vec::new();
    client.read_to_end(&mut received)?;
    match received == sent {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} of {BYTES} bytes came back", received.len()),
        )),
    }
}
