//! Tests the ends of sessions whose TLS is terminated here.

use std::io::{ErrorKind, Read};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    runtime::Builder,
    time::timeout,
};

use super::harness::{Certified, PATIENCE, Server, Switch, ok, read_until, until};

/// End of a session behind a reply.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Last {
    /// Nothing comes from the client.
    Idle,
    /// The daemon stops.
    Stop,
    /// The client has asked for it.
    Close,
    /// No more requests are taken.
    MaxRequests,
}

#[tokio::test]
async fn a_slow_client_gets_its_reply_and_a_close_notify_however_the_session_ends() {
    let dir = tempfile::tempdir().unwrap();
    let certified = Certified::new(dir.path());
    for last in [Last::Idle, Last::Stop, Last::Close, Last::MaxRequests] {
        let mut server = Server::new().await;
        let keys = match last {
            Last::Idle => "idle_timeout = \"100ms\"",
            Last::MaxRequests => "max_requests = 1",
            Last::Stop | Last::Close => "",
        };
        let switch = Switch::new(server.address, keys, &certified.table).await;
        // It takes a few segments, and the rest of the reply stays in the socket of the switch.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let socket = socket.connect(switch.address()).await.unwrap();
        let mut client = certified.connect(socket).await;
        let field = match last {
            Last::Close => "Connection: close\r\n",
            _ => "",
        };
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\n").await;
        let reply = ok(&"x".repeat(40_000));
        at_server.send(&reply).await;
        let replied = || switch.status("u", 0).replies_total.iter().sum::<u64>() == 1;
        until("the reply has come", replied).await;
        let (service, stop) = (switch.service, switch.stop);
        if last == Last::Stop {
            drop(stop);
        }
        until("the session has ended", || service.open() == 0).await;
        let mut got = Vec::new();
        let end = timeout(PATIENCE, client.read_to_end(&mut got)).await.unwrap();
        let got = String::from_utf8(got).unwrap();
        let body = got.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let what = format!("{last:?}: {} bytes, {end:?}", body.len());
        assert!(reply.ends_with(body) && body.len() == 40_000, "{what}");
        assert!(end.is_ok(), "{what}");
    }
}

#[test]
fn a_tunnel_behind_a_long_reply_is_reset_when_its_process_dies() {
    let dir = tempfile::tempdir().unwrap();
    let certified = Certified::new(dir.path());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (mut socket, _others) = runtime.block_on(async {
        let mut server = Server::new().await;
        let switch = Switch::new(server.address, "", &certified.table).await;
        let mut client = certified.connect(switch.client().await.0).await;
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\n").await;
        let reply = ok(&("x".repeat(400_000) + "end"));
        tokio::join!(at_server.send(&reply), read_until(&mut client, "end"));
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
            .await
            .unwrap();
        at_server.until("\r\n\r\n").await;
        at_server
            .send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
            .await;
        client.write_all(b"ping").await.unwrap();
        at_server.until("ping").await;
        at_server.send("pong").await;
        read_until(&mut client, "pong").await;
        (client.into_inner().0.into_std().unwrap(), (at_server, switch))
    });
    // All tasks are dropped, as they are with their process.
    drop(runtime);
    socket.set_nonblocking(false).unwrap();
    let end = socket.read(&mut [0; 100]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
}
