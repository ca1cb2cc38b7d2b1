//! Runs a listener for HTTP in this process, with scripted servers and clients: real sockets, and a splicer that only
//! relays.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use longsplice_engine::{OpenError, Splicer, SplicerConfig};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    access_log::AccessLog,
    config::{self, Config, ListenerConfig, Protocol},
    listener::{Bound, Service, Settings, Shared, Socket},
    tls::{Terminator, testing},
    upstream::{ServerStatus, Upstreams},
};

/// Limit that is longer than any step that does not hang.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A running listener, whose upstream is one scripted server.
pub(super) struct Switch {
    socket: Socket,
    server: SocketAddr,
    pub(super) service: Arc<Service>,
    pub(super) shared: Arc<Shared>,
    /// Stops the tasks when it is dropped.
    pub(super) stop: DropGuard,
}

impl Switch {
    /// Starts a listener with the lines `http` in `[listener.http]`; `more` holds the tables behind it, such as routes.
    pub(super) async fn new(server: SocketAddr, http: &str, more: &str) -> Switch {
        Switch::with(server, &format!("[listener.http]\n{http}\n{more}"))
    }

    /// Starts one that routes all requests to the upstream `v`: this server, with these keys.
    pub(super) async fn of_v(server: SocketAddr, http: &str, keys: &str) -> Switch {
        let keys = format!("servers = \"{server}\"\n{keys}");
        Switch::new(server, http, &to_v(&keys)).await
    }

    /// Starts a listener with these keys, and the tables behind them.
    pub(super) fn with(server: SocketAddr, keys: &str) -> Switch {
        let config = parse(server, keys);
        let why = OpenError::Unsupported("a test".into());
        let splicer = Splicer::relay_only(SplicerConfig::default(), why);
        let stopping = CancellationToken::new();
        let stop = stopping.clone().drop_guard();
        let settings = Settings {
            generation: 1,
            listener: Arc::new(config.listeners[0].clone()),
            upstreams: Arc::new(Upstreams::new(&config, &splicer)),
            terminator: Terminator::of(&config.listeners[0]).unwrap(),
        };
        let shared = Shared::new(splicer, AccessLog::default(), stopping);
        let service = Service::new(settings, Arc::clone(&shared));
        Switch {
            socket: serve(&service),
            server,
            service,
            shared,
            stop,
        }
    }

    /// Changes the keys of the listener, as a reload does.
    pub(super) fn reload(&self, keys: &str) {
        let now = self.service.settings();
        let settings = Settings {
            generation: now.generation + 1,
            listener: Arc::new(parse(self.server, keys).listeners[0].clone()),
            upstreams: Arc::clone(&now.upstreams),
            terminator: None,
        };
        let change = (Arc::clone(&self.service), Arc::new(settings));
        self.shared.switch(vec![change]);
    }

    /// Starts a listener beside this one: it has the same upstreams, and reads no HTTP.
    pub(super) fn beside(&self) -> Socket {
        let now = self.service.settings();
        let mut listener = ListenerConfig::clone(&now.listener);
        listener.protocol = Protocol::Tcp;
        let settings = Settings {
            generation: now.generation,
            listener: Arc::new(listener),
            upstreams: Arc::clone(&now.upstreams),
            terminator: None,
        };
        serve(&Service::new(settings, Arc::clone(&self.shared)))
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
        self.status("u", 0).failures_total
    }

    /// Returns the status of the `nth` server of an upstream.
    pub(super) fn status(&self, upstream: &str, nth: usize) -> ServerStatus {
        let all = self.service.settings().upstreams.status();
        all.iter().find(|u| u.name == upstream).unwrap().servers[nth].clone()
    }

    /// Returns the address of the listener.
    pub(super) fn address(&self) -> SocketAddr {
        self.socket.address()
    }

    pub(super) async fn client(&self) -> Client {
        Client::of(&self.socket).await
    }

    /// Connects a client at the address 127.0.0.`host`.
    pub(super) async fn client_at(&self, host: u8) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into()).unwrap();
        Client(socket.connect(self.address()).await.unwrap())
    }
}

