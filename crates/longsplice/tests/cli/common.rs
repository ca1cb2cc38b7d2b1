//! Runs the real binary; each test has its own instance.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio},
    sync::{
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use socket2::{Domain, Socket, Type};

/// Limit that is longer than any step that does not hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the command without variables that could mislead it, and without capabilities: a test must not change the
/// network of its machine.
pub(crate) fn longsplice(args: &[&str]) -> Command {
    longsplice_with(&[], args)
}

/// Returns the command, run by another program.
pub(crate) fn longsplice_with(by: &[&str], args: &[&str]) -> Command {
    let drop_capabilities = [
        "setpriv",
        "--inh-caps=-all",
        "--ambient-caps=-all",
        "--bounding-set=-all",
    ];
    let prefix: &[&str] = if geteuid().is_root() {
        &drop_capabilities
    } else {
        &[]
    };
    let words = [by, prefix, &[env!("CARGO_BIN_EXE_longsplice")], args].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    for variable in ["LONGSPLICE_LOG", "NOTIFY_SOCKET", "JOURNAL_STREAM"] {
        command.env_remove(variable);
    }
    command
}

/// Runs the command to its end. Returns its exit code, standard output and standard error.
pub(crate) fn ask(args: &[&str]) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = longsplice(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Returns a name that no other test or test run uses.
pub(crate) fn instance(test: &str) -> String {
    format!("t{}-{test}", std::process::id())
}

/// A daemon that is killed when the test ends, however it ends.
pub(crate) struct Daemon {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// Lines of its log that were read so far.
    pub(crate) log: Vec<String>,
    /// Name of the instance.
    pub(crate) instance: String,
    /// Address that it listens on.
    pub(crate) address: SocketAddr,
}

/// Returns the command `forward` from a free port to the target.
pub(crate) fn forwarding(instance: &str, to: &str) -> Command {
    longsplice(&[
        "forward",
        "--listen",
        "127.0.0.1:0",
        "--to",
        to,
        "--instance",
        instance,
    ])
}

impl Daemon {
    /// Starts `forward` from a free port to the target.
    pub(crate) fn forward(instance: &str, to: &str, more: &[&str]) -> Daemon {
        Daemon::start_command(instance, forwarding(instance, to).args(more))
    }

    /// Starts any daemon; returns once it listens.
    pub(crate) fn start(instance: &str, args: &[&str]) -> Daemon {
        Daemon::start_command(instance, &mut longsplice(args))
    }

    /// Starts a daemon by this command; returns once it listens.
    pub(crate) fn start_command(instance: &str, command: &mut Command) -> Daemon {
        let mut child = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let lines = read_lines(child.stderr.take().unwrap());
        let address = "0.0.0.0:0".parse().unwrap();
        let mut daemon = Daemon {
            child,
            lines,
            log: Vec::new(),
            instance: instance.to_owned(),
            address,
        };
        let line = daemon.wait_for_line("listening on ");
        let shown = line.split("listening on ").nth(1).unwrap();
        let end = shown.find([' ', '"', '\x1b']).unwrap_or(shown.len());
        daemon.address = shown[..end].parse().unwrap();
        daemon
    }

    /// Returns the next line of its log that contains the text.
    pub(crate) fn wait_for_line(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.log.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(e) => panic!("no line with `{text}` ({e}) in {:#?}", self.log),
            }
        }
    }

    /// Sends it a request by another process of the command line.
    pub(crate) fn ask(&self, args: &[&str]) -> (i32, String, String) {
        ask(&[args, &["--instance", &self.instance]].concat())
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits for its end, and reads the rest of its log.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.log.extend(self.lines.iter());
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end: {:#?}", self.log);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Connects to it.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Returns the end of a connection to it without a request. A reset may come before connect(2) has returned.
    pub(crate) fn outcome(&self) -> Result<usize, ErrorKind> {
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE).map_err(|e| e.kind())?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(|e| e.kind())?;
        stream.read(&mut [0]).map_err(|e| e.kind())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ignore errors: it may have ended. An orderly end removes its files.
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::SIGINT);
            self.signal(Signal::SIGINT);
            let deadline = Instant::now() + Duration::from_secs(2);
            while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            self.log.extend(self.lines.iter());
            eprintln!("the daemon logged {:#?}", self.log);
        }
    }
}

fn read_lines(stderr: ChildStderr) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

/// Starts a server that sends back all bytes, until the client ends.
pub(crate) fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || echo(stream));
        }
    });
    address
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 65_536];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}

/// Returns an address at which a daemon may listen: it belongs to this process alone, and its port is none that the kernel
/// chooses by itself.
pub(crate) fn own_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    // Process ids end at 2^22.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, 64 + high, middle, low);
    loop {
        let address = SocketAddr::from((ip, NEXT.fetch_add(1, Ordering::Relaxed)));
        let probe = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        probe.set_reuse_address(true).unwrap();
        // A program may listen there at all addresses.
        if probe.bind(&address.into()).is_ok() {
            return address;
        }
    }
}

/// Address that refuses connections: its socket is bound, so that it stays unused by others, and does not listen.
pub(crate) struct Refusing {
    _socket: Socket,
    /// Address.
    pub(crate) address: SocketAddr,
}

impl Refusing {
    pub(crate) fn new() -> Refusing {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&any.into()).unwrap();
        Refusing {
            address: socket.local_addr().unwrap().as_socket().unwrap(),
            _socket: socket,
        }
    }
}

/// Returns the examples of the repository.
pub(crate) fn examples() -> Vec<PathBuf> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let files = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
    files
        .filter(|p| p.extension().is_some_and(|e| e == "toml"))
        .collect()
}
