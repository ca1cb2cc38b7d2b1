//! A daemon is replaced or restarted under load: no connection is refused or reset, and what is spliced runs on.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    process::Command,
    thread,
};

use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

use longsplice_lab::not_run;
use longsplice_tests::{Bed, Config, Daemon, Load, Pair, Policy, SOON, eventually, patient, soon, times};

const BYTES: u64 = 200_000;

/// Port of the listener that the load comes to, and of its server.
const LOADED: u16 = 8081;
const SERVER: u16 = 7001;

/// Port of a listener that only relays, and of one that parks sockets.
const RELAYING: u16 = 8082;
const PARKING: u16 = 8083;

fn at(port: u16) -> SocketAddr {
    ([0, 0, 0, 0], port).into()
}

fn bed(name: &str) -> Bed {
    Bed::with(name, Default::default(), Policy::DETACHED, |config| {
        let to = |port| SocketAddr::from(([198, 18, 2, 1], port));
        config
            .listener(at(LOADED), to(SERVER), "now", "now")
            .listener(at(RELAYING), to(7000), "never", "now")
            .listener(at(PARKING), to(7000), "now", "never")
    })
}

fn front(bed: &Bed, port: u16) -> SocketAddr {
    (bed.net.forwarder_client_addr, port).into()
}

fn connect(bed: &Bed, port: u16, state: &str) -> Pair {
    let pair = Pair::connect(&bed.net.client, front(bed, port), &bed.listener);
    bed.daemon.wait_state(pair.client_port(), &[state]);
    pair
}

fn load(bed: &Bed) -> Load {
    let at = SocketAddr::from(([198, 18, 2, 1], SERVER));
    let server = bed.net.server.run(|| TcpListener::bind(at)).unwrap().unwrap();
    Load::start(&bed.net.client, front(bed, LOADED), server, 4)
}

/// Waits until the load has been served so many times more.
fn served_more(load: &Load, more: u64) {
    let before = load.served();
    soon("the load to be served", || load.served() >= before + more);
}

fn ends_well(load: Load, what: &str) {
    let (served, errors) = load.end();
    assert!(
        errors.is_empty(),
        "of {served} connections during {what}: {errors:?}"
    );
    assert!(served > 50, "{served} connections during {what}");
    println!("{what}: {served} connections, 0 refused or reset");
}

#[test]
fn replacements_under_load_refuse_and_reset_nothing() {
    let mut bed = bed("replace");
    let mut relayed = connect(&bed, RELAYING, "relay");
    let mut pairs = [bed.connect_spliced("detached"), connect(&bed, PARKING, "dormant")];
    let load = load(&bed);
    let count = times("LONGSPLICE_REPLACEMENTS", 2_u32);
    for n in 0..count {
        served_more(&load, 30);
        bed.daemon.replace(&bed.net.forwarder);
        // The predecessor still relays.
        if n == 0 {
            relayed.exchange(BYTES);
            relayed.close();
        }
        served_more(&load, 30);
        for pair in &mut pairs {
            pair.exchange(BYTES);
        }
        assert_eq!(bed.daemon.join_replaced(), [Some(0)]);
        // Its flows are this one's now, under their own numbers.
        for pair in &pairs {
            bed.daemon.wait_state(pair.client_port(), &["detached"]);
        }
        soon("the old generation to go", || bed.daemon.generations().len() == 1);
        for pair in &mut pairs {
            pair.exchange(BYTES);
        }
    }
    ends_well(load, &format!("{count} replacements"));
    for pair in &mut pairs {
        pair.close();
    }
    bed.daemon.wait_reaped();
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    assert!(bed.daemon.generations().is_empty());
}

#[test]
fn a_predecessor_that_is_killed_leaves_its_flows_to_its_successor() {
    let mut bed = bed("replace-kill");
    let mut pairs = [bed.connect_spliced("detached"), connect(&bed, PARKING, "dormant")];
    // It keeps the predecessor from its end.
    let mut relayed = connect(&bed, RELAYING, "relay");
    bed.daemon.replace(&bed.net.forwarder);
    relayed.exchange(BYTES);
    assert_eq!(bed.daemon.generations().len(), 2);
    bed.daemon.kill_replaced();
    for pair in &mut pairs {
        pair.exchange(BYTES);
        bed.daemon.wait_state(pair.client_port(), &["detached"]);
        pair.exchange(BYTES);
    }
    soon("the old generation to go", || bed.daemon.generations().len() == 1);
    let mut new = bed.connect_spliced("detached");
    new.exchange(BYTES);
}

