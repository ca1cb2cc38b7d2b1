//! Tests upstreams over real sockets on the loopback.

mod dns;
mod health;
mod idle;
mod leases;
mod lookups;
mod names;
mod queue;
mod reload;

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    path::Path,
    sync::Arc,
    time::Duration,
};

use longsplice_engine::{OpenError, Splicer};
use longsplice_repair::options::set_reset_on_close;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc,
    time,
};
use tokio_util::task::AbortOnDropHandle;

use super::{names::Names, *};
use crate::config::{self, Config, SourceAddress};

/// Longest wait for anything on the loopback.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server that hands out the connections that it accepts. It refuses connections once it is dropped.
struct Backend {
    address: SocketAddr,
    accepted: tokio::sync::Mutex<mpsc::UnboundedReceiver<TcpStream>>,
    _task: AbortOnDropHandle<()>,
}

impl Backend {
    async fn new() -> Backend {
        Backend::at("127.0.0.1:0".parse().unwrap()).await
    }

    async fn at(address: SocketAddr) -> Backend {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(1024).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, accepted) = mpsc::unbounded_channel();
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if sender.send(stream).is_err() {
                    return;
                }
            }
        }));
        Backend {
            address,
            accepted: tokio::sync::Mutex::new(accepted),
            _task: task,
        }
    }

    async fn accept(&self) -> TcpStream {
        let next = async { self.accepted.lock().await.recv().await };
        time::timeout(PATIENCE, next).await.unwrap().unwrap()
    }
}

/// Returns an address without a listener.
async fn closed() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

/// A client's connection, leg A. Nothing is read from it.
struct Guest {
    near: TcpStream,
    _far: TcpStream,
}

impl Guest {
    async fn new() -> Guest {
        Guest::of_host(1).await
    }

    /// Connects from the address 127.0.0.`host`.
    async fn of_host(host: u8) -> Guest {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        let own = Ipv4Addr::new(127, 0, 0, host);
        socket.bind((own, 0).into()).unwrap();
        let far = socket.connect(listener.local_addr().unwrap());
        let (far, near) = tokio::join!(far, listener.accept());
        Guest {
            near: near.unwrap().0,
            _far: far.unwrap(),
        }
    }

    fn ask(&self) -> Ask<'_> {
        Ask {
            client: self.near.as_fd(),
            peer: self.near.peer_addr().unwrap(),
            local: self.near.local_addr().unwrap(),
            source: SourceAddress::Forwarder,
            key: None,
            sticky: None,
            ipv4: true,
            reuse: true,
            not: &[],
        }
    }
}

/// Returns a configuration whose one upstream, `u`, has these keys.
fn config(keys: &str) -> Config {
    let text =
        format!("[[upstream]]\nname = \"u\"\n{keys}\n[[listener]]\nlisten = \":1\"\nupstream = \"u\"\n");
    config::parse(Path::new("test.toml"), &text).unwrap_or_else(|wrong| panic!("{wrong:?}"))
}

/// Returns the addresses of its servers, sorted.
fn addresses(u: &Upstream) -> Vec<String> {
    let mut all: Vec<_> = u.status().servers.into_iter().map(|s| s.address).collect();
    all.sort();
    all
}

/// Returns the line `servers = […]`.
fn list(addresses: &[SocketAddr]) -> String {
    let quoted: Vec<_> = addresses.iter().map(|a| format!("\"{a}\"")).collect();
    format!("servers = [{}]", quoted.join(", "))
}

fn splicer() -> Splicer {
    Splicer::relay_only(Default::default(), OpenError::Unsupported("a test".into()))
}

fn upstreams(keys: &str) -> Upstreams {
    Upstreams::new(&config(keys), &splicer())
}

fn upstream(keys: &str) -> Arc<Upstream> {
    Arc::clone(upstreams(keys).get("u").unwrap())
}

/// Returns an upstream with these keys that resolves names at this name server.
fn with_names(keys: &str, name_server: SocketAddr) -> Arc<Upstream> {
    let names = Arc::new(Names::fixed(&[name_server], b""));
    let all = Upstreams::build(&config(keys), &splicer(), None, &names);
    Arc::clone(all.get("u").unwrap())
}

impl Upstream {
    /// Leases a connection, and lets it close with a FIN, as after a request.
    async fn lease_for(self: &Arc<Self>, guest: &Guest) -> Result<Lease, Unavailable> {
        let lease = self.lease(&guest.ask()).await?;
        set_reset_on_close(&lease.stream, false).unwrap();
        Ok(lease)
    }

    fn status(&self) -> UpstreamStatus {
        self.state.status()
    }

    fn server(&self, n: usize) -> ServerStatus {
        self.status().servers[n].clone()
    }
}

impl Lease {
    fn address(&self) -> SocketAddr {
        self.tenure.server().address()
    }

    fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }
}

/// Waits until a condition holds, by polling.
async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let waited = async {
        while !so() {
            time::sleep(Duration::from_millis(2)).await;
        }
    };
    let done = time::timeout(PATIENCE, waited).await;
    assert!(done.is_ok(), "{what}: it never came to that");
}

/// Numbers that tasks collect.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<usize>>>);

impl Notes {
    fn add(&self, note: usize) {
        self.0.lock().push(note);
    }

    fn all(&self) -> Vec<usize> {
        self.0.lock().clone()
    }
}
