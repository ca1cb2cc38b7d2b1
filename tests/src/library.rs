//! Engine as a library: a splicer of this process in a namespace, and pairs whose far ends the test holds.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use longsplice_engine::{
    Ended, FlowId, FlowInfo, FlowState, Pair as Near, RequestError, Returned, Shutdown, Side, Splicer,
    SplicerConfig, Summary, Trap, Until,
    policy::{DetachPolicy, SplicePolicy},
};
use longsplice_lab::{Line, LineOptions, Namespace, Process, topology::Nodes};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener as NearListener, TcpStream as NearStream},
    runtime::{Builder, Runtime},
    task::JoinHandle,
    time::timeout,
};

use crate::{Pair, SOON, accept, bed, daemon::remove_pins, eventually, family, patient};

/// Depth of a splice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The sockets are parked.
    Dormant,
    /// There are no sockets.
    Detached,
}

impl Depth {
    /// Both depths.
    pub const BOTH: [Depth; 2] = [Depth::Dormant, Depth::Detached];

    /// Returns the policy that leads there.
    pub fn policy(self) -> DetachPolicy {
        match self {
            Depth::Dormant => DetachPolicy::Never,
            Depth::Detached => DetachPolicy::Now,
        }
    }

    /// Returns the state of a flow at this depth.
    pub fn state(self) -> FlowState {
        match self {
            Depth::Dormant => FlowState::Dormant,
            Depth::Detached => FlowState::Detached,
        }
    }
}

/// Splicer in a namespace, with a runtime whose threads are all inside. Dropping it ends its flows and removes its
/// pins.
#[derive(Debug)]
pub struct Library {
    splicer: Splicer,
    runtime: Runtime,
    instance: String,
    front: NearListener,
}

/// Call of [`Splicer::splice`] under way.
#[derive(Debug)]
pub struct Call<'a> {
    library: &'a Library,
    task: JoinHandle<std::io::Result<Ended>>,
}

/// Port that handlers listen on.
const FRONT_PORT: u16 = 8080;
/// Port of servers.
const TARGET_PORT: u16 = 7000;

impl Library {
    /// Opens a splicer in `namespace`, and listens there for clients.
    pub fn open(namespace: &Namespace) -> Library {
        Library::configured(namespace, |config| config)
    }

    /// Opens a splicer with other settings. Records linger for a second only.
    pub fn configured(namespace: &Namespace, change: impl FnOnce(SplicerConfig) -> SplicerConfig) -> Library {
        Library::at(namespace, family().unspecified(), change)
    }

    /// Opens a splicer with other settings, and listens at this address. At `::` it also serves IPv4 clients,
    /// over IPv6 sockets.
    pub fn at(
        namespace: &Namespace,
        front: IpAddr,
        change: impl FnOnce(SplicerConfig) -> SplicerConfig,
    ) -> Library {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let instance = format!("test-lib-{}-{count}", std::process::id());
        let config = change(SplicerConfig {
            instance: instance.clone(),
            record_ttl: Duration::from_secs(1),
            ..SplicerConfig::default()
        });
        // A thread inherits the namespace of the thread that starts it.
        let build = || Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = namespace.run(build).unwrap().unwrap();
        let opened = runtime.spawn(async move {
            let splicer = Splicer::open(config).await.unwrap();
            let listener = NearListener::bind((front, FRONT_PORT)).await.unwrap();
            (splicer, listener)
        });
        let (splicer, front) = runtime.block_on(opened).unwrap();
        Library {
            splicer,
            runtime,
            instance,
            front,
        }
    }

    /// Returns the splicer.
    pub fn splicer(&self) -> &Splicer {
        &self.splicer
    }

