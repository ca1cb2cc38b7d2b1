//! Tests which servers a request goes to, and what is held against them.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::harness::{Client, Server, Switch, exchange, ok, to_v, until};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Returns an address without a listener.
fn closed() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn a_client_whose_bytes_are_not_read_as_http_gets_a_new_connection() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let beside = switch.beside();
    let mut client = switch.client().await;
    let mut at_server = server.exchange(&mut client, GET, &ok("one")).await;
    until("its connection is idle", || switch.status("u", 0).idle == 1).await;
    let mut other = Client::of(&beside).await;
    other.send("no HTTP").await;
    server.next().await.until("no HTTP").await;
    // The idle connection is still there for requests.
    exchange(&mut client, GET, &mut at_server, &ok("two")).await;
}

#[tokio::test]
async fn all_failures_of_a_request_count_together_and_no_server_is_tried_twice() {
    // The request finds one server that refuses and one that closes, in either order, before the third one.
    for (refuses_first, retries) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let (mut closes, mut last, refuses) = (Server::new().await, Server::new().await, closed());
        let (order, nth) = match refuses_first {
            true => ([refuses, closes.address, last.address], 0),
            false => ([closes.address, refuses, last.address], 1),
        };
        let list = order.map(|a| format!("\"{a}\"")).join(", ");
        let keys = format!("servers = [{list}]\nbalance = \"first\"\nretries = {retries}");
        let switch = Switch::new(closes.address, "", &to_v(&keys)).await;
        let mut client = switch.client().await;
        client.send(GET).await;
        let mut at_server = closes.next().await;
        at_server.until("\r\n\r\n").await;
        drop(at_server);
        let case = format!("refuses first: {refuses_first}, retries: {retries}");
        match retries {
            1 => {
                let answer = client.until("\r\n\r\n").await;
                assert!(answer.starts_with("HTTP/1.1 502 "), "{case}: {answer}");
                assert!(last.another().is_none(), "{case}");
            }
            _ => {
                let mut at_server = last.next().await;
                at_server.until("\r\n\r\n").await;
                at_server.send(ok("last")).await;
                client.until("last").await;
            }
        }
        assert_eq!(switch.status("v", nth).connect_failures_total, 1, "{case}");
        assert_eq!(switch.status("v", 1 - nth).failures_total, 1, "{case}");
    }
}

#[tokio::test]
async fn a_server_whose_bodies_are_nonsense_goes_out() {
    let mut server = Server::new().await;
    let keys = "outlier_detection = { failures = 2, period = \"1h\" }";
    let switch = Switch::of_v(server.address, "", keys).await;
    for (host, state) in [(1, "up"), (2, "out")] {
        let mut client = switch.client_at(host).await;
        client.send(GET).await;
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\n").await;
        at_server
            .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")
            .await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 502 "));
        client.until("\n").await;
        let status = switch.status("v", 0);
        assert_eq!((status.state.as_str(), status.replies_total), (state, [0; 5]));
    }
}

