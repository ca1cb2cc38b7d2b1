//! Tests servers that die, that answer wrongly, and that come back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::task::AbortOnDropHandle;

use super::*;

const QUICK: &str = "interval = \"20ms\", timeout = \"500ms\", rise = 2, fall = 2";

#[tokio::test]
async fn checks_take_a_server_down_and_bring_it_back() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let servers = list(&[a.address, b.address]);
    let u = upstream(&format!(
        "{servers}\noutlier_detection = {{ failures = 0 }}\nhealth = {{ tcp = true, {QUICK} }}"
    ));
    let guest = Guest::new().await;
    until("both were checked", || {
        u.status()
            .servers
            .iter()
            .all(|s| s.last_check.as_ref().is_some_and(|c| c.good))
    })
    .await;
    let at = b.address;
    drop(b);
    until("it is down", || u.server(1).state == "down").await;
    let why = u.server(1).last_check.unwrap().why.unwrap();
    assert!(why.contains("Connection refused"), "{why}");
    let failures = u.server(1).connect_failures_total;
    for _ in 0..6 {
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), a.address);
    }
    assert_eq!(
        u.server(1).connect_failures_total,
        failures,
        "it was tried although it is down"
    );
    let _b = Backend::at(at).await;
    until("it is up", || u.server(1).state == "up").await;
    let mut both = [
        u.lease_for(&guest).await.unwrap().address(),
        u.lease_for(&guest).await.unwrap().address(),
    ];
    both.sort();
    let mut expected = [a.address, at];
    expected.sort();
    assert_eq!(both, expected);
}

/// Answers each connection with this status, and notes the request.
async fn http(status: &'static str, asked: Arc<Mutex<String>>) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = AbortOnDropHandle::new(tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let n = stream.read(&mut request).await.unwrap_or(0);
            *asked.lock() = String::from_utf8_lossy(&request[..n]).into_owned();
            let _ = stream
                .write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes())
                .await;
        }
    }));
    (address, task)
}

#[tokio::test]
async fn a_page_decides() {
    let asked = Arc::new(Mutex::new(String::new()));
    let (good, _good) = http("204 No Content", Arc::clone(&asked)).await;
    let (bad, _bad) = http("503 Later", Arc::default()).await;
    let u = upstream(&format!(
        "{}\nhealth = {{ http = \"/health?x=1\", host = \"h.example\", status = \"200-299\", {QUICK} }}",
        list(&[good, bad])
    ));
    // A first check decides at once.
    until("they were checked", || {
        u.status().servers.iter().all(|s| s.last_check.is_some())
    })
    .await;
    assert_eq!(
        (u.server(0).state.as_str(), u.server(1).state.as_str()),
        ("up", "down")
    );
    let why = u.server(1).last_check.unwrap().why.unwrap();
    assert_eq!(why, "its status is 503, not one of 200-299");
    let asked = asked.lock().clone();
    assert!(
        asked.starts_with("GET /health?x=1 HTTP/1.1\r\nHost: h.example\r\n"),
        "{asked}"
    );
    let why = upstream(&list(&[bad])).lease_for(&Guest::new().await).await;
    assert!(why.is_ok(), "without checks it is taken as healthy");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_down() {
    let a = Backend::new().await;
    let u = upstream(&format!(
        "{}\nhealth = {{ http = \"/\", interval = \"10ms\", timeout = \"20ms\" }}",
        list(&[a.address])
    ));
    until("it is down", || u.server(0).state == "down").await;
    let why = u.lease_for(&Guest::new().await).await.unwrap_err();
    assert_eq!(why.status(), 503);
    assert!(why.to_string().contains("1 down"), "{why}");
}

#[tokio::test]
async fn failures_take_a_server_out_for_a_while() {
    let (a, gone) = (Backend::new().await, closed().await);
    let u = upstream(&format!(
        "{}\noutlier_detection = {{ failures = 3, period = \"10s\", ejection_time = \"2s\" }}",
        list(&[a.address, gone])
    ));
    let guest = Guest::new().await;
    for _ in 0..20 {
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), a.address);
    }
    assert_eq!(
        (u.server(1).state.as_str(), u.server(1).connect_failures_total),
        ("out", 3)
    );
    let back = Backend::at(gone).await;
    until("it is on trial", || u.server(1).state == "up").await;
    let mut got = 0;
    for _ in 0..4 {
        got += usize::from(u.lease_for(&guest).await.unwrap().address() == back.address);
    }
    assert_eq!(got, 2);
}

