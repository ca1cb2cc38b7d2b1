//! Tests consecutive requests, and requests that are not served.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::io::AsyncWriteExt;

use super::harness::{Certified, Server, Switch, ok, read_until};

#[tokio::test]
async fn pipelined_requests_are_answered_in_order_over_one_idle_connection() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    client
        .send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /")
        .await;
    let mut at_server = server.next().await;
    for n in 1..=2 {
        let request = at_server.until("\r\n\r\n").await;
        assert_eq!(request, format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let mut early = [0];
        let more = at_server.0.try_read(&mut early);
        assert!(
            more.is_err(),
            "the next request did not wait for this reply: {more:?}"
        );
        at_server.send(ok(&format!("reply {n}"))).await;
        client.until(&format!("reply {n}")).await;
    }
    client.send("3 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    at_server.until("/3 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    at_server.send(ok("3")).await;
    client.until("3").await;
    assert!(server.another().is_none());
}

#[tokio::test]
async fn what_is_not_understood_is_answered_and_the_connection_ends() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "max_head = \"1KiB\"", "").await;
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "x".repeat(2000));
    let both =
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "400 "),
        (both, "400 "),
        (&long, "431 "),
        ("GET / HTTP/2.0\r\n\r\n", "505 "),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 "),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", "501 "),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "400 ",
        ),
    ] {
        let mut client = switch.client().await;
        // Send more after the request: it must not turn the answer into a reset.
        client
            .send(format!("{request}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"))
            .await;
        let (answer, in_order) = client.rest().await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {answer}"
        );
        assert!(
            in_order && answer.contains("Connection: close\r\n"),
            "{request}: {answer}"
        );
        assert_eq!(answer.matches("\r\nDate: ").count(), 1, "{request}: {answer}");
    }
    while let Some(mut at_server) = server.another() {
        let (request, _) = at_server.rest().await;
        assert!(!request.contains("smuggled"), "{request}");
    }
}

#[tokio::test]
async fn slow_and_silent_clients_are_not_waited_for() {
    let server = Server::new().await;
    let switch = Switch::new(
        server.address,
        "head_timeout = \"50ms\"\nidle_timeout = \"60ms\"",
        "",
    )
    .await;
    let mut slow = switch.client().await;
    slow.send("GET / HTTP/1.1\r\n").await;
    let (answer, _) = slow.rest().await;
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
    let mut silent = switch.client().await;
    assert_eq!(silent.rest().await, (String::new(), true));
}

#[tokio::test]
async fn a_head_that_dribbles_has_no_more_time_than_one_that_stands_still() {
    let server = Server::new().await;
    let switch = Switch::new(server.address, "head_timeout = \"200ms\"", "").await;
    let mut client = switch.client().await;
    let begun = std::time::Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    while client.0.try_read(&mut [0]).is_err() {
        tick.tick().await;
        assert!(begun.elapsed() < super::harness::PATIENCE);
        if begun.elapsed() < Duration::from_millis(300) {
            client.send("G").await;
        }
    }
}

#[tokio::test]
async fn routes_answer_redirect_and_the_server_is_told_of_the_client() {
    let mut server = Server::new().await;
    let routes = "[[listener.route]]\npath = \"/no\"\nstatus = 403\n[[listener.route]]\npath_prefix = \"/old\"\n\
                  redirect = \"https://new.example\"\n";
    let switch = Switch::new(
        server.address,
        "forwarded = [\"x-forwarded-for\", \"x-forwarded-proto\"]",
        routes,
    )
    .await;
    let mut client = switch.client().await;
    client.send("GET /no HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 403 "));
    client.until("\n").await;
    client.send("GET /old/x?y HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let redirect = client.until("\r\n\r\n").await;
    assert!(redirect.starts_with("HTTP/1.1 308 "), "{redirect}");
    assert!(
        redirect.contains("Location: https://new.example/old/x?y\r\n"),
        "{redirect}"
    );
    client.until("\n").await;
    client.send("GET /x HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: keep-alive, x\r\nX: 1\r\n\r\n").await;
    let request = server.next().await.until("\r\n\r\n").await;
    assert!(
        request.contains("X-Forwarded-For: 192.0.2.1, 127.0.0.1\r\nX-Forwarded-Proto: http\r\n"),
        "{request}"
    );
    assert!(
        !request.contains("keep-alive") && !request.contains("X: 1"),
        "{request}"
    );
}

