//! Tests failures of servers and clients.

use std::sync::atomic::Ordering;

use longsplice_repair::{options::set_reset_on_close, unacknowledged};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    time::timeout,
};

use super::harness::{Client, PATIENCE, Server, Switch, ok, until};
use crate::access_log::End;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Returns a switch with one server, and a client of it.
async fn connected() -> (Server, Switch, Client) {
    let server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let client = switch.client().await;
    (server, switch, client)
}

/// Sends a request over a new connection to the server. Returns the server's end, which has read it.
async fn ask(server: &mut Server, client: &mut Client) -> Client {
    client.send(GET).await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    at_server
}

/// Sends one request, after which the switch holds an idle connection to the server.
async fn warm_up(server: &mut Server, client: &mut Client) -> Client {
    let mut at_server = ask(server, client).await;
    at_server.send(ok("warm")).await;
    client.until("warm").await;
    at_server
}

#[tokio::test]
async fn a_reply_that_is_cut_short_never_looks_whole() {
    for reply in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        let (mut server, _switch, mut client) = connected().await;
        let mut at_server = ask(&mut server, &mut client).await;
        at_server.send(reply).await;
        drop(at_server);
        let (got, in_order) = client.rest().await;
        assert!(!in_order, "{got}");
    }
}

#[tokio::test]
async fn a_body_that_ends_with_its_connection_and_breaks_is_reset() {
    let (mut server, _switch, mut client) = connected().await;
    let mut at_server = ask(&mut server, &mut client).await;
    at_server.send("HTTP/1.1 200 OK\r\n\r\nhalf").await;
    client.until("half").await;
    set_reset_on_close(&at_server.0, true).unwrap();
    drop(at_server);
    assert_eq!(client.rest().await, (String::new(), false));
}

#[tokio::test]
async fn servers_that_give_no_reply_are_named_by_their_fault() {
    for (reply, status) in [
        ("", "502 Bad Gateway"),
        ("HTTP/1.1 200", "502 Bad Gateway"),
        ("rubbish\r\n\r\n", "502 Bad Gateway"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "502 Bad Gateway",
        ),
        ("wait", "504 Gateway Timeout"),
    ] {
        let mut server = Server::new().await;
        let switch = Switch::new(server.address, "reply_timeout = \"300ms\"", "").await;
        let mut client = switch.client().await;
        let mut at_server = ask(&mut server, &mut client).await;
        if reply != "wait" {
            at_server.send(reply).await;
            at_server.0.shutdown().await.unwrap();
        }
        let answer = client.until("\r\n\r\n").await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{reply}: {answer}"
        );
        // It is the server's fault: the client's connection goes on.
        client.until("\n").await;
        client.send(GET).await;
        drop(at_server);
        server.next().await.until("\r\n\r\n").await;
    }
}

#[tokio::test]
async fn no_server_at_all_is_a_502_and_the_connection_goes_on() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let switch = Switch::new(gone, "", "").await;
    let mut client = switch.client().await;
    for _ in 0..2 {
        client.send(GET).await;
        let answer = client.until("\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 50"), "{answer}");
        client.until("\n").await;
    }
}

#[tokio::test]
async fn an_idle_connection_that_was_dead_costs_no_request_that_can_be_repeated() {
    let (mut server, _switch, mut client) = connected().await;
    let mut at_server = warm_up(&mut server, &mut client).await;
    client.send(GET).await;
    // End the connection after the request has arrived, as if the request had crossed the server's close.
    at_server.until("\r\n\r\n").await;
    drop(at_server);
    let mut second = server.next().await;
    second.until("\r\n\r\n").await;
    second.send(ok("again")).await;
    client.until("again").await;
    // The switch cannot know whether the server handled this request.
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        .await;
    second.until("x").await;
    drop(second);
    assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 502 "));
    assert!(server.another().is_none());
}

#[tokio::test]
async fn a_servers_connection_that_the_engine_had_ends_in_order_when_it_is_idle() {
    let (mut server, _switch, mut client) = connected().await;
    let mut at_server = ask(&mut server, &mut client).await;
    // Send a reply that is long enough for the engine, whose sockets reset when they are closed.
    at_server.send(ok(&format!("{}last", "x".repeat(200_000)))).await;
    client.until("last").await;
    client.send(GET).await;
    at_server.until("\r\n\r\n").await;
    at_server.send(ok("end")).await;
    client.until("end").await;
    // The connection is idle now, and is found closed.
    at_server.0.shutdown().await.unwrap();
    assert_eq!(at_server.rest().await, (String::new(), true));
}