#[test]
fn a_successor_that_does_not_come_to_serve_changes_nothing() {
    let mut bed = bed("replace-vain");
    let mut pairs = [
        bed.connect_spliced("detached"),
        connect(&bed, PARKING, "dormant"),
        connect(&bed, RELAYING, "relay"),
    ];
    let pid = bed.daemon.pid();
    let load = load(&bed);
    served_more(&load, 10);
    let target = bed.target();
    let good = std::fs::read_to_string(bed.daemon.dir().join("longsplice.toml")).unwrap();
    // The configuration is broken; an address is taken; it is killed in the middle.
    std::fs::write(bed.daemon.dir().join("longsplice.toml"), "nonsense = 1").unwrap();
    let exit = bed.daemon.replace_in_vain(&bed.net.forwarder, |_| {});
    assert_eq!(exit.code, Some(2), "{exit:?}");
    let taken = bed
        .net
        .forwarder
        .run(|| TcpListener::bind(at(8090)))
        .unwrap()
        .unwrap();
    bed.daemon
        .reconfigure(&Config::new().listener(at(8090), target, "now", "now"));
    let exit = bed.daemon.replace_in_vain(&bed.net.forwarder, |_| {});
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.says.contains("cannot listen on"), "{exit:?}");
    drop(taken);
    std::fs::write(bed.daemon.dir().join("longsplice.toml"), &good).unwrap();
    let exit = bed.daemon.replace_in_vain(&bed.net.forwarder, |successor| {
        // It loads its programs.
        eventually("the generation", SOON, || {
            (successor.generations().len() > 1).then_some(())
        });
        successor.signal(Signal::KILL);
    });
    assert_eq!(exit.code, None, "{exit:?}");
    assert_eq!(bed.daemon.status().pid, pid);
    served_more(&load, 30);
    ends_well(load, "three starts in vain");
    for pair in &mut pairs {
        pair.exchange(BYTES);
    }
    bed.daemon.replace(&bed.net.forwarder);
    for pair in &mut pairs {
        pair.exchange(BYTES);
    }
}

/// A connection waits for room, so the daemon has accepted it: a successor cannot serve it any more.
#[test]
fn a_connection_that_waits_for_room_is_served_by_the_predecessor() {
    let mut bed = Bed::with("replace-full", Default::default(), Policy::ON_DEMAND, |c| {
        c.with("max_connections = 1").set("shutdown_timeout = \"1m\"")
    });
    let mut first = bed.connect();
    first.exchange(BYTES);
    let front = bed.front();
    let waiting = bed.net.client.run(|| TcpStream::connect(front)).unwrap().unwrap();
    soon("the listener to be full", || {
        bed.daemon.log().contains("the listener is full")
    });
    bed.daemon.replace(&bed.net.forwarder);
    let mut second = Pair::accept(waiting, &bed.listener);
    for pair in [&mut first, &mut second] {
        pair.exchange(BYTES);
        pair.close();
    }
    assert_eq!(bed.daemon.join_replaced(), [Some(0)]);
}

/// A successor that takes its time keeps its place: a further one is refused, and there is one daemon in the end.
#[test]
fn one_successor_starts_at_a_time() {
    let mut bed = bed("replace-two");
    let mut pair = bed.connect_spliced("detached");
    let pid = bed.daemon.pid();
    let first = bed.daemon.begin_replace(&bed.net.forwarder);
    soon("the programs of the first one", || {
        bed.daemon.generations().len() > 1
    });
    first.kill(Signal::STOP).unwrap();
    let exit = bed.daemon.replace_in_vain(&bed.net.forwarder, |_| {});
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.says.contains("another successor is starting"), "{exit:?}");
    assert_eq!(bed.daemon.status().pid, pid);
    first.kill(Signal::CONT).unwrap();
    bed.daemon.replaced_by(first);
    assert_eq!(bed.daemon.join_replaced(), [Some(0)]);
    pair.exchange(BYTES);
    let mut new = bed.connect_spliced("detached");
    new.exchange(BYTES);
}

/// A daemon is told to stop while its successor starts: that one ends, too, instead of serving with routes and pins that go.
#[test]
fn a_successor_of_a_daemon_that_stops_by_itself_ends() {
    let mut bed = bed("replace-stop");
    let mut relayed = connect(&bed, RELAYING, "relay");
    let successor = bed.daemon.begin_replace(&bed.net.forwarder);
    soon("the programs of the successor", || {
        bed.daemon.generations().len() > 1
    });
    successor.kill(Signal::STOP).unwrap();
    bed.daemon.terminate();
    soon("the daemon to stop", || bed.daemon.status().stopping);
    successor.kill(Signal::CONT).unwrap();
    let status = successor.wait(patient(SOON)).unwrap().expect("it ends");
    let says = bed.daemon.log();
    assert_eq!(status.code(), Some(1), "{says}");
    assert!(says.contains("does not stop for this one"), "{says}");
    relayed.exchange(BYTES);
    relayed.close();
    assert_eq!(bed.daemon.join(), Some(0));
}