    /// Runs `work` to its end, at most for [`SOON`]; sockets that it makes itself are not in the namespace.
    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime
            .block_on(async { timeout(patient(SOON), work).await })
            .unwrap_or_else(|_| panic!("waited {SOON:?} in vain; flows: {:#?}", self.flows()))
    }

    /// Runs `work` inside the namespace, and does not wait for it.
    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Accepts a client that has connected already.
    pub fn accept(&self) -> NearStream {
        let (client, _) = self.run(self.front.accept()).unwrap();
        self.splicer.prepare_client(&client).unwrap();
        client
    }

    /// Connects leg B on behalf of a client; returns both its ends.
    pub fn connect(&self, client: &NearStream, target: &TcpListener) -> (NearStream, TcpStream) {
        let addr = target.local_addr().unwrap();
        let splicer = self.splicer.clone();
        // `connect` uses the client only for its MSS.
        let client = client.peer_addr().and_then(|_| dup(client)).unwrap();
        let client = self.run(async { NearStream::from_std(client) }).unwrap();
        let near = self.run(self.spawn(async move { splicer.connect(addr, &client, patient(SOON)).await }));
        (near.unwrap().unwrap(), accept(target))
    }

    /// Begins to splice a pair.
    pub fn splice(&self, pair: impl Into<Near>, until: Until) -> Call<'_> {
        let (splicer, pair) = (self.splicer.clone(), pair.into());
        Call {
            library: self,
            task: self.spawn(async move { splicer.splice(pair, until).await }),
        }
    }

    fn flows(&self) -> Vec<FlowInfo> {
        self.splicer.flows().collect()
    }

    /// Waits until the flow of the client at this port is in one of these states; returns it.
    pub fn wait_state(&self, client_port: u16, states: &[FlowState]) -> FlowInfo {
        eventually(
            &format!("{states:?} of the client at port {client_port}"),
            SOON,
            || {
                self.splicer
                    .flows()
                    .filter(|f| f.client.peer.port() == client_port)
                    .find(|f| states.contains(&f.state))
            },
        )
    }

    /// Requests a flow back. A program that another test starts holds duplicates of this process's sockets until its
    /// `exec`: a closed socket still has its addresses then, and a new one cannot take them.
    pub fn unsplice(&self, id: FlowId) -> Option<Returned> {
        eventually("a flow to come back", SOON, || {
            let splicer = self.splicer.clone();
            let asked = self.run(self.spawn(async move { splicer.request_unsplice(id).await }));
            match asked.unwrap() {
                Err(RequestError::CannotReturn(_, why)) if why.contains("os error 99") => None,
                asked => Some(asked.unwrap()),
            }
        })
    }

    /// Reads so many bytes.
    pub fn read(&self, stream: &mut NearStream, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        let read = self.run(stream.read_exact(&mut buffer));
        read.unwrap_or_else(|e| panic!("cannot read {bytes} bytes: {e}"));
        buffer
    }

    /// Writes all bytes.
    pub fn write(&self, stream: &mut NearStream, bytes: &[u8]) {
        self.run(stream.write_all(bytes)).unwrap();
    }

    /// Waits until no flow is left.
    pub fn wait_reaped(&self) {
        eventually("all records to be reaped", SOON, || {
            self.splicer.flows().next().is_none().then_some(())
        });
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- flows: {:#?}", self.flows());
            eprintln!("--- counters: {:#?}", self.splicer.counters());
        }
        let splicer = self.splicer.clone();
        let over = self.spawn(async move { splicer.shutdown(Shutdown::EndSpliced, Duration::ZERO).await });
        let _ = self.runtime.block_on(over);
        remove_pins(&Path::new("/sys/fs/bpf").join(format!("longsplice-{}", self.instance)));
    }
}

impl Call<'_> {
    /// Returns the result of the call.
    pub fn ended(self) -> Ended {
        self.library.run(self.task).unwrap().unwrap()
    }

    /// Returns the pair that came back.
    pub fn returned(self) -> Returned {
        match self.ended() {
            Ended::Returned(returned) => returned,
            other => panic!("it did not come back: {other:?}"),
        }
    }

    /// Returns the summary of a pair that has ended.
    pub fn closed(self) -> Summary {
        match self.ended() {
            Ended::Closed(summary) => summary,
            other => panic!("it has not ended: {other:?}"),
        }
    }

    /// Returns the flow that lives on without this call.
    pub fn detached(self) -> FlowId {
        match self.ended() {
            Ended::Detached(id) => id,
            other => panic!("it was not let go: {other:?}"),
        }
    }

    /// Drops the call's future where it stands.
    pub fn abandon(self) {
        self.task.abort();
        assert!(self.library.run(self.task).is_err(), "it was over");
    }

    /// Returns whether the call is over.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