#[tokio::test]
async fn a_408_on_an_idle_connection_is_not_the_reply_to_the_next_request() {
    let (mut server, _switch, mut client) = connected().await;
    let mut at_server = warm_up(&mut server, &mut client).await;
    client.send(GET).await;
    // The 408 crosses the request, which this server has not seen (RFC 9110 section 15.5.9).
    at_server.until("\r\n\r\n").await;
    at_server
        .send("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .await;
    drop(at_server);
    let mut second = server.next().await;
    second.until("\r\n\r\n").await;
    second.send(ok("again")).await;
    client.until("again").await;
}

#[tokio::test]
async fn a_client_that_has_closed_its_half_gets_its_reply() {
    let (mut server, _switch, mut client) = connected().await;
    client.send(GET).await;
    client.0.shutdown().await.unwrap();
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    at_server.send(ok("late")).await;
    let (reply, in_order) = client.rest().await;
    assert!(reply.ends_with("late") && in_order, "{reply}");
}

#[tokio::test]
async fn a_client_that_is_gone_frees_its_server() {
    let (mut server, switch, mut client) = connected().await;
    let at_server = ask(&mut server, &mut client).await;
    // tokio learns of this client's socket only because its server is slow.
    let eager = switch.eager_client(GET);
    let mut second = server.next().await;
    second.until("\r\n\r\n").await;
    for (client, mut at_server) in [(client, at_server), (eager, second)] {
        set_reset_on_close(&client.0, true).unwrap();
        drop(client);
        assert_eq!(at_server.rest().await.0, "");
    }
}

#[tokio::test]
async fn a_client_that_need_not_be_waited_for_is_served_as_others_are() {
    let (mut server, switch, _client) = connected().await;
    let close = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let upload = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nhalf";
    for (requests, goes_on) in [
        (close, false),
        (GET, true),
        (&GET.repeat(2), true),
        (upload, true),
    ] {
        let mut client = switch.eager_client(requests);
        let mut at_server = server.next().await;
        for _ in 0..requests.matches("HTTP/1.1").count() {
            at_server.until("\r\n\r\n").await;
            if requests == upload {
                at_server.until("half").await;
            }
            at_server.send(ok("one")).await;
            client.until("one").await;
        }
        if goes_on {
            client.send(GET).await;
            at_server.until("\r\n\r\n").await;
            at_server.send(ok("two")).await;
            client.until("two").await;
        } else {
            assert_eq!(client.rest().await, (String::new(), true));
        }
        // Drop it, so that the next client gets a new connection to the server.
        drop(at_server);
    }
    // This client sends half a head, and the rest later.
    let mut client = switch.eager_client("GET / HT");
    client.send("TP/1.1\r\nHost: a\r\n\r\n").await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    at_server.send(ok(&"x".repeat(300_000))).await;
    client.until(&"x".repeat(300_000)).await;
}

#[tokio::test]
async fn a_body_that_stops_is_not_waited_for() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "body_timeout = \"60ms\"", "").await;
    let mut client = switch.client().await;
    client
        .send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
        .await;
    let mut at_server = server.next().await;
    at_server.until("half").await;
    let (answer, _) = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_eq!(at_server.rest().await.0, "");
    assert_eq!(switch.failures(), 0);
    let mut client = switch.client().await;
    let mut at_server = ask(&mut server, &mut client).await;
    at_server
        .send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        .await;
    assert!(!client.rest().await.1, "half a reply looks whole");
}

#[tokio::test]
async fn a_server_that_stops_reading_a_body_is_at_fault() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "body_timeout = \"300ms\"", "").await;
    let (mut reading, mut writing) = switch.client().await.0.into_split();
    let endless = format!(
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        1_u64 << 40
    );
    let upload = tokio::spawn(async move {
        let mut piece = endless.into_bytes();
        while writing.write_all(&piece).await.is_ok() {
            piece = vec![b'x'; 64 << 10];
        }
    });
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\nx").await;
    let mut answer = [0; 1024];
    let n = timeout(PATIENCE, reading.read(&mut answer))
        .await
        .unwrap()
        .unwrap();
    let answer = String::from_utf8_lossy(&answer[..n]);
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert_eq!(switch.failures(), 1);
    upload.abort();
}

