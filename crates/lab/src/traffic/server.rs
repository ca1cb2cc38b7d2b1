//! Server's end of verified traffic.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle, Scope};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, SockRef, Socket, Type};

use super::end::{self, STACK};
use super::outcome::EndReport;
use super::side::Side;
use super::{board, header};
use crate::{Error, Namespace};

/// Limits how long a client may take to say what it wants. One whose SYN was lost has measured a round trip of a second: where its
/// first segment is lost three times, it comes after 21 s.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Server that does the job in the header of each connection. Dropping it ends all of them.
#[derive(Debug)]
pub struct TrafficServer {
    listener: Arc<TcpListener>,
    addr: SocketAddr,
    open: Open,
    thread: Option<JoinHandle<()>>,
}

/// Open connections, so that they can be ended.
type Open = Arc<Mutex<HashMap<u64, Arc<TcpStream>>>>;

impl TrafficServer {
    /// Listens at `addr` in `namespace`; port 0 lets the kernel choose.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot listen there.
    pub fn start(namespace: &Namespace, addr: SocketAddr) -> Result<Self, Error> {
        namespace.run(|| Self::start_here(addr))?
    }

    /// Listens at `addr` in the namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot listen there.
    pub fn start_here(addr: SocketAddr) -> Result<Self, Error> {
        super::raise_file_limit();
        let listener = listen(addr).map_err(Error::io(format!("listen at {addr}")))?;
        let addr = listener.local_addr().map_err(Error::io("read an address"))?;
        let listener = Arc::new(listener);
        let open = Open::default();
        let (accepting, known) = (Arc::clone(&listener), open.clone());
        let thread = thread::Builder::new()
            .name("lab-accept".into())
            .spawn(move || accept_all(&accepting, &known))
            .map_err(Error::io("start a thread"))?;
        Ok(TrafficServer {
            listener,
            addr,
            open,
            thread: Some(thread),
        })
    }

    /// Returns the address at which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.open.lock().len()
    }

    /// Waits until another thread drops it or the listener fails: for a program that only serves.
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for TrafficServer {
    fn drop(&mut self) {
        // On Linux this wakes a thread in accept(2), which then fails with EINVAL.
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        let Some(thread) = self.thread.take() else { return };
        // A panic was printed when it happened.
        let _ = thread.join();
    }
}

fn listen(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Serves until the listener is shut down, then ends all connections and waits for their threads.
fn accept_all(listener: &TcpListener, open: &Open) {
    thread::scope(|scope| {
        serve_until_shut_down(listener, open, scope);
        // The map is complete: only this thread adds connections.
        for stream in open.lock().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

fn serve_until_shut_down<'scope>(
    listener: &TcpListener,
    open: &'scope Open,
    scope: &'scope Scope<'scope, '_>,
) {
    for number in 0.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => Arc::new(stream),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionAborted | ErrorKind::Interrupted => continue,
                // The listener was shut down.
                ErrorKind::InvalidInput => return,
                _ => return eprintln!("longsplice-lab: the server stops accepting: {error}"),
            },
        };
        open.lock().insert(number, Arc::clone(&stream));
        let serve = thread::Builder::new().name("lab-serve".into()).stack_size(STACK);
        let spawned = serve.spawn_scoped(scope, move || {
            let ended = serve_one(&stream);
            open.lock().remove(&number);
            drop(stream);
            // Post the report last: a client that has read it finds the connection closed.
            if let Some((id, report)) = ended {
                board::end(id, report);
            }
        });
        if let Err(error) = spawned {
            open.lock().remove(&number);
            eprintln!("longsplice-lab: the server refuses a connection: {error}");
        }
    }
}

/// Does the job in the header. Returns the number of the connection and the report on it.
fn serve_one(stream: &TcpStream) -> Option<(u64, EndReport)> {
    let header = stream
        .set_read_timeout(Some(HEADER_TIMEOUT))
        .and_then(|()| header::read(stream));
    match header {
        Ok(job) => {
            board::begin(job.id);
            Some((job.id, end::run(stream, Side::Server, &job)))
        }
        // The connection cannot be identified. Its client will notice.
        Err(error) => {
            eprintln!("longsplice-lab: no header from {:?}: {error}", stream.peer_addr());
            None
        }
    }
}
