use std::time::Duration;

use longsplice_repair::{State, tcp_info};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    direction::{BUFFER, FIRST},
    *,
};
use crate::relay::loopback::connection;

/// Sends three bytes and the end of the stream, which reach the pump before it looks.
async fn send_all_and_end(client: &mut TcpStream, pump: &Pump) {
    client.write_all(b"all").await.unwrap();
    client.shutdown().await.unwrap();
    while tcp_info(pump.socket(Side::Client)).unwrap().state() != State::CloseWait {
        tokio::task::yield_now().await;
    }
    pump.ready().await;
}

/// Returns the number of segments that the socket toward the server has sent.
fn segments(pump: &Pump) -> u32 {
    tcp_info(pump.socket(Side::Server)).unwrap().segs_out()
}

#[tokio::test]
async fn the_last_bytes_and_the_end_leave_in_one_segment() {
    let ([mut client, near], [far, mut server]) = (connection().await, connection().await);
    let mut pump = Pump::new(near, far);
    send_all_and_end(&mut client, &pump).await;
    let before = segments(&pump);
    pump.step(TURN).unwrap();
    assert!(pump.passed_eof(Side::Client));
    let mut all = Vec::new();
    server.read_to_end(&mut all).await.unwrap();
    assert_eq!(
        (&all[..], segments(&pump) - before, pump.consumed(Side::Client)),
        (&b"all"[..], 1, 4)
    );
}

#[tokio::test]
async fn bytes_leave_at_once_before_an_end_that_is_the_callers() {
    let ([mut client, near], [far, mut server]) = (connection().await, connection().await);
    let mut pump = Pump::new(near, far);
    pump.set_end(Side::Client, Some(3));
    send_all_and_end(&mut client, &pump).await;
    let before = segments(&pump);
    pump.step(TURN).unwrap();
    assert_eq!((segments(&pump) - before, pump.consumed(Side::Client)), (1, 3));
    assert!(pump.stopped(Side::Client) && !pump.eof(Side::Client));
    server.read_exact(&mut [0; 3]).await.unwrap();
}

#[tokio::test]
async fn bytes_before_a_reset_are_passed_on_and_the_reset_is_told() {
    let ([mut client, near], [far, mut server]) = (connection().await, connection().await);
    let mut pump = Pump::new(near, far);
    client.write_all(b"all").await.unwrap();
    pump.ready().await;
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    while tcp_info(pump.socket(Side::Client)).unwrap().state() != State::Closed {
        tokio::task::yield_now().await;
    }
    let broken = pump.step(TURN).unwrap_err();
    assert_eq!(broken.error.kind(), io::ErrorKind::ConnectionReset);
    server.read_exact(&mut [0; 3]).await.unwrap();
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
