//! Pipelined requests: a client sends the next one before the reply to the previous one, as some browsers and many
//! tools do.

use std::{io::Write, thread};

use longsplice_tests::{
    rng,
    switch::{Backend, Client, Mode, More, Switch, content},
};

/// Returns a request and the body of its reply; `None` if it is a HEAD.
fn request(rng: &mut fastrand::Rng) -> (Vec<u8>, Option<Vec<u8>>) {
    let length = [0, 10, 2_000, 70_000, 400_000][rng.usize(0..5)];
    let usual =
        "Host: switch\r\nUser-Agent: Browser/1.0 (like others)\r\nAccept: */*\r\nCookie: a=b; c=d\r\n";
    match rng.u64(0..6) {
        0 => (
            format!("HEAD /length/{length} HTTP/1.1\r\n{usual}\r\n").into_bytes(),
            None,
        ),
        1 => {
            let head = format!("POST /echo HTTP/1.1\r\n{usual}Content-Length: {length}\r\n\r\n");
            let body = content(length);
            ([head.as_bytes(), &body].concat(), Some(body))
        }
        2 => {
            let head = format!(
                "POST /echo HTTP/1.1\r\n{usual}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
            );
            (head.into_bytes(), Some(b"hello".to_vec()))
        }
        3 => (
            format!("GET /chunked/{length} HTTP/1.1\r\n{usual}\r\n").into_bytes(),
            Some(content(length)),
        ),
        _ => (
            format!("GET /length/{length} HTTP/1.1\r\n{usual}\r\n").into_bytes(),
            Some(content(length)),
        ),
    }
}

fn expect_all(client: &mut Client, expected: &[Option<Vec<u8>>]) {
    for (n, body) in expected.iter().enumerate() {
        let reply = client
            .try_reply(body.is_none())
            .unwrap_or_else(|e| panic!("reply {n}: {e}"));
        assert_eq!(reply.status, 200, "reply {n}: {}", reply.head);
        assert!(
            reply.body == body.clone().unwrap_or_default(),
            "reply {n}: {}",
            reply.head
        );
    }
}

#[test]
fn many_requests_in_one_piece_are_answered_in_order() {
    for mode in Mode::ALL {
        let mut rng = rng();
        let switch = Switch::new("pipeline", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let (requests, expected): (Vec<_>, Vec<_>) = (0..40).map(|_| request(&mut rng)).unzip();
        let mut client = switch.connect();
        let mut writer = client.stream.try_clone().unwrap();
        let bytes = requests.concat();
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&bytes).unwrap());
            expect_all(&mut client, &expected);
        });
        assert_eq!(server.seen().len(), expected.len());
    }
}

#[test]
fn many_requests_in_odd_pieces_are_answered_in_order() {
    for mode in Mode::ALL {
        let mut rng = rng();
        let switch = Switch::new("odd", mode);
        let _server = Backend::start(&switch.net.server, switch.target());
        let (requests, expected): (Vec<_>, Vec<_>) = (0..40).map(|_| request(&mut rng)).unzip();
        let mut client = switch.connect();
        let mut writer = client.stream.try_clone().unwrap();
        let bytes = requests.concat();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    // Send pieces of a few bytes, and of several requests.
                    let most = [3, 40, 3_000, 100_000][rng.usize(0..4)];
                    let (piece, tail) = rest.split_at(rest.len().min(rng.u64(1..most) as usize));
                    writer.write_all(piece).unwrap();
                    rest = tail;
                    thread::yield_now();
                }
            });
            expect_all(&mut client, &expected);
        });
    }
}

/// Requests come while a reply is spliced: the first one brings control back, and the others follow it.
#[test]
fn requests_that_come_in_the_middle_of_a_spliced_reply() {
    const LENGTH: usize = 600_000;
    for mode in Mode::ALL {
        let mut rng = rng();
        let switch = Switch::new("middle", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for _ in 0..12 {
            client.send(format!("GET /halves/{LENGTH} HTTP/1.1\r\nHost: switch\r\n\r\n"));
            client.read_until(b"\r\n\r\n").unwrap();
            let mut body = client.read_exactly(LENGTH / 2).unwrap();
            switch.wait_spliced(&client);
            let (requests, expected): (Vec<_>, Vec<_>) =
                (0..rng.u64(1..5)).map(|_| request(&mut rng)).unzip();
            let mut writer = client.stream.try_clone().unwrap();
            let bytes = requests.concat();
            let first = rng.u64(1..60) as usize;
            thread::scope(|scope| {
                scope.spawn(move || {
                    writer.write_all(&bytes[..first]).unwrap();
                    writer.write_all(&bytes[first..]).unwrap();
                });
                server.go_on();
                body.extend(client.read_exactly(LENGTH - body.len()).unwrap());
                assert!(body == content(LENGTH), "{mode:?}");
                expect_all(&mut client, &expected);
            });
        }
        switch.assert_mode();
    }
}

/// The next request may go to another server, pipelined or not.
#[test]
fn requests_of_one_connection_go_to_two_servers_by_turns() {
    let tables = "[[listener.route]]\nname = \"second\"\npath_prefix = \"/length/2\"\nupstream = \"second\"\n\
                  [[upstream]]\nname = \"second\"\nservers = [\"@SECOND@\"]\n";
    for mode in Mode::ALL {
        let mut rng = rng();
        let more = More {
            tables,
            ..More::default()
        };
        let switch = Switch::with("turns", mode, more);
        let servers = [0, 1].map(|n| Backend::start(&switch.net.server, switch.server(n)));
        for pipelined in [false, true] {
            let lengths: Vec<usize> = (0..40)
                .map(|_| [1_000, 2_000, 100_000, 200_000][rng.usize(0..4)])
                .collect();
            let mut client = switch.connect();
            let get = |length: usize| format!("GET /length/{length} HTTP/1.1\r\nHost: switch\r\n\r\n");
            if pipelined {
                client.send(lengths.iter().map(|n| get(*n)).collect::<String>());
            }
            for length in &lengths {
                if !pipelined {
                    client.send(get(*length));
                }
                assert!(client.reply().body == content(*length), "{length}");
            }
            for (n, server) in servers.iter().enumerate() {
                let seen = server.take_seen();
                let of_this = lengths
                    .iter()
                    .filter(|l| usize::from(l.to_string().starts_with('2')) == n);
                let expected: Vec<_> = of_this.map(|l| format!("GET /length/{l} HTTP/1.1")).collect();
                assert_eq!(seen.iter().map(|s| s.first_line()).collect::<Vec<_>>(), expected);
            }
        }
    }
}