#[tokio::test]
async fn replies_count_too_and_the_last_server_is_never_out() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let u = upstream(&format!(
        "{}\noutlier_detection = {{ failures = 2, ejection_time = \"60s\", status = true }}",
        list(&[a.address, b.address])
    ));
    let (guest, other) = (Guest::new().await, Guest::of_host(2).await);
    let lease_of = async |server: SocketAddr, guest: &Guest| {
        let all = [
            u.lease_for(guest).await.unwrap(),
            u.lease_for(guest).await.unwrap(),
        ];
        all.into_iter().find(|l| l.address() == server).unwrap()
    };
    let lease = lease_of(a.address, &guest).await;
    lease.tenure.answered(502, Duration::from_millis(1));
    let lease = lease_of(a.address, &other).await;
    lease.tenure.failed(Failure::Timeout);
    assert_eq!(
        (u.server(0).state.as_str(), u.server(0).replies_total),
        ("out", [0, 0, 0, 0, 1])
    );
    for _ in 0..4 {
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), b.address);
    }
    let lease = u.lease_for(&guest).await.unwrap();
    lease.tenure.failed(Failure::Closed);
    let lease = u.lease_for(&other).await.unwrap();
    lease.tenure.failed(Failure::Malformed);
    assert_eq!(u.server(1).state, "out");
    // Both servers are out now, so both serve.
    let mut both = Vec::new();
    for _ in 0..4 {
        both.push(u.lease_for(&guest).await.unwrap().address());
    }
    assert!(both.contains(&a.address) && both.contains(&b.address), "{both:?}");
}

#[tokio::test]
async fn what_this_host_lacks_is_no_fault_of_the_server() {
    use super::super::search::is_of_the_server;
    let refused = TcpStream::connect(closed().await).await.unwrap_err();
    assert!(is_of_the_server(&refused));
    for ours in [nix::libc::EMFILE, nix::libc::EADDRNOTAVAIL, nix::libc::ENOBUFS] {
        assert!(
            !is_of_the_server(&std::io::Error::from_raw_os_error(ours)),
            "{ours}"
        );
    }
}

#[tokio::test]
async fn a_server_that_was_out_starts_slowly_beyond_its_first_success() {
    let (a, gone) = (Backend::new().await, closed().await);
    let u = upstream(&format!(
        "{}\nslow_start = \"1h\"\noutlier_detection = {{ failures = 1, ejection_time = \"300ms\" }}",
        list(&[a.address, gone])
    ));
    let guest = Guest::new().await;
    for _ in 0..2 {
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), a.address);
    }
    assert_eq!(u.server(1).connect_failures_total, 1);
    let back = Backend::at(gone).await;
    until("it is on trial", || u.server(1).state == "up").await;
    let share = u.server(1).share;
    assert!(share < 0.2, "{share}");
    // A share of a tenth is one lease of eleven.
    let mut got = 0;
    for _ in 0..44 {
        got += usize::from(u.lease_for(&guest).await.unwrap().address() == back.address);
    }
    assert!((1..8).contains(&got), "{got} of 44");
    let share = u.server(1).share;
    assert!(share < 0.2, "{share}");
}

