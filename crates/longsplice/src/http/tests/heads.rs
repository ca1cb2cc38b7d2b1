//! Tests which heads a listener lets in, and how it forwards them.

use super::harness::{PATIENCE, Server, Switch, ok};

/// Route that refuses `/admin`.
const DENY: &str = "[[listener.route]]\npath_prefix = \"/admin\"\nstatus = 403\n";

#[tokio::test]
async fn no_spelling_gets_past_a_route_that_refuses() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", DENY).await;
    let mut client = switch.client().await;
    for (path, status) in [
        ("//admin", 403),
        ("/.//admin", 403),
        ("/x/..;/admin", 403),
        ("/;/admin", 400),
        ("/x/..%2fadmin", 403),
        ("/x\\..\\admin", 403),
        ("/x/%2e%2e/admin", 403),
        ("/%61dmin", 403),
        ("/admin/../x", 403),
        ("/x%00/admin", 400),
    ] {
        client
            .send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
            .await;
        let answer = client.until("\r\n\r\n").await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {answer}"
        );
        client.until("\n").await;
    }
    assert!(server.another().is_none());
    // A path that no route refuses is forwarded as it was written, over the same connection.
    for path in ["//x", "/x;v=1/y", "/a%2Fb", "/x/../y"] {
        client
            .send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
            .await;
        let mut at_server = server.next().await;
        let request = at_server.until("\r\n\r\n").await;
        assert!(request.starts_with(&format!("GET {path} ")), "{request}");
        at_server
            .send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .await;
        client.until("\r\n\r\n").await;
    }
}

#[tokio::test]
async fn paths_are_as_written_where_nothing_is_refused_or_it_is_said() {
    for (http, routes) in [("", ""), ("strict_paths = false", DENY)] {
        let mut server = Server::new().await;
        let switch = Switch::new(server.address, http, routes).await;
        let mut client = switch.client().await;
        client.send("GET /;//admin HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let request = server.next().await.until("\r\n\r\n").await;
        assert!(request.starts_with("GET /;//admin "), "{request}");
    }
}

#[tokio::test]
async fn fields_with_underscores_are_dropped_passed_or_refused() {
    let get = "GET / HTTP/1.1\r\nHost: a\r\nX_User: 1\r\nX-User: 2\r\n\r\n";
    for (http, has) in [("", false), ("underscores = \"pass\"", true)] {
        let mut server = Server::new().await;
        let switch = Switch::new(server.address, http, "").await;
        let mut client = switch.client().await;
        client.send(get).await;
        let request = server.next().await.until("\r\n\r\n").await;
        assert_eq!(request.contains("X_User"), has, "{request}");
        assert!(request.contains("X-User: 2\r\n"), "{request}");
    }
    let server = Server::new().await;
    let switch = Switch::new(server.address, "underscores = \"refuse\"", "").await;
    let mut client = switch.client().await;
    client.send(get).await;
    assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn hops_are_named_dated_and_counted() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "via = \"switch\"", "").await;
    let mut client = switch.client().await;
    for (method, status) in [("TRACE", 405), ("OPTIONS", 200)] {
        client
            .send(format!(
                "{method} / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n"
            ))
            .await;
        let answer = client.until("\r\n\r\n").await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains("\r\nAllow: OPTIONS\r\n"),
            "{answer}"
        );
        client.until("\n").await;
    }
    assert!(server.another().is_none());
    client
        .send("OPTIONS / HTTP/1.7\r\nHost: a\r\nMax-Forwards: 2\r\n\r\n")
        .await;
    let mut at_server = server.next().await;
    let request = at_server.until("\r\n\r\n").await;
    assert_eq!(
        request,
        "OPTIONS / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 1\r\nVia: 1.1 switch\r\n\r\n"
    );
    at_server.send(ok("one")).await;
    let reply = client.until("\r\n\r\none").await;
    assert!(
        reply.contains("\r\nVia: 1.1 switch\r\n") && reply.matches("\r\nDate: ").count() == 1,
        "{reply}"
    );
}

