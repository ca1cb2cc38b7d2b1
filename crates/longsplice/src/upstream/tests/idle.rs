//! Tests idle connections, from give-back to the next lease.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[tokio::test]
async fn an_idle_connection_is_used_again() {
    let a = Backend::new().await;
    let u = upstream(&list(&[a.address]));
    let guest = Guest::new().await;
    let lease = u.lease_for(&guest).await.unwrap();
    let port = lease.port();
    assert!(!lease.reused);
    lease.tenure.give_back(lease.stream, None);
    assert_eq!((u.server(0).idle, u.server(0).open), (1, 0));
    // Any client may reuse it.
    let again = u.lease_for(&Guest::new().await).await.unwrap();
    assert!(again.reused && again.port() == port);
    again.tenure.give_back(again.stream, None);
    let fresh = u
        .lease(&Ask {
            reuse: false,
            ..guest.ask()
        })
        .await
        .unwrap();
    assert!(!fresh.reused && fresh.port() != port);
    assert_eq!((u.server(0).connects_total, u.server(0).reused_total), (2, 1));
}

#[tokio::test]
async fn one_that_the_server_closed_is_not() {
    let a = Backend::new().await;
    let u = upstream(&list(&[a.address]));
    let guest = Guest::new().await;
    let lease = u.lease_for(&guest).await.unwrap();
    lease.tenure.give_back(lease.stream, None);
    drop(a.accept().await);
    assert!(!u.lease_for(&guest).await.unwrap().reused);
    // A connection with unexpected bytes is not reused either.
    let lease = u.lease_for(&guest).await.unwrap();
    a.accept().await;
    let mut far = a.accept().await;
    lease.tenure.give_back(lease.stream, None);
    far.write_all(b"!").await.unwrap();
    assert!(!u.lease_for(&guest).await.unwrap().reused);
}

#[tokio::test]
async fn old_ones_are_closed_in_order_without_being_asked_for() {
    let a = Backend::new().await;
    let u = upstream(&format!("{}\nidle_timeout = \"30ms\"", list(&[a.address])));
    let guest = Guest::new().await;
    for _ in 0..2 {
        let lease = u.lease_for(&guest).await.unwrap();
        let mut far = a.accept().await;
        lease.tenure.give_back(lease.stream, None);
        assert_eq!(
            time::timeout(PATIENCE, far.read(&mut [0]))
                .await
                .unwrap()
                .unwrap(),
            0
        );
        until("the pool is empty", || u.server(0).idle == 0).await;
    }
}

#[tokio::test]
async fn no_more_are_kept_than_allowed_and_none_for_a_client_s_address() {
    let a = Backend::new().await;
    let u = upstream(&format!("{}\nmax_idle = 2", list(&[a.address])));
    let guest = Guest::new().await;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(u.lease_for(&guest).await.unwrap());
    }
    for lease in leases {
        lease.tenure.give_back(lease.stream, None);
    }
    assert_eq!(u.server(0).idle, 2);

    let u = upstream(&format!("{}\nmax_idle = 0", list(&[a.address])));
    let lease = u.lease_for(&guest).await.unwrap();
    lease.tenure.give_back(lease.stream, None);
    assert_eq!((u.server(0).idle, u.server(0).open), (0, 0));
}

#[tokio::test]
async fn idle_connections_count_for_the_server_s_limit() {
    let a = Backend::new().await;
    let u = upstream(&format!("{}\nmax_connections = 2", list(&[a.address])));
    let guest = Guest::new().await;
    let one = u.lease_for(&guest).await.unwrap();
    let mut far = a.accept().await;
    one.tenure.give_back(one.stream, None);
    let fresh = || Ask {
        reuse: false,
        ..guest.ask()
    };
    let _two = u.lease(&fresh()).await.unwrap();
    assert_eq!(u.server(0).idle, 1);
    // The third connection takes the place of the idle one.
    let _three = u.lease(&fresh()).await.unwrap();
    assert_eq!(u.server(0).idle, 0);
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
}
