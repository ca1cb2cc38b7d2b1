//! Detached WebSockets: they go on after a silence and without the daemon, and the daemon still counts them.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
};

use longsplice_tests::{
    SOON, soon,
    switch::{Backend, Client, Mode, More, Python, Switch, content},
};

const UPGRADE: &str = "GET /websocket HTTP/1.1\r\nHost: switch\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const METRICS: u16 = 9090;

// Opcodes of final frames (RFC 6455 section 5.2).
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// Opens a WebSocket, and exchanges a message on it.
fn open(switch: &Switch) -> Client {
    let mut client = switch.connect();
    client.send(UPGRADE);
    assert_eq!(client.reply().status, 101);
    exchange(&mut client, BINARY, 1000);
    switch.wait_spliced(&client);
    client
}

/// Sends a masked frame, and expects its echo.
fn exchange(client: &mut Client, opcode: u8, length: usize) {
    const MASK: [u8; 4] = [9, 8, 7, 6];
    let message = content(length);
    let mut frame = vec![opcode, 0x80 | 127];
    frame.extend((length as u64).to_be_bytes());
    frame.extend(MASK);
    frame.extend(message.iter().zip(MASK.iter().cycle()).map(|(b, m)| b ^ m));
    client.send(frame);
    assert_eq!(client.read_exactly(10).unwrap()[..2], [opcode, 127]);
    assert!(client.read_exactly(length).unwrap() == message);
}

fn close(mut client: Client) {
    exchange(&mut client, CLOSE, 2);
    client.stream.shutdown(Shutdown::Write).unwrap();
    client.expect_end();
}

/// Returns the number of connections at the server, as `longsplice servers` shows it.
fn at_server(switch: &Switch) -> u64 {
    let servers = switch.servers();
    servers[0]["open"]
        .as_u64()
        .unwrap_or_else(|| panic!("{servers:?}"))
}

fn python(switch: &Switch) -> Python {
    Python::start(&switch.net.server, switch.target(), "HTTP/1.1")
}

#[test]
fn after_a_rest_frames_of_all_kinds_pass_and_it_closes_in_order() {
    for mode in Mode::ALL {
        let switch = Switch::new("rest", mode);
        let _server = python(&switch);
        let mut client = open(&switch);
        for _ in 0..2 {
            switch.daemon.wait_flow("a rest", |flow| {
                flow.client.peer.port() == client.port() && flow.idle_seconds.is_some_and(|idle| idle > 2.5)
            });
            for opcode in [PING, PONG, BINARY] {
                exchange(&mut client, opcode, 125);
            }
            exchange(&mut client, BINARY, 300_000);
        }
        close(client);
        soon("its place", || at_server(&switch) == 0);
    }
}

#[test]
fn its_server_counts_it_until_its_end_however_it_ends() {
    for mode in [Mode::Dormant, Mode::Detached] {
        let limit = More {
            upstream: "max_connections = 1\nqueue = 0",
            ..More::default()
        };
        let switch = Switch::with("place", mode, limit);
        let _server = python(&switch);
        for how in ["closed", "killed", "unspliced"] {
            let mut client = open(&switch);
            assert_eq!(at_server(&switch), 1);
            assert_eq!(switch.connect().get("/").status, 503, "its server is full");
            let flow = switch.daemon.wait_state(client.port(), &[mode.name()]);
            match how {
                "killed" => {
                    switch.daemon.kill_flow(flow.id).unwrap();
                    assert!(client.read_exactly(1).unwrap_err().contains("reset"));
                }
                "unspliced" => {
                    switch.daemon.unsplice(flow.id).unwrap();
                    exchange(&mut client, BINARY, 5000);
                    assert_eq!(at_server(&switch), 1);
                    switch.daemon.splice(flow.id).unwrap();
                    switch.wait_spliced(&client);
                    exchange(&mut client, BINARY, 5000);
                    assert_eq!(at_server(&switch), 1);
                    close(client);
                }
                _ => close(client),
            }
            soon("its place", || at_server(&switch) == 0);
        }
        assert_eq!(switch.connect().get("/").status, 200);
    }
}

#[test]
fn many_count_as_many_and_end_one_by_one() {
    let switch = Switch::new("many", Mode::Detached);
    let _server = Backend::start(&switch.net.server, switch.target());
    let mut clients: Vec<_> = (0..100)
        .map(|_| {
            let mut client = switch.connect();
            client.send(
                UPGRADE
                    .replace("/websocket", "/upgrade")
                    .replace("websocket", "echo"),
            );
            assert_eq!(client.reply().status, 101);
            client
        })
        .collect();
    clients.iter().for_each(|client| switch.wait_spliced(client));
    soon("all to be left", || at_server(&switch) == 100);
    for left in (0..100).rev().step_by(25) {
        clients.truncate(left);
        soon("the ends to be seen", || at_server(&switch) == left as u64);
    }
    for client in &mut clients {
        client.send("still there");
        assert_eq!(client.read_exactly(11).unwrap(), b"still there");
    }
}