#[tokio::test]
async fn what_a_client_says_of_itself_is_replaced_if_it_is_to_be() {
    let mut server = Server::new().await;
    let http = "forwarded = [\"x-forwarded-for\"]\nforwarded_mode = \"replace\"";
    let switch = Switch::new(server.address, http, "").await;
    let mut client = switch.client().await;
    client
        .send("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: ::1\r\nX-Real-IP: ::1\r\nForwarded: for=\"x\r\n\r\n")
        .await;
    let request = server.next().await.until("\r\n\r\n").await;
    assert_eq!(
        request,
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n"
    );
}

#[tokio::test]
async fn a_head_request_that_is_not_understood_gets_no_body() {
    let server = Server::new().await;
    let switch = Switch::new(server.address, "head_timeout = \"100ms\"", "").await;
    for (request, status) in [
        ("HEAD / HTTP/1.1\r\n\r\n", 400),
        ("\r\nHEAD /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("HEAD / HTTP/1.1\r\nA b: c\n", 400),
        ("HEAD / HTTP/1.1\r\nHo", 408),
    ] {
        let mut client = switch.client().await;
        client.send(request).await;
        let (answer, _) = client.rest().await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {answer}"
        );
        assert!(answer.ends_with("\r\n\r\n"), "{request}: {answer}");
    }
}

#[tokio::test]
async fn trailers_that_servers_merge_do_not_arrive() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let whole = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: 1\r\n\
                 Authorization: Basic x\r\nX-Forwarded-For: ::1\r\nB: 2\r\n\r\n";
    let inside = whole.find("rization").unwrap();
    for cut in [whole.len(), inside] {
        let mut client = switch.client().await;
        let (first, second) = whole.split_at(cut);
        client.send(first).await;
        let mut at_server = server.next().await;
        let mut got = at_server.until("A: 1\r\n").await;
        client.send(second).await;
        got += &at_server.until("\r\n\r\n").await;
        assert!(got.ends_with("\r\n0\r\nA: 1\r\nB: 2\r\n\r\n"), "{got}");
        at_server.send(ok("one")).await;
        client.until("one").await;
        // The switch knows the beginning of the next request.
        client.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n").await;
        at_server.until("/next HTTP/1.1\r\nHost: a\r\n\r\n").await;
        at_server
            .send("HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        at_server
            .send("1\r\ny\r\n0\r\nSet-Cookie: a=b\r\nC: 3\r\n\r\n")
            .await;
        let reply = client.until("C: 3\r\n\r\n").await;
        assert!(reply.ends_with("\r\n1\r\ny\r\n0\r\nC: 3\r\n\r\n"), "{reply}");
        assert_eq!(at_server.rest().await.0, "");
    }
}

#[tokio::test]
async fn interim_replies_have_an_end() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "reply_timeout = \"100ms\"", "").await;
    // Their number is limited.
    let mut client = switch.client().await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    at_server
        .send("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(65))
        .await;
    let got = client.until("Bad Gateway\r\n").await;
    assert_eq!(got.matches("HTTP/1.1 103").count(), 64, "{got}");
    // Their total time is limited, although each of them restarts the timeout.
    let mut client = switch.client().await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut at_server = server.next().await;
    at_server.until("\r\n\r\n").await;
    let begun = std::time::Instant::now();
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(40));
    let mut got = String::new();
    while !got.contains("HTTP/1.1 504 ") {
        tick.tick().await;
        assert!(begun.elapsed() < PATIENCE);
        // Ignore an error: the switch may have closed by then.
        let _ = at_server.0.try_write(b"HTTP/1.1 102 Processing\r\n\r\n");
        let mut bytes = [0; 4096];
        if let Ok(n) = client.0.try_read(&mut bytes) {
            got += &String::from_utf8_lossy(&bytes[..n]);
        }
    }
    assert!(got.starts_with("HTTP/1.1 102 "), "{got}");
}
