//! Runs a listener for HTTP in this process, with scripted servers and clients: real sockets, and a splicer that only
//! relays.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use longsplice_engine::{OpenError, Splicer, SplicerConfig};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    access_log::AccessLog,
    config,
    listener::{Bound, Service, Settings, Shared, Socket},
    upstream::Upstreams,
};

/// Limit that is longer than any step that does not hang.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A running listener, whose upstream is one scripted server.
pub(super) struct Switch {
    socket: Socket,
    pub(super) service: Arc<Service>,
    /// Stops the tasks when it is dropped.
    pub(super) stop: DropGuard,
}

impl Switch {
    /// Starts a listener with the lines `http` in `[listener.http]`; `more` holds the tables behind it, such as routes.
    pub(super) async fn new(server: SocketAddr, http: &str, more: &str) -> Switch {
        Switch::with(server, &format!("[listener.http]\n{http}\n{more}"))
    }

    /// Starts a listener with these keys, and the tables behind them.
    pub(super) fn with(server: SocketAddr, keys: &str) -> Switch {
        let text = format!(
            "[[upstream]]\nname = \"u\"\nservers = \"{server}\"\n[[listener]]\nname = \"l\"\nlisten = \"127.0.0.1:1\"\n\
             protocol = \"http\"\nupstream = \"u\"\n{keys}\n"
        );
        let config = match config::parse(Path::new("t.toml"), &text) {
            Ok(config) => config,
            Err(wrong) => panic!("{wrong:?}"),
        };
        let why = OpenError::Unsupported("a test".into());
        let splicer = Splicer::relay_only(SplicerConfig::default(), why);
        let stopping = CancellationToken::new();
        let stop = stopping.clone().drop_guard();
        let settings = Settings {
            generation: 1,
            listener: Arc::new(config.listeners[0].clone()),
            upstreams: Arc::new(Upstreams::new(&config, &splicer)),
            terminator: None,
        };
        let shared = Shared::new(splicer, AccessLog::default(), stopping);
        let service = Service::new(settings, shared);
        let listening = Bound::bind("127.0.0.1:0".parse().unwrap(), false)
            .unwrap()
            .listen()
            .unwrap();
        Switch {
            socket: Socket::serve(listening, Arc::clone(&service)),
            service,
            stop,
        }
    }

    /// Connects a client whose request is there before its connection is accepted (in a test with one thread).
    pub(super) fn eager_client(&self, request: &str) -> Client {
        let mut socket = std::net::TcpStream::connect(self.socket.address()).unwrap();
        std::io::Write::write_all(&mut socket, request.as_bytes()).unwrap();
        socket.set_nonblocking(true).unwrap();
        Client(TcpStream::from_std(socket).unwrap())
    }

    /// Returns how many requests the server has failed.
    pub(super) fn failures(&self) -> u64 {
        self.service.settings().upstreams.status()[0].servers[0].failures_total
    }

    pub(super) async fn client(&self) -> Client {
        Client(TcpStream::connect(self.socket.address()).await.unwrap())
    }
}

/// A client that writes bytes and reads the reply.
pub(super) struct Client(pub(super) TcpStream);

impl Client {
    pub(super) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Reads until the received text ends with `end`.
    pub(super) async fn until(&mut self, end: &str) -> String {
        let mut got = Vec::new();
        while !got.ends_with(end.as_bytes()) {
            let mut byte = [0];
            match timeout(PATIENCE, self.0.read(&mut byte)).await {
                Ok(Ok(1)) => got.push(byte[0]),
                other => panic!("{other:?} after {}", String::from_utf8_lossy(&got)),
            }
        }
        String::from_utf8(got).unwrap()
    }

    /// Reads to the end. Returns the text, and whether the connection ended with a FIN.
    pub(super) async fn rest(&mut self) -> (String, bool) {
        let mut got = Vec::new();
        let end = timeout(PATIENCE, self.0.read_to_end(&mut got)).await;
        let end = end.unwrap_or_else(|_| panic!("no end after {}", String::from_utf8_lossy(&got)));
        (String::from_utf8_lossy(&got).into_owned(), end.is_ok())
    }
}

/// A server whose connections the test plays itself, one after the other.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    connections: mpsc::Receiver<TcpStream>,
    _accepting: JoinSet<()>,
}

impl Server {
    pub(super) async fn new() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, connections) = mpsc::channel(16);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                if tell.send(connection).await.is_err() {
                    return;
                }
            }
        });
        Server {
            address,
            connections,
            _accepting: accepting,
        }
    }

    /// Waits for the next connection.
    pub(super) async fn next(&mut self) -> Client {
        let connection = timeout(PATIENCE, self.connections.recv()).await;
        Client(connection.expect("no connection").unwrap())
    }

    /// Returns a further connection that is there already.
    pub(super) fn another(&mut self) -> Option<Client> {
        self.connections.try_recv().ok().map(Client)
    }
}

/// Returns a reply with this body.
pub(super) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
