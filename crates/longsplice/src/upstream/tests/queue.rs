//! Tests limits, and clients that wait because of them.

use std::sync::atomic::{AtomicI64, Ordering};

use super::{
    super::{backend_set::Want, state::Entered},
    *,
};

fn limited(addresses: &[SocketAddr], most: u32, rest: &str) -> Arc<Upstream> {
    upstream(&format!("{}\nmax_connections = {most}\n{rest}", list(addresses)))
}

#[tokio::test]
async fn a_place_goes_to_those_who_wait_in_their_order() {
    let a = Backend::new().await;
    let u = limited(&[a.address], 1, "");
    let first = u.lease_for(&Guest::new().await).await.unwrap();
    let notes = Notes::default();
    let mut waiting = Vec::new();
    for n in 0..5 {
        let (of_task, notes) = (Arc::clone(&u), notes.clone());
        waiting.push(tokio::spawn(async move {
            let guest = Guest::new().await;
            let lease = of_task.lease_for(&guest).await.unwrap();
            notes.add(n);
            drop(lease);
        }));
        until("it waits", || u.status().queued == n as u64 + 1).await;
    }
    drop(first);
    for one in waiting {
        one.await.unwrap();
    }
    assert_eq!(notes.all(), [0, 1, 2, 3, 4]);
    assert_eq!((u.server(0).open, u.status().queued), (0, 0));
}

#[tokio::test]
async fn the_queue_has_a_limit_in_number_and_in_time() {
    let a = Backend::new().await;
    let u = limited(&[a.address], 1, "queue = 1\nqueue_timeout = \"50ms\"");
    let guest = Guest::new().await;
    let first = u.lease_for(&guest).await.unwrap();
    let (one, other) = tokio::join!(u.lease_for(&guest), u.lease_for(&guest));
    let late = one.unwrap_err();
    assert!(
        matches!(late, Unavailable::QueueTimeout { .. }) && late.status() == 503,
        "{late}"
    );
    assert!(late.to_string().contains("within 50ms"), "{late}");
    let full = other.unwrap_err();
    assert!(
        matches!(full, Unavailable::QueueFull { queue: 1, .. }) && full.status() == 503,
        "{full}"
    );
    let status = u.status();
    assert_eq!(
        (
            status.queue_timeouts_total,
            status.queue_overflows_total,
            status.queued
        ),
        (1, 1, 0)
    );
    drop(first);
    u.lease_for(&guest).await.unwrap();
}

#[tokio::test]
async fn who_gives_up_leaves_the_queue_and_loses_no_place() {
    let a = Backend::new().await;
    let u = limited(&[a.address], 1, "");
    let guest = Guest::new().await;
    let first = u.lease_for(&guest).await.unwrap();
    let gone = u.lease_for(&guest);
    assert!(time::timeout(Duration::from_millis(20), gone).await.is_err());
    assert_eq!(u.status().queued, 0);
    // This client gets a permit while it waits, and is dropped before it looks.
    let mut waiting = Box::pin(u.lease_for(&guest));
    assert!(poll_once(waiting.as_mut()).await.is_none());
    drop(first);
    assert_eq!((u.server(0).open, u.status().queued), (1, 0));
    drop(waiting);
    assert_eq!(u.server(0).open, 0);
}

#[tokio::test]
async fn a_place_that_comes_too_late_goes_to_the_next() {
    let a = Backend::new().await;
    let u = limited(&[a.address], 1, "");
    let guest = Guest::new().await;
    let first = u.lease_for(&guest).await.unwrap();
    let want = Want {
        ipv4: true,
        key: None,
        sticky: None,
        not: [].as_slice().into(),
    };
    let Ok(Entered::Wait(mut late)) = u.state.enter(want, &[]) else {
        panic!("there was a place");
    };
    let mut next = Box::pin(u.lease_for(&guest));
    assert!(poll_once(next.as_mut()).await.is_none());
    late.close();
    drop(first);
    assert_eq!(u.server(0).open, 1);
    drop(time::timeout(PATIENCE, next).await.unwrap().unwrap());
    assert_eq!(u.server(0).open, 0);
}

/// Polls once.
async fn poll_once<F: Future + Unpin>(future: F) -> Option<F::Output> {
    let mut future = future;
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut future).poll(cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn a_sticky_client_waits_for_its_own_server() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let u = limited(&[a.address, b.address], 1, "sticky = \"S\"");
    let guest = Guest::new().await;
    let one = u.lease_for(&guest).await.unwrap();
    let cookie = one.tenure.cookie().unwrap().to_owned();
    let own = one.address();
    let other = u.lease_for(&guest).await.unwrap();
    let ask = Ask {
        sticky: Some(&cookie),
        ..guest.ask()
    };
    let mut waiting = Box::pin(u.lease(&ask));
    assert!(poll_once(waiting.as_mut()).await.is_none());
    drop(other);
    assert!(
        poll_once(waiting.as_mut()).await.is_none(),
        "it got another's place"
    );
    drop(one);
    assert_eq!(waiting.await.unwrap().address(), own);
}