/// Reads the configuration of a listener with these keys, and the tables behind them.
fn parse(server: SocketAddr, keys: &str) -> Config {
    let text = format!(
        "[[upstream]]\nname = \"u\"\nservers = \"{server}\"\n[[listener]]\nname = \"l\"\nlisten = \"127.0.0.1:1\"\n\
         protocol = \"http\"\nupstream = \"u\"\n{keys}\n"
    );
    config::parse(Path::new("t.toml"), &text).unwrap_or_else(|wrong| panic!("{wrong:?}"))
}

/// Starts to accept connections at a free port.
fn serve(service: &Arc<Service>) -> Socket {
    let bound = Bound::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
    Socket::serve(bound.listen().unwrap(), Arc::clone(service))
}

/// A client that writes bytes and reads the reply.
pub(super) struct Client(pub(super) TcpStream);

impl Client {
    /// Connects to a listener.
    pub(super) async fn of(socket: &Socket) -> Client {
        Client(TcpStream::connect(socket.address()).await.unwrap())
    }

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

/// Certificate of a listener that terminates TLS.
pub(super) struct Certified {
    /// Table of the listener.
    pub(super) table: String,
    connector: TlsConnector,
}

impl Certified {
    /// Writes a certificate into this folder.
    pub(super) fn new(dir: &Path) -> Certified {
        let files = testing::write(dir, "a", &["a.example"]);
        let trusted = testing::trusted(&files);
        let (certificate, key) = (files.certificate.display(), files.key.display());
        Certified {
            table: format!("[listener.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n"),
            connector: TlsConnector::from(Arc::new(testing::client(&[trusted], &[]))),
        }
    }

    /// Performs the handshake of a client that trusts it.
    pub(super) async fn connect(&self, socket: TcpStream) -> TlsStream<TcpStream> {
        let name = ServerName::try_from("a.example").unwrap();
        self.connector.connect(name, socket).await.unwrap()
    }
}

/// Reads from a decrypted stream until the text ends with `end`.
pub(super) async fn read_until(stream: &mut TlsStream<TcpStream>, end: &str) -> String {
    let mut got = Vec::new();
    while !got.ends_with(end.as_bytes()) {
        match timeout(PATIENCE, stream.read_buf(&mut got)).await {
            Ok(Ok(1..)) => {}
            other => panic!("{other:?} after {}", String::from_utf8_lossy(&got)),
        }
    }
    String::from_utf8(got).unwrap()
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

    /// Sends a request, and answers it on the new connection over which it comes. Reads the reply to its end. Returns
    /// the new connection.
    pub(super) async fn exchange(&mut self, client: &mut Client, request: &str, reply: &str) -> Client {
        client.send(request).await;
        let mut at_server = self.next().await;
        answer(client, &mut at_server, reply).await;
        at_server
    }

    /// Returns a further connection that is there already.
    pub(super) fn another(&mut self) -> Option<Client> {
        self.connections.try_recv().ok().map(Client)
    }
}

/// Waits until a condition holds, by polling.
pub(super) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let waited = async {
        while !so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(
        timeout(PATIENCE, waited).await.is_ok(),
        "{what}: it never came to that"
    );
}

/// Returns the tables that route all requests to the upstream `v`, which has these keys.
pub(super) fn to_v(keys: &str) -> String {
    format!("[[listener.route]]\npath_prefix = \"/\"\nupstream = \"v\"\n[[upstream]]\nname = \"v\"\n{keys}\n")
}

/// Sends a request, and has the server's connection answer it. Reads the reply to its end.
pub(super) async fn exchange(client: &mut Client, request: &str, at_server: &mut Client, reply: &str) {
    client.send(request).await;
    answer(client, at_server, reply).await;
}

async fn answer(client: &mut Client, at_server: &mut Client, reply: &str) {
    at_server.until("\r\n\r\n").await;
    at_server.send(reply).await;
    client.until(end(reply)).await;
}

/// Returns the last bytes of a reply, which a Date does not move.
fn end(reply: &str) -> &str {
    &reply[reply.len() - 4..]
}

/// Returns a reply with this body.
pub(super) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