/// A successor is told to stop while it starts: it does not take the place of its predecessor, to leave it empty.
#[test]
fn a_successor_that_is_told_to_stop_while_it_starts_changes_nothing() {
    let mut bed = bed("replace-told");
    let mut relayed = connect(&bed, RELAYING, "relay");
    let pid = bed.daemon.pid();
    let exit = bed.daemon.replace_in_vain(&bed.net.forwarder, |successor| {
        soon("its programs", || successor.generations().len() > 1);
        // Hold it, so that it has the signal before it serves.
        successor.signal(Signal::STOP);
        successor.signal(Signal::TERM);
        successor.signal(Signal::CONT);
    });
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert!(!exit.says.contains("is replaced"), "{exit:?}");
    assert_eq!(bed.daemon.status().pid, pid);
    relayed.exchange(BYTES);
    bed.connect_spliced("detached").exchange(BYTES);
    soon("the generation of the successor to go", || {
        bed.daemon.generations().len() == 1
    });
}

/// The successor is killed while its predecessor still relays: the next daemon does not wait for the end of that one.
#[test]
fn a_daemon_starts_beside_a_predecessor_whose_successor_was_killed() {
    let mut bed = bed("replace-next");
    let mut pair = bed.connect_spliced("detached");
    let mut relayed = connect(&bed, RELAYING, "relay");
    bed.daemon.replace(&bed.net.forwarder);
    bed.daemon.kill();
    bed.daemon.start(&bed.net.forwarder);
    bed.connect_spliced("detached").exchange(BYTES);
    for pair in [&mut pair, &mut relayed] {
        pair.exchange(BYTES);
    }
    relayed.close();
    assert_eq!(bed.daemon.join_replaced(), [Some(0)]);
    // It adopts what that one has left.
    bed.daemon.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(BYTES);
}

/// A successor that cannot splice would only relay: its predecessor, which splices, keeps its place. One that relays itself
/// is replaced.
#[test]
fn a_successor_that_cannot_splice_replaces_none_that_can() {
    let mut bed = bed("replace-worse");
    let mut pair = bed.connect_spliced("detached");
    let pid = bed.daemon.pid();
    let unprivileged = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let daemon = std::mem::replace(&mut bed.daemon, Daemon::new(&[]));
    bed.daemon = daemon.under(&unprivileged);
    let exit = bed.daemon.replace_in_vain(&bed.net.forwarder, |_| {});
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(
        exit.says.contains("cannot splice, and the running daemon can"),
        "{exit:?}"
    );
    assert_eq!(bed.daemon.status().pid, pid);
    pair.exchange(BYTES);
    bed.connect_spliced("detached").exchange(BYTES);
    bed.daemon.kill();
    bed.daemon.start(&bed.net.forwarder);
    bed.daemon.replace(&bed.net.forwarder);
    // The predecessor may still have accepted it.
    Pair::connect(&bed.net.client, front(&bed, RELAYING), &bed.listener).exchange(BYTES);
}

/// Passes a socket at this port to the bed's daemon, with these variables and this descriptor, and starts it. Returns the socket.
fn activate(bed: &mut Bed, port: u16, variables: &str, descriptor: &str) -> TcpListener {
    let held = bed.net.forwarder.run(|| TcpListener::bind(at(port)));
    let held = held.unwrap().unwrap();
    pass(bed, &held, variables, descriptor);
    held
}

/// Stops the bed's daemon, and names its listener `web`.
fn name_the_listener(bed: &mut Bed) {
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    let config = Config::new()
        .listener(at(8080), bed.target(), "now", "now")
        .with("name = \"web\"");
    bed.daemon.reconfigure(&config);
}

/// Passes a socket to the bed's daemon, with these variables and this descriptor, and starts it.
fn pass(bed: &mut Bed, held: &TcpListener, variables: &str, descriptor: &str) {
    // Let the next programs have it.
    rustix::io::fcntl_setfd(held.as_fd(), rustix::io::FdFlags::empty()).unwrap();
    let number = held.as_raw_fd();
    // Copy it aside first: its number may be the descriptor.
    let script = format!(
        "exec {{held}}<&{number} {number}<&-; LISTEN_PID=$$ {variables} exec \"$@\" {descriptor}<&$held {{held}}<&-"
    );
    let daemon = std::mem::replace(&mut bed.daemon, Daemon::new(&[]));
    bed.daemon = daemon.under(&["bash", "-c", &script, "bash"]);
    bed.daemon.start(&bed.net.forwarder);
}

