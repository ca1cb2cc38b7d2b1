//! Connects sockets over the loopback, for the tests of the relay.

use tokio::net::{TcpListener, TcpStream};

/// Returns both ends of a connection: the one that has connected, and the one that was accepted.
pub(super) async fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    [near, listener.accept().await.unwrap().0]
}
