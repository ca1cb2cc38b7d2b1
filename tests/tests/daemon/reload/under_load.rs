//! Clients come and go while the configuration changes, and all of them succeed.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use longsplice_tests::{Bed, Config, Policy, SOON, accept, rng, soon};
use rustix::process::Signal;

const CLIENTS: usize = 8;
const RELOADS: u64 = 40;

/// Echoes, in a thread for each connection, until the listener is gone.
fn echo(listener: &TcpListener) {
    let listener = listener.try_clone().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Makes one connection: sends a text, reads its echo up to an orderly end.
fn ask(front: SocketAddr, text: &[u8]) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&front, SOON)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(text)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut back = Vec::new();
    stream.read_to_end(&mut back)?;
    assert_eq!(back, text);
    Ok(())
}

#[test]
fn no_connection_fails_or_is_lost() {
    let mut rng = rng();
    let bed = Bed::new("reload-load", Policy::DETACHED);
    echo(&bed.listener);
    // Tens of thousands of connections would use up the ports.
    bed.net.client.sysctl("net.ipv4.tcp_tw_reuse", "1").unwrap();
    let (front, target) = (bed.front(), bed.target());
    let listen = SocketAddr::from((bed.net.family().unspecified(), front.port()));
    // The socket moves from listener to listener, its policy and limits change, others come and go beside it.
    let variants = [
        Config::new().listener(listen, target, "now", "now"),
        Config::new()
            .listener(listen, target, "never", "never")
            .with("name = \"other\"\nmax_connections = 5"),
        Config::new()
            .listener(
                (bed.net.family().unspecified(), 8081).into(),
                target,
                "now",
                "now",
            )
            .listener(listen, target, "now", "never")
            .with("name = \"third\"\nmax_connections = 3"),
    ];
    let (over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (over, asked, bed) = (&over, &asked, &bed);
                scope.spawn(move || {
                    let client = || {
                        while !over.load(Ordering::Relaxed) {
                            let text =
                                format!("client {n}, connection {}", asked.fetch_add(1, Ordering::Relaxed));
                            ask(front, text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
                        }
                    };
                    bed.net.client.run(client).unwrap();
                })
            })
            .collect();
        for round in 0..RELOADS {
            let n = rng.usize(0..variants.len());
            bed.daemon.reconfigure(&variants[n]);
            let number = bed.daemon.status().config_generation.number;
            match round % 2 {
                0 => drop(bed.daemon.reload().unwrap()),
                _ => bed.daemon.signal(Signal::HUP),
            }
            soon("the reload", || {
                bed.daemon.status().config_generation.number == number + 1
            });
            // Let some connections come in between.
            let before = asked.load(Ordering::Relaxed);
            soon("a connection", || {
                asked.load(Ordering::Relaxed) > before || clients.iter().any(|c| c.is_finished())
            });
        }
        over.store(true, Ordering::Relaxed);
    });
    let status = bed.daemon.status();
    assert_eq!(status.config_generation.number, RELOADS + 1);
    assert_eq!(status.config_generation.failed_total, 0, "{status:?}");
    // No queue lost a connection: each with a handshake was accepted.
    assert_eq!(status.accepted_total, asked.load(Ordering::Relaxed), "{status:?}");
    assert!(status.accepted_total > RELOADS);
}

/// A connection waits for room at a listener whose socket a reload gives to another one, or that refuses from then on.
#[test]
fn a_connection_that_waits_for_room_is_judged_anew() {
    for (next, is_served) in [
        ("name = \"other\"\nmax_connections = 1", true),
        (
            "name = \"full\"\nmax_connections = 1\non_full = \"refuse\"",
            false,
        ),
    ] {
        let bed = Bed::with("reload-full", Default::default(), Policy::ON_DEMAND, |c| {
            c.with("name = \"full\"\nmax_connections = 1")
        });
        let (front, target) = (bed.front(), bed.target());
        let listen = SocketAddr::from((bed.net.family().unspecified(), front.port()));
        let mut first = bed.connect();
        first.exchange(1000);
        let connect = || TcpStream::connect(front);
        let mut waiting = bed.net.client.run(connect).unwrap().unwrap();
        soon("the listener to be full", || {
            bed.daemon.log().contains("the listener is full")
        });
        let config = Config::new().listener(listen, target, "never", "now").with(next);
        bed.daemon.reconfigure(&config);
        bed.daemon.reload().unwrap();
        waiting.set_read_timeout(Some(SOON)).unwrap();
        if is_served {
            let mut server = accept(&bed.listener);
            server.write_all(b"!").unwrap();
            waiting.read_exact(&mut [0]).unwrap();
        } else {
            let refused = waiting.read(&mut [0]);
            assert!(
                !refused.as_ref().is_err_and(|e| e.kind() == ErrorKind::WouldBlock),
                "{refused:?}"
            );
        }
        first.exchange(1000);
    }
}
