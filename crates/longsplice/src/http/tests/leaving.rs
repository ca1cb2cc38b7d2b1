//! Tests clients that leave while their reply is under way.

use std::sync::atomic::Ordering;

use longsplice_repair::{options::set_reset_on_close, unacknowledged};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::harness::{Certified, Client, PATIENCE, Server, Switch, until};
use crate::access_log::End;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// First chunk of a reply that goes on.
const BEGUN: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none.\r\n";
const LAST: &str = "0\r\n\r\n";

/// Waits until a request has ended so, and its server is free.
async fn ended_with(switch: &Switch, end: End) {
    let ended = || switch.service.counts().ended[end as usize].load(Ordering::Relaxed);
    until("the request has ended so", || ended() == 1).await;
    until("its server is free", || switch.status("u", 0).open == 0).await;
}

/// Plays a server that begins a reply and is quiet then. Returns its end once the client has read the beginning.
async fn begin(server: &mut Server, client: &mut (impl AsyncRead + Unpin)) -> Client {
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    at_server.send(BEGUN).await;
    let mut got = Vec::new();
    while !got.ends_with(b"one.\r\n") {
        let read = timeout(PATIENCE, client.read_buf(&mut got)).await;
        assert!(matches!(read, Ok(Ok(1..))), "{read:?}");
    }
    at_server
}

/// Ends a client within its reply, by dropping it, and waits until its server knows.
async fn leave(mut client: impl AsyncRead + AsyncWrite + Unpin, server: &mut Server, switch: &Switch) {
    let mut at_server = begin(server, &mut client).await;
    drop(client);
    assert_eq!(at_server.rest().await.0, "");
    ended_with(switch, End::ClientClosed).await;
}

#[tokio::test]
async fn a_client_that_is_reset_within_a_quiet_reply_frees_its_server() {
    let mut server = Server::new().await;
    let switch = Switch::with(server.address, "");
    let client = switch.eager_client(GET).0;
    set_reset_on_close(&client, true).unwrap();
    leave(client, &mut server, &switch).await;

    let dir = tempfile::tempdir().unwrap();
    let certified = Certified::new(dir.path());
    let switch = Switch::with(server.address, &certified.table);
    let client = switch.client().await.0;
    set_reset_on_close(&client, true).unwrap();
    let mut client = certified.connect(client).await;
    client.write_all(GET.as_bytes()).await.unwrap();
    leave(client, &mut server, &switch).await;
}

#[tokio::test]
async fn a_client_that_says_its_last_within_a_quiet_reply_frees_its_server_where_that_is_configured() {
    let mut server = Server::new().await;
    let switch = Switch::with(server.address, "abort_on_close = true");
    leave(switch.eager_client(GET).0, &mut server, &switch).await;

    let switch = Switch::with(server.address, "");
    let mut client = switch.eager_client(GET);
    let mut at_server = begin(&mut server, &mut client.0).await;
    client.0.shutdown().await.unwrap();
    until("its FIN has come", || matches!(unacknowledged(&client.0), Ok(0))).await;
    at_server.send(LAST).await;
    assert_eq!(client.rest().await, (LAST.to_owned(), true));
    ended_with(&switch, End::Complete).await;
}

#[tokio::test]
async fn a_server_hears_that_a_request_breaks_off_and_may_reply_to_it() {
    let length = "Content-Length: 10\r\n\r\n";
    let chunks = "Transfer-Encoding: chunked\r\n\r\n";
    for (framing, malformed, completes, end) in [
        (length, None, true, End::Complete),
        (length, None, false, End::ClientClosed),
        (chunks, Some("xyz\r\n"), true, End::Complete),
        (chunks, Some("xyz\r\n"), false, End::BadRequest),
    ] {
        let mut server = Server::new().await;
        let switch = Switch::with(server.address, "");
        let mut client = switch.client().await;
        client
            .send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}"))
            .await;
        let mut at_server = begin(&mut server, &mut client.0).await;
        match malformed {
            Some(bytes) => client.send(bytes).await,
            None => client.0.shutdown().await.unwrap(),
        }
        assert_eq!(at_server.rest().await, (String::new(), true), "{end:?}");
        if completes {
            at_server.send(LAST).await;
        }
        drop(at_server);
        if completes {
            assert_eq!(client.rest().await, (LAST.to_owned(), true));
        } else {
            assert_eq!(client.rest().await, (String::new(), false));
        }
        ended_with(&switch, end).await;
    }
}
