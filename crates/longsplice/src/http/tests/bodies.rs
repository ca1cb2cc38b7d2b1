//! Tests bodies in both directions and in every framing.

use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::harness::{Client, PATIENCE, Server, Switch, ok};

#[tokio::test]
async fn chunks_pass_as_they_are_and_the_next_messages_are_found_behind_them() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    let chunks = format!(
        "5;x=y\r\nhello\r\n{:x}\r\n{}\r\n0\r\nTrailer: t\r\n\r\n",
        100_000,
        "b".repeat(100_000)
    );
    let head = "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    client
        .send(format!("{head}{chunks}GET /2 HTTP/1.1\r\nHost: a\r\n\r\n"))
        .await;
    let mut at_server = server.next().await;
    assert_eq!(
        at_server.until("Trailer: t\r\n\r\n").await,
        format!("{head}{chunks}")
    );
    at_server
        .send(format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
        ))
        .await;
    let reply = client.until("Trailer: t\r\n\r\n").await;
    assert!(reply.ends_with(&chunks));
    assert!(at_server.until("\r\n\r\n").await.starts_with("GET /2 "));
    at_server.send(ok("2")).await;
    client.until("\r\n\r\n2").await;
    assert!(server.another().is_none());
}

#[tokio::test]
async fn who_waits_for_100_continue_gets_it_from_the_server() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    client
        .send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        .await;
    let mut at_server = server.next().await;
    assert!(
        at_server
            .until("\r\n\r\n")
            .await
            .contains("Expect: 100-continue\r\n")
    );
    at_server
        .send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        .await;
    assert!(client.until("100 Continue\r\n\r\n").await.contains("Link: x"));
    client.send("body").await;
    assert_eq!(at_server.until("body").await, "body");
    at_server.send(ok("done")).await;
    client.until("done").await;
}

#[tokio::test]
async fn a_reply_overtakes_the_body_of_its_request() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbegin")
        .await;
    let mut at_server = server.next().await;
    at_server.until("begin").await;
    at_server
        .send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        .await;
    drop(at_server);
    let (reply, in_order) = client.rest().await;
    assert!(
        reply.starts_with("HTTP/1.1 413 ") && reply.ends_with("\r\n\r\nno") && in_order,
        "{reply}"
    );
    assert!(reply.contains("Connection: close\r\n"), "{reply}");
}

#[tokio::test]
async fn a_reply_arrives_whole_at_a_client_that_still_sends_the_last_request_of_its_connection() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let body = "n".repeat(300_000);
    for last in ["HTTP/1.1\r\nHost: a\r\nConnection: close", "HTTP/1.0"] {
        let mut client = switch.client().await;
        client
            .send(format!("POST / {last}\r\nContent-Length: 100000000\r\n\r\nbegin"))
            .await;
        let mut at_server = server.next().await;
        at_server.until("begin").await;
        let head = format!("HTTP/1.1 413 Content Too Large\r\nContent-Length: {}", body.len());
        at_server.send(format!("{head}\r\n\r\n{body}")).await;
        // The switch has taken the whole reply as soon as it releases the server; the client has read none of it.
        assert_eq!(at_server.rest().await, (String::new(), true), "{last}");
        client.send("more").await;
        let (reply, in_order) = client.rest().await;
        let is_whole = reply.starts_with("HTTP/1.1 413 ") && reply.ends_with(&format!("\r\n\r\n{body}"));
        assert!(is_whole && in_order, "{last}: {} bytes", reply.len());
    }
}

#[tokio::test]
async fn a_server_may_reply_while_it_reads() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\none")
        .await;
    let mut at_server = server.next().await;
    at_server.until("one").await;
    at_server
        .send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\none")
        .await;
    client.until("\r\n\r\none").await;
    client.send("two").await;
    at_server.until("two").await;
    at_server.send("two").await;
    client.until("two").await;
}

#[tokio::test]
async fn replies_without_a_body_end_with_their_head() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "date = false", "").await;
    let mut client = switch.client().await;
    let mut at_server = None;
    for (method, reply) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
    ] {
        client
            .send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"))
            .await;
        let at_server = match &mut at_server {
            Some(at_server) => at_server,
            none => none.insert(server.next().await),
        };
        at_server.until("\r\n\r\n").await;
        at_server.send(reply).await;
        assert_eq!(client.until("\r\n\r\n").await, reply);
    }
    assert!(server.another().is_none());
}

