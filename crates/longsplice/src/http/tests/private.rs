//! Tests connections to servers that a client authenticates, as NTLM and Negotiate do (RFC 4559).

use tokio::io::AsyncWriteExt;

use super::harness::{Certified, Client, Server, Switch, exchange, ok, read_until, to_v, until};

const PLAIN: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const CHALLENGE: &str = "HTTP/1.1 401 x\r\nWWW-Authenticate: NTLM TYPE2\r\nContent-Length: 0\r\n\r\n";

/// Returns a request with these credentials.
fn with(credentials: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: {credentials}\r\n\r\n")
}

/// Returns a table of an upstream `v` that takes all requests, with these servers in turn.
fn in_turn(servers: &[&Server], keys: &str) -> String {
    let list: Vec<_> = servers.iter().map(|s| format!("\"{}\"", s.address)).collect();
    to_v(&format!("servers = [{}]\n{keys}", list.join(", ")))
}

#[tokio::test]
async fn a_connection_with_a_challenge_or_credentials_is_one_clients_alone() {
    for (first, reply) in [
        (PLAIN, CHALLENGE.to_owned()),
        (&with("Negotiate YII"), ok("12345")),
        (&with("nTLM TYPE3"), ok("12345")),
    ] {
        let mut server = Server::new().await;
        let switch = Switch::new(server.address, "", "").await;
        let mut client = switch.client().await;
        let mut at_server = server.exchange(&mut client, first, &reply).await;
        let mut other = switch.client().await;
        let _of_other = server.exchange(&mut other, PLAIN, &ok("other")).await;
        until("the other's connection is idle", || {
            switch.status("u", 0).idle == 1
        })
        .await;
        // The client has its own connection again, also for a request that says nothing of it.
        exchange(&mut client, PLAIN, &mut at_server, &ok("alice")).await;
        assert_eq!(switch.status("u", 0).open, 1, "it counts as one in use");
        drop(client);
        assert_eq!(at_server.rest().await, (String::new(), true));
        until("its place is free", || switch.status("u", 0).open == 0).await;
        assert_eq!(switch.status("u", 0).idle, 1, "none was added");
        assert!(server.another().is_none());
    }
}

#[tokio::test]
async fn credentials_of_a_request_alone_leave_its_connection_to_all() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let basic = "HTTP/1.1 401 x\r\nWWW-Authenticate: Basic realm=\"NTLM\"\r\nContent-Length: 0\r\n\r\n";
    let mut client = switch.client().await;
    let mut at_server = server.exchange(&mut client, PLAIN, basic).await;
    exchange(&mut client, &with("Basic eA=="), &mut at_server, &ok("12345")).await;
    until("it is idle", || switch.status("u", 0).idle == 1).await;
    exchange(&mut switch.client().await, PLAIN, &mut at_server, &ok("other")).await;
}

#[tokio::test]
async fn a_handshake_stays_at_one_server_of_several_even_where_none_is_kept_idle() {
    for keys in ["", "max_idle = 0", "max_connections = 1"] {
        let (mut one, mut two) = (Server::new().await, Server::new().await);
        let switch = Switch::new(one.address, "", &in_turn(&[&one, &two], keys)).await;
        let mut client = switch.client().await;
        client.send(PLAIN).await;
        let mut at_server = tokio::select! {
            at = one.next() => at,
            at = two.next() => at,
        };
        at_server.until("\r\n\r\n").await;
        at_server.send(CHALLENGE).await;
        client.until("\r\n\r\n").await;
        for (credentials, reply) in [("NTLM TYPE1", CHALLENGE), ("NTLM TYPE3", &ok("alice"))] {
            exchange(&mut client, &with(credentials), &mut at_server, reply).await;
        }
        exchange(&mut client, PLAIN, &mut at_server, &ok("alice")).await;
        assert!(one.another().is_none() && two.another().is_none(), "{keys}");
    }
}

#[tokio::test]
async fn one_that_the_server_has_closed_is_replaced() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    drop(server.exchange(&mut client, PLAIN, CHALLENGE).await);
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        .await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\nx").await;
    at_server.send(ok("again")).await;
    client.until("again").await;
    // The new one was not authenticated.
    until("it is idle", || switch.status("u", 0).idle == 1).await;
}

#[tokio::test]
async fn each_upstream_has_its_own() {
    let (mut of_u, mut of_v) = (Server::new().await, Server::new().await);
    let routed = in_turn(&[&of_v], "").replace("path_prefix = \"/\"", "path_prefix = \"/v\"");
    let switch = Switch::new(of_u.address, "", &routed).await;
    let mut client = switch.client().await;
    let to_v = PLAIN.replace("GET /", "GET /v");
    let mut connections = Vec::new();
    for (request, server) in [(PLAIN, &mut of_u), (&to_v, &mut of_v)] {
        connections.push(server.exchange(&mut client, request, CHALLENGE).await);
    }
    for _ in 0..2 {
        for (request, at_server) in [PLAIN, &to_v].into_iter().zip(&mut connections) {
            exchange(&mut client, request, at_server, &ok("alice")).await;
        }
    }
    drop(client);
    for mut at_server in connections {
        assert_eq!(at_server.rest().await, (String::new(), true));
    }
    assert!(of_u.another().is_none() && of_v.another().is_none());
}

#[tokio::test]
async fn a_client_over_tls_has_its_own_connection_too() {
    let dir = tempfile::tempdir().unwrap();
    let certified = Certified::new(dir.path());
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", &certified.table).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let Client(socket) = switch.client().await;
        let mut client = certified.connect(socket).await;
        client.write_all(PLAIN.as_bytes()).await.unwrap();
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\n").await;
        at_server.send(CHALLENGE).await;
        read_until(&mut client, "\r\n\r\n").await;
        clients.push((client, at_server));
    }
    for (client, at_server) in &mut clients {
        client.write_all(PLAIN.as_bytes()).await.unwrap();
        at_server.until("\r\n\r\n").await;
        at_server.send(ok("alice")).await;
        read_until(client, "alice").await;
    }
    assert_eq!(switch.status("u", 0).idle, 0);
}