/// Passes the socket that systemd makes for a bare port: its clients of IPv4 would have addresses of IPv6.
#[test]
fn a_passed_socket_for_both_families_is_not_used() {
    let mut bed = bed("activation-both");
    name_the_listener(&mut bed);
    let held = bed.net.forwarder.run(|| {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        socket.set_only_v6(false).unwrap();
        socket.bind(&SocketAddr::from(([0_u16; 8], 8090)).into()).unwrap();
        socket.listen(8).unwrap();
        TcpListener::from(socket)
    });
    // The daemon would take it by its name.
    pass(&mut bed, &held.unwrap(), "LISTEN_FDS=1 LISTEN_FDNAMES=web", "3");
    let log = bed.daemon.log();
    let line = log
        .lines()
        .find(|line| line.contains("takes IPv4, too: it is not used"));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(
        line.contains("BindIPv6Only=ipv6-only") && line.contains("ListenStream=0.0.0.0:8090"),
        "{line}"
    );
    bed.connect_spliced("detached").exchange(BYTES);
}

/// A program may count more sockets than it passes: the daemon takes no descriptor of its own for one, and each socket has
/// its name although one before it is missing.
#[test]
fn sockets_that_were_not_passed_are_not_taken() {
    for (name, count) in [("activation-five", "5"), ("activation-many", "2147483647")] {
        let mut bed = bed(name);
        name_the_listener(&mut bed);
        // The name says whose it is, not the address.
        let variables = format!("LISTEN_FDS={count} LISTEN_FDNAMES=gone:web");
        let _held = activate(&mut bed, 8090, &variables, "4");
        let mut pair = connect(&bed, 8090, "detached");
        pair.exchange(BYTES);
        bed.daemon.terminate();
        assert_eq!(bed.daemon.join(), Some(0));
    }
}

/// The tool of systemd that stands for a socket unit listens, and starts the daemon with the first connection.
#[test]
fn the_first_connection_to_a_socket_of_systemd_starts_the_daemon() {
    let program = "systemd-socket-activate";
    if Command::new(program).arg("--version").output().is_err() {
        return not_run("there is no systemd-socket-activate");
    }
    let mut bed = bed("activation-systemd");
    name_the_listener(&mut bed);
    let front = front(&bed, 8090);
    let daemon = std::mem::replace(&mut bed.daemon, Daemon::new(&[]));
    bed.daemon = daemon.under(&[program, "--fdname=web", "--listen", &front.to_string()]);
    let Bed {
        daemon,
        net,
        listener,
        ..
    } = &mut bed;
    let mut first = thread::scope(|scope| {
        let first = scope.spawn(|| {
            soon("the tool to listen", || net.forwarder.listens_at(8090).unwrap());
            Pair::connect(&net.client, front, listener)
        });
        daemon.start(&net.forwarder);
        first.join().unwrap()
    });
    bed.daemon.wait_state(first.client_port(), &["detached"]);
    first.exchange(BYTES);
    connect(&bed, 8090, "detached").exchange(BYTES);
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    first.exchange(BYTES);
}

/// The successor ends before its predecessor, so nothing adopts that one's flows: they end with the last process.
#[test]
fn the_last_process_ends_what_is_spliced_where_that_is_configured() {
    let mut bed = Bed::with("replace-end", Default::default(), Policy::DETACHED, |config| {
        let to = SocketAddr::from(([198, 18, 2, 1], 7000));
        let config = config.listener(at(RELAYING), to, "never", "now");
        config.set("shutdown = \"end\"")
    });
    let mut pair = bed.connect_spliced("detached");
    let mut relayed = connect(&bed, RELAYING, "relay");
    bed.daemon.replace(&bed.net.forwarder);
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    pair.exchange(BYTES);
    relayed.exchange(BYTES);
    relayed.close();
    assert_eq!(bed.daemon.join_replaced(), [Some(0)]);
    assert!(bed.daemon.generations().is_empty());
    pair.client.expect_reset(SOON);
    pair.server.expect_reset(SOON);
}

/// Restarts a daemon whose socket another process holds, as systemd does.
#[test]
fn restarts_with_a_held_socket_refuse_and_reset_nothing() {
    let mut bed = bed("activation");
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    let _held = activate(&mut bed, LOADED, "LISTEN_FDS=1 LISTEN_FDNAMES=web", "3");
    let mut pair = bed.connect_spliced("detached");
    let load = load(&bed);
    let count = times("LONGSPLICE_RESTARTS", 2_u32);
    for _ in 0..count {
        served_more(&load, 20);
        bed.daemon.terminate();
        assert_eq!(bed.daemon.join(), Some(0));
        bed.daemon.start(&bed.net.forwarder);
        pair.exchange(BYTES);
    }
    served_more(&load, 20);
    ends_well(load, &format!("{count} restarts"));
}