#[tokio::test]
async fn a_request_whose_body_is_not_here_goes_over_an_idle_connection() {
    let (mut server, _switch, mut client) = connected().await;
    let mut at_server = warm_up(&mut server, &mut client).await;
    for (fields, body) in [
        ("Content-Length: 4", ["bo", "dy"]),
        ("Transfer-Encoding: chunked", ["4\r\nbody", "\r\n0\r\n\r\n"]),
    ] {
        client
            .send(format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n"))
            .await;
        at_server.until("\r\n\r\n").await;
        for piece in body {
            client.send(piece).await;
            at_server.until(piece).await;
        }
        at_server.send(ok("done")).await;
        client.until("done").await;
    }
    // The server may have handled a request that ends meanwhile: it is not sent twice.
    client
        .send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo")
        .await;
    at_server.until("bo").await;
    drop(at_server);
    let answer = client.until("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(server.another().is_none());
}

#[tokio::test]
async fn a_connection_that_is_told_to_end_before_its_protocol_does_so_at_once() {
    let server = Server::new().await;
    let switch = Switch::with(server.address, "accept_proxy = \"127.0.0.0/8\"");
    let mut client = switch.client().await;
    let tracker = &switch.service.shared().tracker;
    until("it is accepted", || tracker.count() > 0).await;
    assert_eq!(tracker.end_newest(1, End::Memory), 1);
    assert_eq!(client.rest().await.0, "");
    let ended = |end: End| switch.service.counts().ended[end as usize].load(Ordering::Relaxed);
    assert_eq!([End::Memory, End::BadRequest].map(ended), [1, 0]);
    assert_eq!(tracker.count(), 0);
}

#[tokio::test]
async fn a_client_that_is_told_to_end_within_its_head_is_reset_and_not_called_slow() {
    let (_server, switch, _client) = connected().await;
    let tracker = &switch.service.shared().tracker;
    until("the first one is accepted", || tracker.count() == 1).await;
    let mut client = switch.eager_client("GET / HT");
    until("it is accepted", || tracker.count() == 2).await;
    assert_eq!(tracker.end_newest(1, End::Memory), 1);
    assert_eq!(client.rest().await, (String::new(), false));
    let ended = |end: End| switch.service.counts().ended[end as usize].load(Ordering::Relaxed);
    assert_eq!([End::Memory, End::ClientTimeout].map(ended), [1, 0]);
}

#[tokio::test]
async fn a_connection_without_its_proxy_header_is_reset_and_one_of_http_closes_in_order() {
    let mut server = Server::new().await;
    let keys = "accept_proxy = \"127.0.0.0/8\"\n[listener.http]\nidle_timeout = \"100ms\"";
    let switch = Switch::with(server.address, keys);
    for (sent, ends) in [
        (GET, false),
        ("PROXY TCP4 1.2.3.4\r\n", false),
        ("PROXY TCP4 ", true),
    ] {
        let mut client = switch.client().await;
        client.send(sent).await;
        if ends {
            client.0.shutdown().await.unwrap();
        }
        assert_eq!(client.rest().await, (String::new(), false), "{sent}");
    }
    let mut client = switch.client().await;
    client.send(format!("PROXY UNKNOWN\r\n{GET}")).await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    at_server.send(ok("one")).await;
    client.until("one").await;
    assert_eq!(client.rest().await, (String::new(), true), "it was idle too long");
}

#[tokio::test]
async fn a_client_that_sends_more_than_its_last_request_gets_the_whole_reply() {
    let last = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody";
    for request in [last, "GET / HTTP/1.0\r\n\r\n"] {
        for length in [20_000, 300_000] {
            let mut server = Server::new().await;
            let switch = Switch::new(server.address, "", "").await;
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            let mut client = Client(socket.connect(switch.address()).await.unwrap());
            client.send(request).await;
            let mut at_server = server.next().await;
            at_server.until(&request[request.len() - 4..]).await;
            client.send("\r\n").await;
            until("it has come", || matches!(unacknowledged(&client.0), Ok(0))).await;
            at_server.send(ok(&"x".repeat(length))).await;
            let (reply, in_order) = client.rest().await;
            let body = reply.split_once("\r\n\r\n").map(|(_, body)| body.len());
            assert_eq!((body, in_order), (Some(length), true), "{request}");
        }
    }
}
