use std::time::{Duration, Instant};

use longsplice_engine::IdlePolicy;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::{
    rate_limiter::RateLimiter,
    tls::{
        CertificateFiles, relay,
        testing::{self, trusted},
    },
};

fn config(files: &[CertificateFiles], alpn: &[&str]) -> TlsConfig {
    TlsConfig {
        certificates: files.to_vec(),
        alpn: alpn.iter().map(|id| (*id).to_owned()).collect(),
    }
}

async fn sockets() -> (TcpStream, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    (client, Client::new(server, peer).unwrap())
}

/// Performs a handshake, and returns both ends. At least `early` of its bytes come before the terminator looks.
async fn handshake(
    terminator: &Terminator,
    client: rustls::ClientConfig,
    early: usize,
) -> (
    std::io::Result<TlsStream<TcpStream>>,
    Result<Client, RejectReason>,
) {
    let (socket, mut accepted) = sockets().await;
    let name = ServerName::try_from("a.example").unwrap();
    let connect = TlsConnector::from(Arc::new(client)).connect(name, socket);
    let accept = async {
        let Stream::Plain(socket) = &mut accepted.stream else {
            unreachable!()
        };
        while accepted.early.len() < early {
            socket.read_buf(&mut accepted.early).await.unwrap();
        }
        terminator.accept(accepted, true).await
    };
    tokio::join!(connect, accept)
}

#[tokio::test]
async fn bytes_pass_decrypted_whatever_was_read_early() {
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write(dir.path(), "a", &["a.example"]);
    let terminator = Terminator::new("test", &config(std::slice::from_ref(&files), &["http/1.1"])).unwrap();
    for early in [0, 1, 50, 150] {
        let client = testing::client(&[trusted(&files)], &["h2", "http/1.1"]);
        let (client, accepted) = handshake(&terminator, client, early).await;
        let (mut client, mut accepted) = (client.unwrap(), accepted.unwrap());
        let hello = accepted.hello.take().unwrap();
        assert_eq!(hello.sni.as_deref(), Some("a.example"));
        assert_eq!(hello.alpn, [b"h2".to_vec(), b"http/1.1".to_vec()]);
        assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert!(accepted.early.is_empty());
        client.write_all(b"ping").await.unwrap();
        let mut got = [0; 4];
        accepted.stream.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"ping");
        accepted.stream.write_all(b"pong").await.unwrap();
        accepted.stream.flush().await.unwrap();
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"pong");
    }
}

#[tokio::test]
async fn what_does_not_fit_gets_an_alert() {
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write(dir.path(), "a", &["a.example"]);
    let terminator = Terminator::new("test", &config(std::slice::from_ref(&files), &["http/1.1"])).unwrap();
    let no_protocol = testing::client(&[trusted(&files)], &["h2"]);
    let (client, accepted) = handshake(&terminator, no_protocol, 0).await;
    let told = client.unwrap_err().to_string();
    assert!(told.contains("NoApplicationProtocol"), "{told}");
    assert!(
        matches!(accepted, Err(RejectReason::Handshake(_))),
        "{accepted:?}"
    );
    let (client, accepted) = handshake(&terminator, testing::client(&[], &[]), 0).await;
    assert!(client.is_err());
    let told = accepted.unwrap_err().to_string();
    assert!(
        told.contains("UnknownCA") || told.contains("UnknownIssuer"),
        "{told}"
    );
}

#[tokio::test]
async fn sessions_are_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write(dir.path(), "a", &["a.example"]);
    let terminator = Terminator::new("test", &config(std::slice::from_ref(&files), &[])).unwrap();
    let config = testing::client(&[trusted(&files)], &[]);
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let (client, accepted) = handshake(&terminator, config.clone(), 0).await;
        let (mut client, mut accepted) = (client.unwrap(), accepted.unwrap());
        kinds.push(client.get_ref().1.handshake_kind());
        // The tickets come with the first bytes.
        accepted.stream.write_all(b"x").await.unwrap();
        accepted.stream.shutdown().await.unwrap();
        assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 1);
    }
    use rustls::HandshakeKind::{Full, Resumed};
    assert_eq!(kinds, [Some(Full), Some(Resumed)]);
}

/// A connection outlives the terminator of its listener, which a reload has replaced.
#[tokio::test]
async fn an_open_connection_has_no_files_watched() {
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write(dir.path(), "a", &["a.example"]);
    let terminator = Terminator::new("test", &config(std::slice::from_ref(&files), &[])).unwrap();
    let client = testing::client(&[trusted(&files)], &[]);
    let (_client, accepted) = handshake(&terminator, client, 0).await;
    let _accepted = accepted.unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), 1, "the watch");
    drop(terminator);
    let ended = async {
        while tasks() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, ended).await.expect("the watch ends");
}