#[test]
fn a_successor_lists_it_and_can_end_it() {
    for mode in [Mode::Dormant, Mode::Detached] {
        let mut switch = Switch::new("next", mode);
        let _server = python(&switch);
        let [mut goes_on, mut ends] = [open(&switch), open(&switch)];
        switch.daemon.kill();
        exchange(&mut goes_on, PING, 100);
        switch.daemon.start(&switch.net.forwarder);
        let flow = switch.daemon.wait_state(ends.port(), &["detached"]);
        switch.daemon.kill_flow(flow.id).unwrap();
        assert!(ends.read_exactly(1).unwrap_err().contains("reset"));
        exchange(&mut goes_on, BINARY, 100_000);
        close(goes_on);
    }
}

#[test]
fn a_reload_that_takes_its_server_away_ends_it_where_that_is_wanted() {
    for (on_reload, more) in [
        ("reset", ""),
        ("recheck", ""),
        ("keep", ""),
        ("reset", "[access_log]\npath = \"log\"\n"),
    ] {
        for mode in Mode::ALL {
            let switch = Switch::new("change", mode);
            let _server = python(&switch);
            let file = switch.daemon.dir().join("longsplice.toml");
            let text = fs::read_to_string(&file).unwrap();
            let text = text.replace("protocol =", &format!("on_reload = \"{on_reload}\"\nprotocol ="));
            let reload = |text: &str| {
                fs::write(&file, format!("{text}\n{more}")).unwrap();
                switch.daemon.reload().unwrap()
            };
            reload(&text);
            let mut client = open(&switch);
            let said = reload(&text.replace("[listener.http]", "max_connections = 99\n[listener.http]"));
            assert!(!said.contains("connection end"), "{on_reload}, {mode:?}: {said}");
            exchange(&mut client, BINARY, 1000);
            let elsewhere = switch.server(1).to_string();
            let said = reload(&text.replace(&switch.target().to_string(), &elsewhere));
            match on_reload {
                "keep" => close({
                    exchange(&mut client, BINARY, 1000);
                    client
                }),
                _ => {
                    assert!(
                        said.contains("1 open connection ends"),
                        "{on_reload}, {mode:?}: {said}"
                    );
                    assert!(client.read_exactly(1).unwrap_err().contains("reset"));
                }
            }
        }
    }
}

/// Returns the metrics.
fn scrape(switch: &Switch) -> String {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", METRICS))?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: metrics\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    switch.net.forwarder.run(ask).unwrap().unwrap()
}

#[test]
fn it_is_a_request_in_the_metrics_with_an_access_log_and_without() {
    for (mode, log) in Mode::ALL
        .into_iter()
        .flat_map(|mode| [(mode, false), (mode, true)])
    {
        let mut tables = format!("[metrics]\nlisten = \"127.0.0.1:{METRICS}\"\n");
        if log {
            tables += "[access_log]\npath = \"log\"\n";
        }
        let more = More {
            tables: &tables,
            ..More::default()
        };
        let switch = Switch::with("metered", mode, more);
        let _server = python(&switch);
        assert_eq!(switch.connect().get("/").status, 200);
        let mut client = open(&switch);
        exchange(&mut client, BINARY, 100_000);
        close(client);
        let mut last = String::new();
        let counted = |line: &str, all: &str| all.lines().any(|l| l == line);
        let ended = "longsplice_connections_ended_total{listener=\"web\",end=\"complete\"} 2";
        soon("its end", || {
            last = scrape(&switch);
            counted(ended, &last)
        });
        for class in ["1xx", "2xx"] {
            let line =
                format!("longsplice_requests_total{{listener=\"web\",route=\"\",class=\"{class}\"}} 1");
            assert!(counted(&line, &last), "{mode:?}, {log}: {last}");
        }
        let to_server = last
            .lines()
            .find_map(|l| l.strip_prefix("longsplice_payload_bytes_total{listener=\"web\",to=\"server\"} "));
        let to_server: u64 = to_server.and_then(|n| n.parse().ok()).unwrap();
        // Heads, frames, and retransmitted bytes.
        assert!(
            (101_000..150_000).contains(&to_server),
            "{mode:?}, {log}: {to_server}"
        );
        assert_eq!(fs::exists(switch.daemon.dir().join("log")).unwrap(), log);
    }
}
