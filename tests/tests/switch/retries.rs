//! A server closes without a reply: idempotent requests are retried, others are not.

use longsplice_tests::switch::{Backend, Mode, More, Switch};

#[test]
fn what_may_be_asked_twice_is_asked_of_another_server() {
    let more = More {
        upstream: "outlier_detection = { failures = 0 }\n[[upstream.server]]\naddress = \"@SECOND@\"",
        ..More::default()
    };
    let switch = Switch::with("retry", Mode::Detached, more);
    let servers = [0, 1].map(|n| Backend::start(&switch.net.server, switch.server(n)));
    let asked = || servers.each_ref().map(|s| s.take_seen().len());
    servers[0].set_well(false);
    let mut client = switch.connect();
    for _ in 0..6 {
        let reply = client.get("/vanish");
        assert_eq!((reply.status, &*reply.text()), (200, "ok"), "{}", reply.head);
    }
    let [vanished, answered] = asked();
    assert!(vanished > 0, "the first server was asked, too");
    assert_eq!(answered, 6);
    // A second POST might repeat its effect.
    let statuses: Vec<u16> = (0..6)
        .map(|_| {
            client.send("POST /vanish HTTP/1.1\r\nHost: switch\r\nContent-Length: 2\r\n\r\nhi");
            client.reply().status
        })
        .collect();
    let failed = statuses.iter().filter(|s| **s == 502).count();
    assert_eq!(asked(), [failed, 6 - failed], "{statuses:?}");
    assert!(
        failed > 0 && statuses.iter().all(|s| [200, 502].contains(s)),
        "{statuses:?}"
    );
    // Both servers fail: each is tried once, then the client gets an error.
    servers[1].set_well(false);
    let reply = client.get("/vanish");
    assert_eq!(reply.status, 502, "{}", reply.head);
    assert_eq!(asked(), [1, 1]);
    assert_eq!(client.get("/a").text(), "ok", "its connection goes on");
}
