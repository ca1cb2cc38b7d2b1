//! Tests names whose addresses come and go, with a name server in the test.

use std::collections::HashMap;

use super::{
    dns::{NameServer, ip},
    *,
};

#[tokio::test]
async fn the_addresses_of_a_name_are_servers_that_come_and_go() {
    let dns = NameServer::new().await;
    let a = Backend::new().await;
    let port = a.address.port();
    dns.set("web.test", &[ip(1)]);
    let u = with_names(&format!("servers = [\"web.test:{port}\"]"), dns.address);
    // The first lease waits for the first look-up.
    let lease = u.lease_for(&Guest::new().await).await.unwrap();
    assert_eq!(lease.address(), a.address);
    assert_eq!(
        lease.tenure.server().name(),
        format!("web.test:{port}@127.0.0.1:{port}")
    );
    dns.set("web.test", &[ip(1), ip(2)]);
    until("there are two", || addresses(&u).len() == 2).await;
    assert_eq!(u.server(0).open, 1, "the one that stays keeps its state");
    dns.set("web.test", &[ip(2)]);
    until("one went", || addresses(&u) == [format!("127.0.0.2:{port}")]).await;
    // A name that does not resolve any more keeps its last addresses.
    dns.zone.lock().records.clear();
    until("it is told", || !u.status().unresolved.is_empty()).await;
    assert_eq!(addresses(&u), [format!("127.0.0.2:{port}")]);
    let why = &u.status().unresolved[0].why;
    assert!(why.contains("the name `web.test` does not exist"), "{why}");
}

#[tokio::test]
async fn a_name_without_an_address_is_asked_for_again() {
    let dns = NameServer::new().await;
    let a = Backend::new().await;
    let port = a.address.port();
    let u = with_names(&format!("servers = [\"late.test:{port}\"]"), dns.address);
    let guest = Guest::new().await;
    let why = u.lease_for(&guest).await.unwrap_err();
    assert_eq!(why.status(), 502);
    assert!(
        why.to_string()
            .contains(&format!("late.test:{port}: the name `late.test` does not exist")),
        "{why}"
    );
    dns.set("late.test", &[ip(1)]);
    // A client that comes a second later triggers a look-up, and does not wait for the pause to end.
    let found = async {
        while u.lease_for(&guest).await.is_err() {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    time::timeout(Duration::from_secs(3), found).await.unwrap();
}

#[tokio::test]
async fn a_name_server_that_is_mute_costs_no_more_than_the_timeout() {
    let dns = NameServer::new().await;
    dns.zone.lock().mute = true;
    let a = Backend::new().await;
    let u = with_names(
        &format!(
            "servers = [\"slow.test:80\", \"{}\"]\nbalance = \"first\"\nconnect_timeout = \"100ms\"",
            a.address
        ),
        dns.address,
    );
    assert_eq!(
        u.lease_for(&Guest::new().await).await.unwrap().address(),
        a.address
    );
    // Without an order, an unresolved name delays no client.
    let u = with_names(
        &format!("servers = [\"slow.test:80\", \"{}\"]", a.address),
        dns.address,
    );
    let quick = time::timeout(Duration::from_millis(400), async {
        let guest = Guest::new().await;
        u.lease_for(&guest).await.unwrap().address()
    });
    assert_eq!(quick.await.unwrap(), a.address);
}

#[tokio::test]
async fn a_client_gets_an_address_of_its_own_family_first() {
    let dns = NameServer::new().await;
    let a = Backend::new().await;
    let port = a.address.port();
    dns.set("dual.test", &["::1".parse().unwrap(), ip(1)]);
    let u = with_names(&format!("servers = [\"dual.test:{port}\"]"), dns.address);
    let guest = Guest::new().await;
    for _ in 0..4 {
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), a.address);
    }
    assert_eq!(addresses(&u).len(), 2);
    // The other family is tried when that address does not answer.
    drop(a);
    let why = u.lease_for(&guest).await.unwrap_err();
    assert!(
        matches!(&why, Unavailable::Refused(tried) if tried.len() == 2),
        "{why}"
    );
}

#[tokio::test]
async fn srv_records_say_ports_weights_and_who_stands_in() {
    let dns = NameServer::new().await;
    let (a, b, c) = (Backend::new().await, Backend::new().await, Backend::new().await);
    let port = |b: &Backend| b.address.port();
    dns.set("one.test", &[ip(1)]);
    let records = [
        (10, 3000, port(&a), "one.test."),
        (10, 1000, port(&b), "one.test."),
        (20, 0, port(&c), "one.test."),
        (5, 1, 9, "."),
    ];
    dns.set_service("_http._tcp.test", &records);
    let names = Arc::new(Names::fixed(&[dns.address], b""));
    let keys = "servers = [\"srv:_http._tcp.test\"]\nmax_idle = 0";
    let all = Upstreams::build(&config(keys), &splicer(), None, &names);
    let u = all.get("u").unwrap();
    let guest = Guest::new().await;
    let mut counts = HashMap::new();
    for _ in 0..8 {
        *counts
            .entry(u.lease_for(&guest).await.unwrap().address())
            .or_insert(0) += 1;
    }
    assert_eq!((counts[&a.address], counts[&b.address]), (6, 2));
    for one in [&a, &b] {
        all.drain("u", &one.address.to_string(), true).unwrap();
    }
    assert_eq!(u.lease_for(&guest).await.unwrap().address(), c.address);
    // Draining the entry's name drains all of its servers, later ones included.
    assert_eq!(all.drain("u", "srv:_http._tcp.test", true), Ok(3));
    assert_eq!(u.lease_for(&guest).await.unwrap_err().status(), 503);
    assert_eq!(all.drain("u", "srv:_http._tcp.test", false), Ok(3));
    assert!(u.lease_for(&guest).await.is_ok());
}

