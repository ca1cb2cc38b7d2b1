use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

/// Returns both ends of a connection over the loopback.
async fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    [near, listener.accept().await.unwrap().0]
}

#[tokio::test]
async fn what_finds_no_room_stays_in_its_socket() {
    const MUCH: usize = 16 << 20;
    let ([mut client, near], [far, mut server]) = (connection().await, connection().await);
    let mut pump = Pump::new(near, far);
    pump.hold_nothing();
    let sends = tokio::spawn(async move {
        client.write_all(&vec![7; MUCH]).await.unwrap();
        client
    });
    // Step until nothing moves although there is more.
    while !pump.directions.client.blocked {
        pump.ready().await;
        pump.step(TURN).unwrap();
    }
    assert_eq!(pump.held(Side::Client), 0);
    let passed = pump.bytes(Side::Client);
    let reads = tokio::spawn(async move {
        let mut all = vec![0; MUCH];
        server.read_exact(&mut all).await.unwrap();
        (server, all)
    });
    while pump.bytes(Side::Client) < MUCH as u64 {
        pump.ready().await;
        pump.step(TURN).unwrap();
        assert_eq!(pump.held(Side::Client), 0);
    }
    assert!(passed < MUCH as u64);
    let (client, (mut server, all)) = (sends.await.unwrap(), reads.await.unwrap());
    assert!(all.iter().all(|&byte| byte == 7));
    drop(client);
    while !pump.passed_eof(Side::Client) {
        pump.ready().await;
        pump.step(TURN).unwrap();
    }
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn little_is_held_of_what_a_slow_reader_does_not_take() {
    let ([mut client, near], [far, _server]) = (connection().await, connection().await);
    let mut pump = Pump::new(near, far);
    tokio::spawn(async move {
        let _ = client.write_all(&vec![7; 64 << 20]).await;
        client
    });
    // Step until there is more, and no room.
    while pump.held(Side::Client) == 0 {
        pump.ready().await;
        pump.step(TURN).unwrap();
    }
    assert!(pump.bytes(Side::Client) > BUFFER as u64);
    assert!(
        pump.held(Side::Client) <= 2 * FIRST,
        "{}",
        pump.held(Side::Client)
    );
}