/// Three nodes, a library in the middle one, and a listening socket at the server.
#[derive(Debug)]
pub struct Desk {
    // Fields are dropped in this order: the library ends before its namespace.
    /// Library.
    pub library: Library,
    /// Server's socket.
    pub listener: TcpListener,
    _captures: Vec<Process>,
    /// Nodes.
    pub net: Line,
}

impl Desk {
    /// Sets up a desk.
    pub fn new(name: &str) -> Desk {
        Desk::at(
            bed::veth_line(name, LineOptions::default()),
            family().unspecified(),
        )
    }

    /// Sets up a desk on these nodes; the library listens at `front`.
    pub fn at(net: Line, front: IpAddr) -> Desk {
        Desk {
            library: Library::at(&net.forwarder, front, |config| config),
            listener: target(&net),
            _captures: bed::capture(&net),
            net,
        }
    }

    /// Connects the client through the library to the server. Returns the far ends, and the near ones, not yet spliced.
    pub fn connect(&self) -> (Pair, Near) {
        connect(&self.library, &self.net, &self.listener)
    }

    /// Connects, with a policy to splice at once to this depth.
    pub fn connect_for(&self, depth: Depth) -> (Pair, Near) {
        let (far, near) = self.connect();
        (far, at_once(near, depth))
    }

    /// Connects and splices to this depth, until a condition.
    pub fn spliced(&self, depth: Depth, until: Until) -> (Pair, Call<'_>) {
        let (far, near) = self.connect_for(depth);
        let call = self.library.splice(near, until);
        self.library.wait_state(far.client_port(), &[depth.state()]);
        (far, call)
    }
}

/// Opens a listening socket at the server of these nodes.
pub fn target(net: &Nodes) -> TcpListener {
    let at = SocketAddr::from((net.server_addr, TARGET_PORT));
    net.server.run(|| TcpListener::bind(at)).unwrap().unwrap()
}

/// Connects through a library in the middle of these nodes.
pub fn connect(library: &Library, net: &Nodes, listener: &TcpListener) -> (Pair, Near) {
    let front = SocketAddr::from((net.forwarder_client_addr, FRONT_PORT));
    let far_client = net
        .client
        .run(|| TcpStream::connect_timeout(&front, patient(SOON)))
        .unwrap()
        .unwrap();
    let client = library.accept();
    let (server, far_server) = library.connect(&client, listener);
    (Pair::of(far_client, far_server), Near::new(client, server))
}

/// Returns the near socket of a side.
pub fn near(returned: &mut Returned, side: Side) -> &mut NearStream {
    match side {
        Side::Client => &mut returned.client,
        Side::Server => &mut returned.server,
    }
}

/// Closes a returned socket in order, as a handler does at the end of its protocol.
pub fn close(socket: NearStream) {
    SockRef::from(&socket).set_linger(None).unwrap();
}

/// Closes both returned sockets in order.
pub fn close_both(returned: Returned) {
    returned.set_reset_on_close(false).unwrap();
}

/// Returns the trap that brings back a pair when it fires for this side.
pub fn trap_of(side: Side) -> Trap {
    match side {
        Side::Client => Trap::Client,
        Side::Server => Trap::Server,
    }
}

/// Sets the policy of a pair: spliced at once to this depth.
pub fn at_once(pair: impl Into<Near>, depth: Depth) -> Near {
    pair.into()
        .with_splice(SplicePolicy::Now)
        .with_detach(depth.policy())
}

fn dup(stream: &NearStream) -> std::io::Result<std::net::TcpStream> {
    use std::os::fd::AsFd;
    Ok(stream.as_fd().try_clone_to_owned()?.into())
}
