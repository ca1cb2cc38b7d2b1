//! A daemon under a memory limit refuses connections before it runs out, and returns the memory of a peak.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    thread,
};

use longsplice_lab::not_run;
use longsplice_tests::{Bed, Config, Daemon, Pair, Policy, SOON, eventually, soon};

/// Number of clients: more than fit.
const CLIENTS: usize = 400;

/// Control group with a limit of memory, of the version that this machine has.
struct Group {
    folder: PathBuf,
    limit: &'static str,
    used: &'static str,
}

impl Group {
    /// Makes a group; `None`: this machine does not permit it, and the test is reported as not run.
    fn new(name: &str) -> Option<Group> {
        let root = Path::new("/sys/fs/cgroup");
        let v1 = root.join("memory");
        let (parent, limit, used) = match v1.join("memory.limit_in_bytes").exists() {
            true => (v1.as_path(), "memory.limit_in_bytes", "memory.usage_in_bytes"),
            false => {
                // A failure to switch it on shows below, in the missing files.
                let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
                (root, "memory.max", "memory.current")
            }
        };
        let folder = parent.join(format!("longsplice-test-{}-{name}", std::process::id()));
        let made = fs::create_dir(&folder).is_ok() && folder.join(limit).exists();
        let group = Group { folder, limit, used };
        if !made {
            not_run("no control group with a limit of memory can be made under /sys/fs/cgroup");
        }
        made.then_some(group)
    }

    /// Starts the daemon in it.
    fn with(&self, daemon: Daemon) -> Daemon {
        let procs = self.folder.join("cgroup.procs");
        let script = format!("echo $$ > {} && exec \"$@\"", procs.display());
        daemon.under(&["sh", "-c", &script, "sh"])
    }

    fn used(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.used)).unwrap();
        text.trim().parse().unwrap()
    }

    /// Sets the limit to so many percent of the present use.
    fn limit_to(&self, percent: u64) {
        // Pages of files that were only read are reclaimed first.
        let limit = self.used() * percent / 100;
        fs::write(self.folder.join(self.limit), limit.to_string()).unwrap();
    }

    /// Returns whether the kernel has killed a process in it.
    fn has_killed(&self) -> bool {
        let of = |name| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        let text = of("memory.oom_control") + &of("memory.events");
        text.lines()
            .any(|line| line.starts_with("oom_kill ") && line != "oom_kill 0")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Memory of the killed process stays charged for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// Starts a daemon with a small table, at 8082, in a group.
fn daemon(bed: &Bed, group: Option<&Group>, target: SocketAddr, policy: Policy<'_>) -> (Daemon, SocketAddr) {
    let front = (bed.net.forwarder_client_addr, 8082).into();
    let config = Config::new()
        .set("max_flows = 1024")
        .listener(front, target, policy.splice, policy.detach);
    let daemon = Daemon::of(&config);
    let mut daemon = match group {
        Some(group) => group.with(daemon),
        None => daemon,
    };
    daemon.start(&bed.net.forwarder);
    (daemon, front)
}

/// Connects a client whose bytes the server echoes; `None` if it was reset.
fn client(bed: &Bed, front: SocketAddr) -> Option<TcpStream> {
    let mut client = bed.net.client.run(|| TcpStream::connect(front)).unwrap().unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    let mut answer = [0; 4];
    let exchanged = client
        .write_all(b"echo")
        .and_then(|()| client.read_exact(&mut answer));
    match exchanged {
        Ok(()) => Some(client),
        Err(e) => {
            let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            assert!(kinds.contains(&e.kind()), "{e}");
            None
        }
    }
}

/// Starts an echo server at port 7001, for as long as the test lives.
fn echo(bed: &Bed) -> SocketAddr {
    let address = SocketAddr::from((bed.net.server_addr, 7001));
    let listener = bed.net.server.run(|| std::net::TcpListener::bind(address));
    let listener = listener.unwrap().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = [0; 4];
            thread::spawn(
                move || {
                    while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
                },
            );
        }
    });
    address
}

#[test]
fn connections_are_refused_before_the_memory_runs_out() {
    let Some(group) = Group::new("refuse") else { return };
    let bed = Bed::new("memory-refuse", Policy::ON_DEMAND);
    let target = echo(&bed);
    let (daemon, front) = daemon(&bed, Some(&group), target, Policy::ON_DEMAND);
    drop(client(&bed, front).expect("there is no limit yet"));
    group.limit_to(125);
    let mut open: Vec<TcpStream> = (0..CLIENTS).filter_map(|_| client(&bed, front)).collect();
    assert!((5..CLIENTS).contains(&open.len()), "{} of {CLIENTS}", open.len());
    let status = daemon.wait_status("refused connections", |s| {
        s.listeners[0].refused_total == (CLIENTS - open.len()) as u64
    });
    let memory = status.memory.expect("there is a limit");
    assert_eq!(memory.refused_total, status.listeners[0].refused_total);
    assert!(
        daemon
            .log()
            .contains("memory runs short: new connections are refused")
    );
    // The accepted connections are still served.
    for client in &mut open {
        client.write_all(b"more").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
    }
    assert!(!group.has_killed());
    drop(open);
    eventually("connections to be accepted again", SOON, || client(&bed, front));
    drop(daemon);
}

#[test]
fn parked_sockets_go_when_memory_runs_short() {
    let Some(group) = Group::new("detach") else { return };
    let bed = Bed::new("memory-detach", Policy::ON_DEMAND);
    let (daemon, front) = daemon(&bed, Some(&group), bed.target(), Policy::DORMANT);
    let mut pair = Pair::connect(&bed.net.client, front, &bed.listener);
    daemon.wait_state(pair.client_port(), &["dormant"]);
    group.limit_to(118);
    daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(200_000);
    pair.close();
}

#[test]
fn a_configured_limit_holds_without_a_control_group() {
    let bed = Bed::with("memory-config", Default::default(), Policy::ON_DEMAND, |config| {
        config.set("memory = \"16MiB\"")
    });
    let memory = bed.daemon.status().memory.expect("there is a limit");
    assert_eq!(memory.limit, 16 << 20, "{memory:?}");
    let own = bed.daemon.memory_kib("RssAnon") << 10;
    assert!((own / 2..own * 2).contains(&memory.used), "{memory:?}");
    // A reload changes the limit; without one, the status shows no memory.
    let config = Config::new().listener(([0, 0, 0, 0], 8080).into(), bed.target(), "never", "now");
    let config = config.set("memory = \"none\"");
    bed.daemon.change(&config).unwrap();
    assert!(bed.daemon.status().memory.is_none());
}

#[test]
fn what_relayed_connections_took_goes_back() {
    let bed = Bed::new("memory-back", Policy::ON_DEMAND);
    let target = echo(&bed);
    let (daemon, front) = daemon(&bed, None, target, Policy::ON_DEMAND);
    drop(client(&bed, front).unwrap());
    let before = daemon.memory_kib("RssAnon");
    let open: Vec<_> = (0..CLIENTS).filter_map(|_| client(&bed, front)).collect();
    assert_eq!(open.len(), CLIENTS);
    let peak = daemon.memory_kib("RssAnon");
    assert!(peak > before + CLIENTS as u64 * 4, "{before} to {peak} KiB");
    drop(open);
    soon("the memory to go back", || {
        let now = daemon.memory_kib("RssAnon");
        now < before + (peak - before) / 2
    });
}