#[tokio::test]
async fn a_reply_that_its_client_has_made_unfit_is_not_held_against_the_server() {
    const OLD: &str = "GET / HTTP/1.0\r\nHost: a\r\n\r\n";
    let long = |n| "x".repeat(n);
    let fields = |n| (0..n).map(|_| "x: y\r\n").collect::<String>();
    let mut server = Server::new().await;
    let keys = "outlier_detection = { failures = 1, period = \"1h\" }";
    let switch = Switch::of_v(server.address, "", keys).await;
    let cases = [
        (GET, format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", long(40_000))),
        (GET, format!("HTTP/1.1 200 {}\r\n\r\n", long(20_000))),
        (GET, format!("HTTP/1.1 200 OK\r\n{}\r\n", fields(200))),
        (
            GET,
            format!("HTTP/1.1 200 OK\r\nConnection: {}\r\n\r\n", "x,".repeat(100)),
        ),
        (GET, "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned()),
        (
            GET,
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        ),
        // Parts of the target come back in a redirect.
        (GET, "HTTP/1.1 301 x\r\nLocation: /\u{1}\r\n\r\n".to_owned()),
        (GET, "HTTP/1.1 301 x\r\nLocation: /\nX\r\n\r\n".to_owned()),
        (GET, "HTTP/1.1 301 x\r\nLocation: /\rX\r\n\r\n".to_owned()),
        (GET, "HTTP/1.1 301 x\r\nLocation: /\r\nX\r\n\r\n".to_owned()),
        (
            OLD,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        ),
    ];
    let count = cases.len() as u64;
    for ((request, reply), host) in cases.into_iter().zip(1..) {
        let mut client = switch.client_at(host).await;
        client.send(request).await;
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\n").await;
        at_server.send(&reply).await;
        let what = &reply[..reply.len().min(60)];
        let answer = client.until("\r\n\r\n").await;
        assert!(answer.contains(" 502 "), "{what}: {answer}");
        assert_eq!(switch.status("v", 0).state, "up", "{what}");
    }
    assert_eq!(switch.status("v", 0).failures_total, count);
    // A first line that is none is the server's doing, if two clients get it.
    for (host, state) in [(1, "up"), (2, "out")] {
        let mut client = switch.client_at(host).await;
        client.send(GET).await;
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\n").await;
        at_server.send("HTTP/1.1 OK\r\n\r\n").await;
        client.until("\r\n\r\n").await;
        assert_eq!(switch.status("v", 0).state, state);
    }
}

#[tokio::test]
async fn the_time_of_a_reply_begins_when_its_request_has_ended() {
    let mut server = Server::new().await;
    let switch = Switch::new(server.address, "", "").await;
    let mut client = switch.client().await;
    client
        .send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nhalf")
        .await;
    let mut at_server = server.next().await;
    at_server.until("half").await;
    let pause = Instant::now();
    sleep(Duration::from_secs(2)).await;
    let pause = pause.elapsed();
    client.send("half").await;
    at_server.until("half").await;
    at_server.send(ok("done")).await;
    client.until("done").await;
    let sum = switch.status("u", 0).reply_seconds_total;
    assert!(
        sum < pause.as_secs_f64(),
        "{sum} s, of which the client paused {pause:?}"
    );
}

#[tokio::test]
async fn a_server_that_never_says_continue_is_late_and_stays_up() {
    let expects = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    let mut server = Server::new().await;
    let keys = "outlier_detection = { failures = 1, period = \"1h\" }";
    let switch = Switch::of_v(server.address, "reply_timeout = \"300ms\"", keys).await;
    // The client alone chooses to withhold the body. A server that has all of it has no excuse.
    for (failures, sent, state) in [
        (1, "", "up"),
        (2, "", "up"),
        (3, "body", "up"),
        (4, "body", "out"),
    ] {
        let mut client = switch.client_at(failures).await;
        client.send(format!("{expects}{sent}")).await;
        let mut at_server = server.next().await;
        at_server.until(&format!("\r\n\r\n{sent}")).await;
        let answer = client.until("\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 504 "), "{sent}: {answer}");
        let status = switch.status("v", 0);
        assert_eq!(
            (status.failures_total, status.state.as_str()),
            (failures.into(), state),
            "{sent}"
        );
    }
    // Once the server has said it, or the body has begun, the client is waited for.
    for said in [true, false] {
        let switch = Switch::new(server.address, "body_timeout = \"300ms\"", "").await;
        let mut client = switch.client().await;
        client.send(expects).await;
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\n").await;
        if said {
            at_server.send("HTTP/1.1 100 Continue\r\n\r\n").await;
            client.until("100 Continue\r\n\r\n").await;
        } else {
            client.send("bo").await;
            at_server.until("bo").await;
        }
        let (answer, _) = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{said}: {answer}");
        assert_eq!(switch.failures(), 0);
    }
}

#[tokio::test]
async fn a_server_that_gives_a_withheld_body_up_stays_up() {
    const BEGUN: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx";
    const WHOLE: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
    let mut server = Server::new().await;
    let keys = "outlier_detection = { failures = 5, period = \"1h\" }";
    let switch = Switch::of_v(server.address, "", keys).await;
    // Let two clients take turns: the failures of one alone would not count in any case.
    let cases = (0..20).map(|_| (BEGUN, "up"));
    let dead = [(WHOLE, "up"); 4].into_iter().chain([(WHOLE, "out")]);
    for ((request, state), n) in cases.chain(dead).zip(0..) {
        let mut client = switch.client_at(1 + n % 2).await;
        client.send(request).await;
        let mut at_server = server.next().await;
        at_server.until("\r\n\r\nx").await;
        drop(at_server);
        let answer = client.until("\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{n}: {answer}");
        let status = switch.status("v", 0);
        assert_eq!(
            (status.failures_total, &*status.state),
            (u64::from(n) + 1, state),
            "{n}"
        );
    }
}

#[tokio::test]
async fn idle_connections_that_name_a_client_end_with_it() {
    let mut server = Server::new().await;
    let keys = "send_proxy = \"v1\"\nmax_idle = 2\nidle_timeout = \"1h\"";
    let switch = Switch::of_v(server.address, "", keys).await;
    let idle = async |n| until("it has so many idle ones", || switch.status("v", 0).idle == n).await;
    let mut lives = switch.client().await;
    let mut of_lives = server.exchange(&mut lives, GET, &ok("one")).await;
    idle(1).await;
    for _ in 0..4 {
        let mut client = switch.client().await;
        let mut at_server = server.exchange(&mut client, GET, &ok("one")).await;
        idle(2).await;
        drop(client);
        assert_eq!(at_server.rest().await, (String::new(), true));
        idle(1).await;
    }
    exchange(&mut lives, GET, &mut of_lives, &ok("two")).await;
    assert!(server.another().is_none());
    drop(lives);
    idle(0).await;
}