#[tokio::test]
async fn a_name_stays_drained_for_all_addresses_but_those_that_are_ready_again() {
    let dns = NameServer::new().await;
    dns.set("web.test", &[ip(1), ip(2)]);
    let names = Arc::new(Names::fixed(&[dns.address], b""));
    let config = config("servers = [\"web.test:80\"]");
    let all = Upstreams::build(&config, &splicer(), None, &names);
    let u = all.get("u").unwrap();
    until("there are two", || addresses(u).len() == 2).await;
    let states = || -> HashMap<_, _> {
        let servers = u.status().servers.into_iter();
        servers.map(|server| (server.address, server.state)).collect()
    };
    let expected = |all: &[(&str, &str)]| -> HashMap<_, _> {
        let of_one = |(address, state): &(&str, &str)| ((*address).to_owned(), (*state).to_owned());
        all.iter().map(of_one).collect()
    };
    assert_eq!(all.drain("u", "web.test:80", true), Ok(2));
    assert_eq!(all.drain("u", "127.0.0.1:80", false), Ok(1));
    let two = expected(&[("127.0.0.1:80", "up"), ("127.0.0.2:80", "draining")]);
    assert_eq!(states(), two);
    let all = all.next(&config, &splicer());
    assert_eq!(states(), two, "after a reload");
    dns.set("web.test", &[ip(1), ip(2), ip(3)]);
    until("there are three", || addresses(u).len() == 3).await;
    let mut three = two;
    three.extend(expected(&[("127.0.0.3:80", "draining")]));
    assert_eq!(states(), three, "an address that it got later");
    // The name is ready as a whole, and for addresses that it gets later.
    assert_eq!(all.drain("u", "web.test:80", false), Ok(3));
    let all = all.next(&config, &splicer());
    assert!(states().values().all(|state| state == "up"));
    assert_eq!(all.drain("u", "127.0.0.1:80", true), Ok(1));
    dns.set("web.test", &[ip(1), ip(4)]);
    until("another one came", || states().contains_key("127.0.0.4:80")).await;
    assert_eq!(
        states(),
        expected(&[("127.0.0.1:80", "draining"), ("127.0.0.4:80", "up")])
    );
}

#[tokio::test]
async fn a_name_drains_an_address_that_an_earlier_entry_has_too() {
    let dns = NameServer::new().await;
    dns.set("a.pool", &[ip(1)]);
    dns.set("b.pool", &[ip(1), ip(2)]);
    let names = Arc::new(Names::fixed(&[dns.address], b""));
    let config = config("servers = [\"a.pool:80\", \"b.pool:80\"]");
    let all = Upstreams::build(&config, &splicer(), None, &names);
    let u = all.get("u").unwrap();
    until("there are two", || addresses(u).len() == 2).await;
    let states = || [u.server(0), u.server(1)].map(|s| (s.address, s.state));
    let expected = |one: &str, two: &str| {
        [("127.0.0.1:80", one), ("127.0.0.2:80", two)].map(|(a, state)| (a.to_owned(), state.to_owned()))
    };
    until("both names have it", || {
        all.drain("u", "b.pool:80@127.0.0.1:80", false) == Ok(1)
    })
    .await;
    assert_eq!(all.drain("u", "b.pool:80", true), Ok(2));
    assert_eq!(states(), expected("draining", "draining"));
    let all = all.next(&config, &splicer());
    assert_eq!(states(), expected("draining", "draining"), "after a reload");
    assert_eq!(all.drain("u", "a.pool:80", false), Ok(1));
    assert_eq!(states(), expected("up", "draining"), "the newest command holds");
    assert_eq!(all.drain("u", "b.pool:80", false), Ok(2));
    assert_eq!(states(), expected("up", "up"));
    // An address that the later entry gets while it is drained is drained, too.
    assert_eq!(all.drain("u", "b.pool:80", true), Ok(2));
    dns.set("b.pool", &[ip(2)]);
    until("it is the first entry's alone", || {
        states() == expected("up", "draining")
    })
    .await;
    dns.set("b.pool", &[ip(1), ip(2)]);
    until("it is both entries'", || {
        states() == expected("draining", "draining")
    })
    .await;
}

#[tokio::test]
async fn the_hosts_file_is_respected() {
    let a = Backend::new().await;
    let u = upstream(&format!("servers = [\"localhost:{}\"]", a.address.port()));
    assert_eq!(
        u.lease_for(&Guest::new().await).await.unwrap().address(),
        a.address
    );
}