#[tokio::test]
async fn the_last_request_of_a_connection_is_told_so() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "max_requests = 2", "").await;
    let mut client = switch.client().await;
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    at_server.send(ok("1")).await;
    assert!(!client.until("\r\n\r\n1").await.contains("close"));
    client.send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    at_server.until("\r\n\r\n").await;
    at_server.send(ok("2")).await;
    let (reply, in_order) = client.rest().await;
    assert!(
        reply.contains("Connection: close\r\n") && reply.ends_with("\r\n\r\n2") && in_order,
        "{reply}"
    );
}

#[tokio::test]
async fn a_shutdown_ends_idle_connections_and_lets_replies_pass() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let (mut idle, mut busy) = (switch.client().await, switch.client().await);
    idle.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut first = server.next().await;
    first.until("\r\n\r\n").await;
    first.send(ok("1")).await;
    idle.until("\r\n\r\n1").await;
    busy.send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    first.until("\r\n\r\n").await;
    drop(switch.stop);
    assert_eq!(idle.rest().await, (String::new(), true));
    first.send(ok("2")).await;
    let (reply, _) = busy.rest().await;
    assert!(
        reply.contains("Connection: close\r\n") && reply.ends_with("\r\n\r\n2"),
        "{reply}"
    );
}

#[tokio::test]
async fn requests_are_counted_by_their_status_though_nobody_reads_a_log() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    at_server.send(ok("one")).await;
    client.until("one").await;
    client.send("rubbish\r\n\r\n").await;
    client.rest().await;
    let routes = switch.service.counts().routes();
    let classes = routes[0].1.classes.each_ref().map(|n| n.load(Ordering::Relaxed));
    assert_eq!((routes[0].0.as_str(), classes), ("", [0, 0, 1, 0, 1, 0]));
}

#[tokio::test]
async fn a_reload_limits_the_heads_of_open_connections_too() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "x".repeat(2000));
    client.send(&request).await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    at_server.send(ok("one")).await;
    client.until("one").await;
    switch.reload("[listener.http]\nmax_head = \"1KiB\"");
    client.send(&request).await;
    let (answer, _) = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn a_session_that_its_listener_would_not_read_so_any_more_ends_behind_its_next_reply() {
    const NO: &str =
        "[[listener.route]]\npath_prefix = \"/\"\nstatus = 403\n[listener.http]\nmax_head = \"1KiB\"";
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "x".repeat(2000));
    for on_reload in ["keep", "recheck", "reset"] {
        let mut server = Server::new().await;
        let switch = Switch::new(server.address, "", "").await;
        let mut client = switch.client().await;
        client.send(&request).await;
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\n").await;
        at_server.send(ok("one")).await;
        client.until("one").await;
        switch.reload(&format!(
            "accept_proxy = [\"127.0.0.0/8\"]\non_reload = \"{on_reload}\"\n{NO}"
        ));
        client.send(&request).await;
        if on_reload == "keep" {
            at_server.until("\r\n\r\n").await;
            at_server.send(ok("two")).await;
        }
        let (got, in_order) = client.rest().await;
        match on_reload {
            "keep" => {
                assert!(got.ends_with("two") && in_order, "{got}");
                assert!(got.contains("\r\nConnection: close\r\n"), "{got}");
            }
            _ => assert_eq!((&*got, in_order), ("", false), "{on_reload}"),
        }
        assert!(server.another().is_none(), "{on_reload}");
    }
}

#[tokio::test]
async fn the_next_request_follows_a_reload_that_brings_another_certificate() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [old, new] = dirs.each_ref().map(|dir| Certified::new(dir.path()));
    let server = Server::new().await;
    let with = |status: u16, certified: &Certified| {
        let table = &certified.table;
        format!("[[listener.route]]\npath_prefix = \"/\"\nstatus = {status}\n{table}")
    };
    let switch = Switch::with(server.address, &with(403, &old));
    let mut client = old.connect(switch.client().await.0).await;
    for status in ["403", "404"] {
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        let got = read_until(&mut client, "so\n").await;
        assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{got}");
        assert!(!got.contains("Connection: close"), "{got}");
        switch.reload(&with(404, &new));
    }
}
