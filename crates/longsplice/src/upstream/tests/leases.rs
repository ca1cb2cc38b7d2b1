//! Tests which server a lease gets, and what happens when it cannot be connected to.

use tokio::io::AsyncReadExt;

use super::*;

#[tokio::test]
async fn servers_take_turns() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let u = upstream(&list(&[a.address, b.address]));
    let guest = Guest::new().await;
    let mut order = Vec::new();
    for _ in 0..4 {
        order.push(u.lease_for(&guest).await.unwrap().address());
    }
    assert_eq!(order, [a.address, b.address, a.address, b.address]);
    assert_eq!(
        [
            u.server(0).requests_total,
            u.server(0).open,
            u.server(0).connects_total
        ],
        [2, 0, 2]
    );
}

#[tokio::test]
async fn another_server_is_tried_and_each_refusal_named() {
    let a = Backend::new().await;
    let (gone, lost) = (closed().await, closed().await);
    let u = upstream(&list(&[gone, a.address]));
    let guest = Guest::new().await;
    for _ in 0..4 {
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), a.address);
    }
    assert!(u.server(0).connect_failures_total > 0);

    let u = upstream(&list(&[gone, lost]));
    let refused = u.lease_for(&guest).await.unwrap_err();
    assert_eq!(refused.status(), 502);
    let text = refused.to_string();
    for one in [gone, lost] {
        assert!(text.contains(&format!("{one}: Connection refused")), "{text}");
    }
}

#[tokio::test]
async fn no_more_servers_are_tried_than_retries_allow() {
    let a = Backend::new().await;
    let u = upstream(&format!(
        "{}\nretries = 0\nbalance = \"first\"",
        list(&[closed().await, a.address])
    ));
    let guest = Guest::new().await;
    let refused = u.lease_for(&guest).await.unwrap_err();
    assert!(
        matches!(&refused, Unavailable::Refused(tried) if tried.len() == 1),
        "{refused}"
    );
    // The caller may ask for another server itself.
    let not = [u.state.first().id()];
    let lease = u
        .lease(&Ask {
            not: &not,
            ..guest.ask()
        })
        .await
        .unwrap();
    assert_eq!(lease.address(), a.address);
}

#[tokio::test]
async fn a_listeners_targets_are_tried_in_order_each_time() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let text = format!(
        "[[listener]]\nname = \"l\"\nlisten = \":1\"\nto = [\"{}\", \"no-such-host.invalid:80\", \"{}\", \"{}\"]\n",
        closed().await,
        a.address,
        b.address
    );
    let config = config::parse(Path::new("test.toml"), &text).unwrap();
    let all = Upstreams::new(&config, &splicer());
    let u = all.of_listener(&config.listeners[0]).unwrap();
    let guest = Guest::new().await;
    for _ in 0..9 {
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), a.address);
    }
    // The first target is tried first each time, however often it refused.
    assert_eq!(u.server(0).connect_failures_total, 9);
    drop((a, b));
    let refused = u.lease_for(&guest).await.unwrap_err().to_string();
    assert!(
        refused.contains("no-such-host.invalid:80: the name `no-such-host.invalid` does not exist"),
        "{refused}"
    );
    assert_eq!(refused.matches("Connection refused").count(), 3, "{refused}");
}

#[tokio::test]
async fn the_same_key_leads_to_the_same_server() {
    let backends = [Backend::new().await, Backend::new().await, Backend::new().await];
    let servers = list(&backends.each_ref().map(|b| b.address));
    let u = upstream(&format!("{servers}\nbalance = \"hash=header:X-User\""));
    assert_eq!(u.key(), &KeyKind::Header("x-user".into()));
    let guest = Guest::new().await;
    let mut all = std::collections::HashSet::new();
    for n in 0..20u8 {
        let key = [n];
        let ask = || Ask {
            key: Some(&key),
            ..guest.ask()
        };
        let first = u.lease(&ask()).await.unwrap().address();
        assert_eq!(u.lease(&ask()).await.unwrap().address(), first);
        all.insert(first);
    }
    assert_eq!(all.len(), 3);

    let u = upstream(&format!("{servers}\nbalance = \"hash=client\""));
    let first = u.lease_for(&guest).await.unwrap().address();
    for _ in 0..5 {
        // All clients are 127.0.0.1, with different ports.
        assert_eq!(u.lease_for(&Guest::new().await).await.unwrap().address(), first);
    }
}