/// Returns a client whose TLS is terminated, and a server; a task relays between them until nothing passes for so long.
async fn relayed(
    limit: Option<Duration>,
) -> (
    TlsStream<TcpStream>,
    TcpStream,
    tokio::task::JoinHandle<crate::tls::relay::Passed>,
) {
    let dir = tempfile::tempdir().unwrap();
    let files = testing::write(dir.path(), "a", &["a.example"]);
    let terminator = Terminator::new("test", &config(std::slice::from_ref(&files), &[])).unwrap();
    let client = testing::client(&[trusted(&files)], &[]);
    let (client, accepted) = handshake(&terminator, client, 0).await;
    let Stream::Tls(stream) = accepted.unwrap().stream else {
        panic!("it is not decrypted")
    };
    let (ours, server) = sockets().await;
    let relay = tokio::spawn(async move {
        relay(
            stream,
            server.stream.into_socket(),
            b"early ",
            RateLimiter::default(),
            IdlePolicy {
                limit,
                ..IdlePolicy::default()
            },
            std::future::pending::<()>(),
        )
        .await
    });
    (client.unwrap(), ours, relay)
}

#[tokio::test]
async fn each_direction_is_relayed_to_its_own_end() {
    let (mut client, mut server, relay) = relayed(None).await;
    client.write_all(b"request").await.unwrap();
    client.shutdown().await.unwrap();
    let mut got = Vec::new();
    server.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"early request");
    // The other direction is still open.
    let reply = vec![7; 300_000];
    let write = async {
        server.write_all(&reply).await.unwrap();
        server.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let (read, ()) = tokio::join!(client.read_to_end(&mut got), write);
    // The client got a close_notify: without it, this would be an error.
    read.unwrap();
    assert!(got == reply, "the bytes differ");
    let passed = relay.await.unwrap();
    passed.end.unwrap();
    assert_eq!((passed.to_server, passed.to_client), (13, 300_000));
}

#[tokio::test]
async fn much_passes_both_ways_at_once() {
    let (client, server, relay) = relayed(None).await;
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = server.into_split();
    let data: Vec<u8> = (0..8 << 20).map(|n: u32| (n % 251) as u8).collect();
    let sent = &data;
    let write = async {
        to_client.write_all(sent).await.unwrap();
        to_client.shutdown().await.unwrap();
    };
    let back = async {
        let mut early = [0; 6];
        from_server.read_exact(&mut early).await.unwrap();
        tokio::io::copy(&mut from_server, &mut to_server).await.unwrap();
        to_server.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let both = async {
        tokio::join!(write, back, from_client.read_to_end(&mut got))
            .2
            .unwrap()
    };
    timeout(std::time::Duration::from_secs(60), both).await.unwrap();
    assert!(got == data, "the bytes differ");
    relay.await.unwrap().end.unwrap();
}

/// All bytes are in the relay's socket at once, and leave it slowly: nothing passes through the relay itself.
#[tokio::test]
async fn a_slow_reader_is_not_idle() {
    const LIMIT: Duration = Duration::from_secs(1);
    let (mut client, mut server, relay) = relayed(Some(LIMIT)).await;
    let reply = vec![7; 2 << 20];
    server.write_all(&reply).await.unwrap();
    let (begin, mut got, mut last) = (Instant::now(), vec![0; reply.len()], Instant::now());
    let mut read = 0;
    // This test is about time itself. On a busy machine the next read may be too late already.
    while begin.elapsed() < 3 * LIMIT && last.elapsed() < LIMIT / 2 {
        last = Instant::now();
        let end = read + (64 << 10);
        client.read_exact(&mut got[read..end]).await.unwrap();
        read = end;
        tokio::time::sleep(LIMIT / 4).await;
    }
    client.read_exact(&mut got[read..]).await.unwrap();
    assert!(got == reply, "the bytes differ");
    client.write_all(b"request").await.unwrap();
    server.read_exact(&mut [0; 13]).await.unwrap();
    assert!(relay.await.unwrap().idle, "nothing passes any more");
}

#[tokio::test]
async fn a_stream_that_was_cut_off_is_a_reset_and_no_end() {
    let (mut client, mut server, relay) = relayed(None).await;
    client.write_all(b"half a req").await.unwrap();
    let mut got = [0; 16];
    server.read_exact(&mut got).await.unwrap();
    // End the TCP connection only: any node on the path may have sent this FIN.
    let (mut socket, _) = client.into_inner();
    socket.shutdown().await.unwrap();
    let error = server.read(&mut got).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(
        relay.await.unwrap().end.unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
}

#[tokio::test]
async fn a_server_that_resets_does_not_end_the_clients_stream() {
    let (mut client, server, relay) = relayed(None).await;
    server.set_zero_linger().unwrap();
    drop(server);
    let error = client.read(&mut [0; 1]).await.unwrap_err();
    assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    assert!(relay.await.unwrap().end.is_err());
}