#[tokio::test]
async fn who_waits_gets_a_server_whose_time_out_is_over() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let rules = |time: &str| {
        format!("queue_timeout = \"1m\"\noutlier_detection = {{ failures = 1, ejection_time = \"{time}\" }}")
    };
    let guest = Guest::new().await;
    let u = limited(&[a.address, b.address], 1, &rules("300ms"));
    let _first = u.lease_for(&guest).await.unwrap();
    let other = u.lease_for(&guest).await.unwrap();
    let out = other.address();
    other.tenure.failed(Failure::Connect);
    drop(other);
    let mut waiting = Box::pin(u.lease_for(&guest));
    assert!(poll_once(waiting.as_mut()).await.is_none(), "it was not out");
    assert_eq!(u.status().queued, 1);
    let lease = time::timeout(PATIENCE, waiting).await;
    assert_eq!(lease.expect("it still waits").unwrap().address(), out);

    // The wait for the end of a long time keeps no upstream.
    let u = limited(&[a.address], 1, &rules("1m"));
    let lease = u.lease_for(&guest).await.unwrap();
    lease.tenure.failed(Failure::Connect);
    assert_eq!(u.server(0).state, "out");
    let state = Arc::downgrade(&u.state);
    drop((lease, u));
    until("its last owner is gone", || state.upgrade().is_none()).await;
}

#[tokio::test]
async fn those_who_wait_are_told_when_the_last_server_goes() {
    let a = Backend::new().await;
    let all = upstreams(&format!("{}\nmax_connections = 1", list(&[a.address])));
    let u = all.get("u").unwrap();
    let guest = Guest::new().await;
    let _first = u.lease_for(&guest).await.unwrap();
    let mut waiting = Box::pin(u.lease_for(&guest));
    assert!(poll_once(waiting.as_mut()).await.is_none());
    all.drain("u", &a.address.to_string(), true).unwrap();
    let why = time::timeout(PATIENCE, waiting).await.unwrap().unwrap_err();
    assert!(why.to_string().contains("1 draining"), "{why}");
}

#[tokio::test]
async fn a_raised_limit_lets_those_who_wait_in() {
    let a = Backend::new().await;
    let keys = |most| format!("{}\nmax_connections = {most}", list(&[a.address]));
    let all = upstreams(&keys(1));
    let u = Arc::clone(all.get("u").unwrap());
    let guest = Guest::new().await;
    let _first = u.lease_for(&guest).await.unwrap();
    let mut waiting = Box::pin(u.lease_for(&guest));
    assert!(poll_once(waiting.as_mut()).await.is_none());
    let _next = all.next(&config(&keys(2)), &splicer());
    time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
}

/// Checks that no permit is lost, given twice, or given beyond the limit, while many clients come, wait, hold and give
/// up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_under_stress() {
    const LIMIT: i64 = 3;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let (a, b) = (Backend::new().await, Backend::new().await);
    let u = limited(
        &[a.address, b.address],
        3,
        "queue = 100\nqueue_timeout = \"10s\"\nmax_idle = 8",
    );
    let held: Arc<[AtomicI64; 2]> = Arc::default();
    let mut tasks = Vec::new();
    for n in 0..40 {
        let (u, held) = (Arc::clone(&u), Arc::clone(&held));
        let first = a.address;
        tasks.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed ^ n);
            let guest = Guest::new().await;
            for _ in 0..100 {
                let patience = Duration::from_micros(random.u64(0..3000));
                let Ok(lease) = time::timeout(patience, u.lease_for(&guest)).await else {
                    continue;
                };
                let lease = lease.unwrap();
                let of_it = &held[usize::from(lease.address() != first)];
                let now = of_it.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now <= LIMIT, "{now} at once");
                time::sleep(Duration::from_micros(random.u64(0..500))).await;
                of_it.fetch_sub(1, Ordering::SeqCst);
                match random.bool() {
                    true => lease.tenure.give_back(lease.stream, None),
                    false => drop(lease),
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let status = u.status();
    assert_eq!(status.queued, 0);
    for server in &status.servers {
        assert_eq!(server.open, 0, "{status:?}");
        assert!(server.requests_total > 0 && server.idle <= 3, "{status:?}");
    }
    // All permits are still there.
    let guest = Guest::new().await;
    let mut leases = Vec::new();
    for _ in 0..6 {
        leases.push(
            time::timeout(PATIENCE, u.lease_for(&guest))
                .await
                .unwrap()
                .unwrap(),
        );
    }
}
