//! Tests the state that outlives a reload.

use tokio::io::AsyncReadExt;

use super::*;

#[tokio::test]
async fn servers_that_stay_keep_their_state() {
    let (a, b, c) = (Backend::new().await, Backend::new().await, Backend::new().await);
    let all = upstreams(&list(&[a.address, b.address]));
    let u = all.get("u").unwrap();
    let guest = Guest::new().await;
    let running = u.lease_for(&guest).await.unwrap();
    let leaving = u.lease_for(&guest).await.unwrap();
    let mut far = b.accept().await;
    all.drain("u", &a.address.to_string(), true).unwrap();
    let idle = u.lease_for(&guest).await.unwrap();
    assert_eq!((running.address(), idle.address()), (a.address, b.address));
    b.accept().await;
    idle.tenure.give_back(idle.stream, None);
    let before = u.server(0);

    let next = all.next(
        &config(&format!(
            "{}\nbalance = \"least_connections\"",
            list(&[a.address, c.address])
        )),
        &splicer(),
    );
    let v = next.get("u").unwrap();
    assert_eq!(v.status().balance, "least_connections");
    assert_eq!(v.server(0), before, "drained, one open");
    assert_eq!(v.server(0).state, "draining");
    assert_eq!(v.server(1).address, c.address.to_string());
    for u in [u, v] {
        // Connections of the old configuration get servers of the new one.
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), c.address);
    }
    // A running connection goes on. A connection that is given back to a removed server is closed.
    leaving.tenure.give_back(leaving.stream, None);
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    drop(running);
    assert_eq!(v.server(0).open, 0);
    // The server stays drained until the drain is undone.
    next.drain("u", &a.address.to_string(), false).unwrap();
    let taken = [
        v.lease_for(&guest).await.unwrap(),
        v.lease_for(&guest).await.unwrap(),
    ];
    let mut both = taken.each_ref().map(Lease::address);
    both.sort();
    let mut expected = [a.address, c.address];
    expected.sort();
    assert_eq!(both, expected);
}

#[tokio::test]
async fn open_connections_count_when_a_server_goes_and_comes_back() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let keys = |servers: &[SocketAddr]| config(&format!("{}\nmax_connections = 1", list(servers)));
    let all = upstreams(&format!("{}\nmax_connections = 1", list(&[a.address, b.address])));
    let guest = Guest::new().await;
    let one = all.get("u").unwrap().lease_for(&guest).await.unwrap();
    assert_eq!(one.address(), a.address);
    let without = all.next(&keys(&[b.address]), &splicer());
    let with = without.next(&keys(&[a.address]), &splicer());
    let u = with.get("u").unwrap();
    assert_eq!((u.server(0).open, u.server(0).requests_total), (1, 1));
    drop(one);
    assert_eq!(u.server(0).open, 0);
}

#[tokio::test]
async fn checks_begin_with_the_header_that_the_new_file_asks_for() {
    let a = Backend::new().await;
    let keys = |send_proxy: &str| {
        format!(
            "{}\n{send_proxy}\nhealth = {{ tcp = true, interval = \"10ms\" }}",
            list(&[a.address])
        )
    };
    let sends = async |expected: &str| {
        loop {
            let mut came = String::new();
            // A check that the reload stopped may be reset.
            let read = a.accept().await.read_to_string(&mut came).await;
            if read.is_ok() && came == expected {
                return;
            }
        }
    };
    let mut all = upstreams(&keys(""));
    a.accept().await;
    for (send_proxy, header) in [("send_proxy = \"v1\"", "PROXY UNKNOWN\r\n"), ("", "")] {
        all = all.next(&config(&keys(send_proxy)), &splicer());
        let sent = time::timeout(PATIENCE, sends(header)).await;
        assert!(sent.is_ok(), "no check sent {header:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_is_gone_does_nothing_by_itself() {
    let a = Backend::new().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let of_the_test = tasks();
    let name = format!("servers = [\"localhost:{}\"]", a.address.port());
    let all = upstreams(&format!("{name}\nhealth = {{ tcp = true, interval = \"1m\" }}"));
    let u = all.get("u").unwrap();
    let guest = Guest::new().await;
    let (one, other) = (
        u.lease_for(&guest).await.unwrap(),
        u.lease_for(&guest).await.unwrap(),
    );
    one.tenure.give_back(one.stream, None);
    until("it is checked", || u.server(0).last_check.is_some()).await;
    assert_eq!(
        (u.server(0).idle, tasks()),
        (1, of_the_test + 3),
        "a look-up, a check, a sweep"
    );

    let text = "[[listener]]\nlisten = \":1\"\nto = \"127.0.0.1:2\"\n";
    let _next = all.next(&config::parse(Path::new("t.toml"), text).unwrap(), &splicer());
    until("its tasks end", || tasks() == of_the_test).await;
    assert_eq!((u.server(0).idle, u.server(0).open), (0, 1));
    other.tenure.give_back(other.stream, None);
    assert_eq!((u.server(0).idle, u.server(0).open), (0, 0));
    u.state
        .note_check(&u.state.first(), Err("a check was under way".into()));
    assert_eq!(u.server(0).state, "up");
    // A session of a listener that is gone, too, goes on with its next request.
    assert_eq!(u.lease_for(&guest).await.unwrap().address(), a.address);
}
