//! A server authenticates connections, as NTLM does (RFC 4559): no other client gets one.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use longsplice_tests::{
    stop_listening,
    switch::{Client, Mode, Switch, content},
};
use parking_lot::Mutex;

/// Length of the secret, in bytes.
const LONG: usize = 400_000;

/// A server that tells each authenticated connection a secret, whose second half waits for a word of the test.
struct Server {
    listener: TcpListener,
    go_on: Sender<()>,
}

impl Server {
    fn start(switch: &Switch) -> Server {
        let bound = switch.net.server.run(|| TcpListener::bind(switch.target()));
        let listener = bound.unwrap().unwrap();
        let (go_on, may) = channel();
        let (accepting, may) = (listener.try_clone().unwrap(), Arc::new(Mutex::new(may)));
        thread::spawn(move || {
            while let Ok((connection, _)) = accepting.accept() {
                let may = Arc::clone(&may);
                thread::spawn(move || answer(&connection, &may));
            }
        });
        Server { listener, go_on }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        stop_listening(self.listener.try_clone().unwrap());
    }
}

/// Answers the requests of a connection until it ends.
fn answer(mut connection: &TcpStream, may: &Mutex<Receiver<()>>) -> Option<()> {
    let mut lines = BufReader::new(connection).lines();
    let (mut has_challenge, mut is_alice) = (false, false);
    loop {
        let head: Vec<String> = lines
            .by_ref()
            .map_while(Result::ok)
            .take_while(|l| !l.is_empty())
            .collect();
        let credentials = head
            .iter()
            .find_map(|line| line.strip_prefix("Authorization: NTLM "));
        is_alice |= has_challenge && credentials == Some("TYPE3-alice");
        has_challenge |= credentials == Some("TYPE1");
        let challenge = if has_challenge { "NTLM TYPE2" } else { "NTLM" };
        let reply = match is_alice {
            _ if head.is_empty() => return None,
            true => format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n"),
            false => format!("HTTP/1.1 401 x\r\nWWW-Authenticate: {challenge}\r\nContent-Length: 0\r\n\r\n"),
        };
        connection.write_all(reply.as_bytes()).ok()?;
        if is_alice {
            let secret = content(LONG);
            let (one, two) = secret.split_at(LONG / 2);
            connection.write_all(one).ok()?;
            may.lock().recv().ok()?;
            connection.write_all(two).ok()?;
        }
    }
}

fn ask(client: &mut Client, credentials: &str) {
    client.send(format!("GET / HTTP/1.1\r\nHost: switch\r\n{credentials}\r\n"));
}

#[test]
fn a_client_keeps_the_connection_that_it_has_authenticated_and_no_other_gets_it() {
    for mode in Mode::ALL {
        let switch = Switch::new("ntlm", mode);
        let server = Server::start(&switch);
        let mut alice = switch.connect();
        let is_refused_beside = |when| {
            let mut other = switch.connect();
            ask(&mut other, "");
            let head = other.read_until(b"\r\n\r\n").unwrap();
            let head = String::from_utf8_lossy(&head);
            assert!(head.starts_with("HTTP/1.1 401 "), "{mode:?}, {when}: {head}");
        };
        for credentials in ["", "Authorization: NTLM TYPE1\r\n"] {
            ask(&mut alice, credentials);
            assert_eq!(alice.reply().status, 401, "{mode:?}");
            is_refused_beside("in the handshake");
        }
        for credentials in ["Authorization: NTLM TYPE3-alice\r\n", ""] {
            ask(&mut alice, credentials);
            let head = alice.read_until(b"\r\n\r\n").unwrap();
            let head = String::from_utf8_lossy(&head);
            assert!(head.starts_with("HTTP/1.1 200 "), "{mode:?}: {head}");
            let half = alice.read_exactly(LONG / 2).unwrap();
            switch.wait_spliced(&alice);
            server.go_on.send(()).unwrap();
            switch.get_other_half(half, &mut alice);
            is_refused_beside("behind a reply");
        }
        drop(alice);
        is_refused_beside("behind its session");
        switch.assert_mode();
    }
}