/// Checks that no client is refused while a server dies, is out, and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_refused_while_a_server_dies_and_comes_back() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let u = upstream(&format!(
        "{}\nhealth = {{ tcp = true, {QUICK} }}",
        list(&[a.address, b.address])
    ));
    let stop = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (u, stop, served) = (Arc::clone(&u), Arc::clone(&stop), Arc::clone(&served));
            tokio::spawn(async move {
                let guest = Guest::new().await;
                while !stop.load(Ordering::Relaxed) {
                    let lease = u.lease_for(&guest).await.unwrap();
                    served.fetch_add(1, Ordering::Relaxed);
                    lease.tenure.give_back(lease.stream, None);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let more = async || {
        let before = served.load(Ordering::Relaxed);
        until("clients go on", || served.load(Ordering::Relaxed) > before + 200).await;
    };
    more().await;
    let at = b.address;
    drop(b);
    until("it is down", || u.server(1).state == "down").await;
    more().await;
    let before = u.server(1).requests_total;
    let _b = Backend::at(at).await;
    until("it serves again", || u.server(1).requests_total > before).await;
    more().await;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn checks_end_with_their_upstream() {
    let a = Backend::new().await;
    let all = upstreams(&format!(
        "{}\nhealth = {{ tcp = true, interval = \"10ms\" }}",
        list(&[a.address])
    ));
    a.accept().await;
    let state = Arc::downgrade(&all.get("u").unwrap().state);
    drop(all);
    until("its last owner is gone", || state.upgrade().is_none()).await;
}

#[tokio::test]
async fn what_becomes_of_a_connection_that_others_have_used_is_not_held_against_the_server() {
    let a = Backend::new().await;
    let u = upstream(&format!(
        "{}\noutlier_detection = {{ failures = 2, period = \"1m\", ejection_time = \"1m\" }}",
        list(&[a.address])
    ));
    let guest = Guest::new().await;
    for how in [Failure::Timeout, Failure::Closed, Failure::Timeout] {
        let lease = u.lease_for(&guest).await.unwrap();
        lease.tenure.give_back(lease.stream, None);
        let lease = u.lease_for(&guest).await.unwrap();
        assert!(lease.reused);
        lease.tenure.failed(how);
    }
    assert_eq!(
        (u.server(0).state.as_str(), u.server(0).failures_total),
        ("up", 3)
    );
    // Over new connections, a timeout does count against the server.
    for guest in [&guest, &Guest::of_host(2).await] {
        let lease = u.lease_for(guest).await.unwrap();
        assert!(!lease.reused);
        lease.tenure.failed(Failure::Timeout);
    }
    assert_eq!(u.server(0).state, "out");
}

/// Returns the states of both servers.
fn states(u: &Upstream) -> [String; 2] {
    [u.server(0).state, u.server(1).state]
}

#[tokio::test]
async fn one_client_alone_puts_no_server_out_and_a_second_one_does() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let u = upstream(&format!(
        "{}\noutlier_detection = {{ failures = 5, period = \"1h\", status = true }}",
        list(&[a.address, b.address])
    ));
    let (guest, other) = (Guest::new().await, Guest::of_host(2).await);
    for how in [Failure::Closed, Failure::Timeout, Failure::Malformed] {
        for _ in 0..20 {
            let lease = u.lease_for(&guest).await.unwrap();
            lease.tenure.failed(how);
            let lease = u.lease_for(&guest).await.unwrap();
            lease.tenure.answered(500, Duration::ZERO);
        }
        assert_eq!(states(&u), ["up", "up"], "{how:?}");
    }
    for _ in 0..2 {
        let lease = u.lease_for(&other).await.unwrap();
        lease.tenure.failed(Failure::Closed);
    }
    assert_eq!(states(&u), ["out", "out"]);
}

/// Returns a port at which no server is, of another address than the clients': a connection from one of theirs could get the
/// port itself, and would be its own peer (RFC 9293 section 3.5).
async fn elsewhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 9], closed().await.port()))
}

/// Connects from the addresses of clients, which needs CAP_NET_ADMIN.
#[tokio::test]
async fn servers_that_refuse_one_clients_address_stay_up() {
    let keys = "balance = \"round_robin\"\noutlier_detection = { failures = 5, period = \"1h\" }";
    let u = upstream(&format!(
        "{}\n{keys}",
        list(&[elsewhere().await, elsewhere().await])
    ));
    let (guest, other) = (Guest::new().await, Guest::of_host(2).await);
    let refused = async |guest: &Guest, source| {
        let ask = Ask {
            source,
            ..guest.ask()
        };
        let why = u.lease(&ask).await.unwrap_err().to_string();
        assert!(why.contains("Connection refused"), "{why}");
    };
    for _ in 0..20 {
        refused(&guest, SourceAddress::Client).await;
    }
    let failures = [u.server(0), u.server(1)].map(|s| s.connect_failures_total);
    assert_eq!((states(&u), failures), (["up", "up"].map(String::from), [20, 20]));
    refused(&other, SourceAddress::Client).await;
    assert_eq!(states(&u), ["out", "out"], "two clients were refused");

    // The switch's own address is no client's doing.
    let u = upstream(&format!("{}\n{keys}", list(&[closed().await, closed().await])));
    for _ in 0..5 {
        assert!(u.lease_for(&guest).await.is_err());
    }
    assert_eq!(states(&u), ["out", "out"]);
}