#[tokio::test]
async fn a_body_that_ends_with_its_connection_passes_whole_and_closes_in_order() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    let body = "e".repeat(300_000);
    at_server.send(format!("HTTP/1.0 200 OK\r\n\r\n{body}")).await;
    drop(at_server);
    let (reply, in_order) = client.rest().await;
    assert!(in_order && reply.ends_with(&body) && reply.contains("Connection: close\r\n"));
}

#[tokio::test]
async fn after_a_101_both_streams_pass() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    client
        .send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nearly")
        .await;
    let mut at_server = server.next().await;
    assert!(at_server.until("\r\n\r\n").await.contains("Upgrade: echo\r\n"));
    at_server
        .send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nfirst")
        .await;
    client.until("first").await;
    at_server.until("early").await;
    for word in ["one", "two"] {
        client.send(word).await;
        at_server.until(word).await;
        at_server.send(word).await;
        client.until(word).await;
    }
    drop(client);
    assert_eq!(at_server.rest().await.0, "");
}

#[tokio::test]
async fn a_client_that_goes_on_reading_has_all_the_time_it_needs() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "max_head = \"1MiB\"\nbody_timeout = \"3s\"", "").await;
    // Small segments and a small buffer: the switch's socket takes little of the reply at once.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(1 << 10).unwrap();
    socket.set_tcp_mss(536).unwrap();
    socket.connect(&switch.address().into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut client = Client(TcpStream::from_std(socket.into()).unwrap());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    let fields = format!("x: {}\r\n", "x".repeat(8_000)).repeat(100);
    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n{fields}\r\nend");
    let (mut got, mut piece) = (Vec::new(), vec![0; 1_000]);
    let send = async {
        at_server.send(&reply).await;
        std::future::pending::<()>().await
    };
    let read = async {
        while !got.ends_with(b"\r\n\r\nend") {
            // Its pace, not a wait for the switch: 200 kB/s at most.
            sleep(Duration::from_millis(5)).await;
            let n = timeout(PATIENCE, client.0.read(&mut piece)).await.unwrap();
            match n.unwrap_or(0) {
                0 => panic!("cut off after {} of {} bytes", got.len(), reply.len()),
                n => got.extend_from_slice(&piece[..n]),
            }
        }
    };
    tokio::select! {
        () = send => unreachable!(),
        () = read => {}
    }
    assert!(got.len() >= reply.len());
}

#[tokio::test]
async fn a_rate_of_uploads_does_not_hold_up_the_reply_beside_them() {
    let mut server = Server::new().await;
    let switch = Switch::with(server.address, "rate_limit = \"client=20kB/s,burst=1kB\"");
    let (mut reading, mut writing) = switch.client().await.0.into_split();
    let length = 1_000_000;
    // It takes 50 s at that rate.
    let upload = tokio::spawn(async move {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        let _ = writing.write_all(head.as_bytes()).await;
        let _ = writing.write_all(&vec![b'u'; length]).await;
        std::future::pending::<()>().await
    });
    let (mut from_switch, mut to_switch) = server.next().await.0.into_split();
    let taken = tokio::spawn(async move { tokio::io::copy(&mut from_switch, &mut tokio::io::sink()).await });
    let body = "d".repeat(5_000_000);
    let reply = tokio::spawn(async move {
        to_switch.write_all(ok(&body).as_bytes()).await.unwrap();
        to_switch
    });
    let mut got = vec![0; 5_000_000];
    timeout(PATIENCE, reading.read_exact(&mut got))
        .await
        .expect("the reply waits for the upload")
        .unwrap();
    assert!(!upload.is_finished() && !taken.is_finished());
    upload.abort();
    taken.abort();
    drop(reply.await.unwrap());
}

#[tokio::test]
async fn a_reply_counts_once_towards_the_next_probe_however_many_pieces_it_comes_in() {
    const LENGTH: usize = 100_000;
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut at_server = server.next().await;
    for n in 1..=3 {
        at_server.until("\r\n\r\n").await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
        at_server.send(head).await;
        let piece = |length| format!("{}.", "x".repeat(length - 1));
        for _ in 0..3 {
            at_server.send(piece(5_000)).await;
            client.until(".").await;
        }
        at_server.send(piece(LENGTH - 15_000)).await;
        client.until(".").await;
        if n < 3 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        }
    }
    // Count up to the next probe, which comes with every 128th reply of such a length.
    let delay = switch.service.splice_delay();
    let least = switch.shared.splice_min.bytes();
    let probe = (1..200).find(|_| delay.pays(LENGTH as u64, least));
    assert_eq!(probe, Some(128 - 3));
}