#[tokio::test]
async fn a_cookie_keeps_a_client_at_its_server_until_that_is_drained() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let servers = list(&[a.address, b.address]);
    let all = upstreams(&format!("{servers}\nsticky = \"SERVER\""));
    let u = all.get("u").unwrap();
    let guest = Guest::new().await;
    let lease = u.lease_for(&guest).await.unwrap();
    let (server, cookie) = (lease.address(), lease.tenure.cookie().unwrap().to_owned());
    // It tells the client nothing of the server's address, 127.0.0.1. (Any two digits of decimal may come about by chance.)
    assert!(
        cookie.len() == 16 && cookie.bytes().all(|digit| digit.is_ascii_hexdigit()),
        "{cookie}"
    );
    assert!(!cookie.contains("7f000001"), "{cookie}");
    let ask = || Ask {
        sticky: Some(&cookie),
        ..guest.ask()
    };
    for _ in 0..3 {
        assert_eq!(u.lease(&ask()).await.unwrap().address(), server);
    }
    assert_eq!(all.drain("u", &server.to_string(), true), Ok(1));
    let moved = u.lease(&ask()).await.unwrap();
    assert_ne!(moved.address(), server);
    assert_ne!(moved.tenure.cookie(), Some(cookie.as_str()));
    // An invalid cookie is ignored.
    let ask = Ask {
        sticky: Some("\u{e9};"),
        ..guest.ask()
    };
    u.lease(&ask).await.unwrap();
    assert_eq!(all.drain("u", &server.to_string(), false), Ok(1));
    let ask = Ask {
        sticky: Some(&cookie),
        ..guest.ask()
    };
    assert_eq!(u.lease(&ask).await.unwrap().address(), server);
}

#[tokio::test]
async fn a_drained_server_gets_nothing_and_its_connections_go_on() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let all = upstreams(&list(&[a.address, b.address]));
    let u = all.get("u").unwrap();
    let guest = Guest::new().await;
    let running = u.lease_for(&guest).await.unwrap();
    let idle = u.lease_for(&guest).await.unwrap();
    assert_eq!((running.address(), idle.address()), (a.address, b.address));
    let mut far = b.accept().await;
    idle.tenure.give_back(idle.stream, None);
    assert_eq!(all.drain("u", &a.address.to_string(), true), Ok(1));
    assert_eq!((u.server(0).state.as_str(), u.server(0).open), ("draining", 1));
    for _ in 0..4 {
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), b.address);
    }
    assert_eq!(all.drain("u", &b.address.to_string(), true), Ok(1));
    let why = u.lease_for(&guest).await.unwrap_err();
    assert_eq!(why.status(), 503);
    assert!(why.to_string().contains("2 draining"), "{why}");
    // The idle connection was closed with a FIN.
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(
        all.drain("u", "unknown", true).unwrap_err().to_string(),
        "upstream `u` has no server `unknown`; `longsplice servers` shows them"
    );
    assert!(matches!(
        all.drain("x", "y", true),
        Err(NoSuchServer::Upstream(_))
    ));
}

#[tokio::test]
async fn a_header_introduces_the_client() {
    use longsplice_core::proxy_protocol::{Addresses, Step, parse};
    for version in ["v1", "v2"] {
        let a = Backend::new().await;
        let u = upstream(&format!("{}\nsend_proxy = \"{version}\"", list(&[a.address])));
        let guest = Guest::new().await;
        let lease = u.lease_for(&guest).await.unwrap();
        let mut server = a.accept().await;
        let mut bytes = [0; 256];
        let n = server.read(&mut bytes).await.unwrap();
        let Ok(Step::Done { header, length }) = parse(&bytes[..n]) else {
            panic!("{:?}", &bytes[..n]);
        };
        assert_eq!(length, n);
        let ask = guest.ask();
        assert_eq!(header.addresses, Some(Addresses::new(ask.peer, ask.local)));
        // The connection belongs to that client: another client gets a new one.
        let port = lease.port();
        lease.tenure.give_back(lease.stream, None);
        assert!(!u.lease_for(&Guest::new().await).await.unwrap().reused);
        let again = u.lease_for(&guest).await.unwrap();
        assert!(again.reused && again.port() == port);
    }
}

#[tokio::test]
async fn a_backup_serves_when_the_others_are_drained() {
    let (a, b) = (Backend::new().await, Backend::new().await);
    let all = upstreams(&format!(
        "server = [{{ address = \"{}\", name = \"spare\", backup = true }}, {{ address = \"{}\", weight = 3 }}]",
        a.address, b.address
    ));
    let u = all.get("u").unwrap();
    let guest = Guest::new().await;
    for _ in 0..4 {
        assert_eq!(u.lease_for(&guest).await.unwrap().address(), b.address);
    }
    all.drain("u", &b.address.to_string(), true).unwrap();
    let lease = u.lease_for(&guest).await.unwrap();
    assert_eq!(
        (lease.address(), lease.tenure.server().name()),
        (a.address, "spare")
    );
}
