//! A cookie keeps a client at its server, as long as that server exists.

use longsplice_tests::switch::{Backend, Client, Mode, More, Reply, Switch};

const MORE: More<'_> = More {
    head: "",
    listener: "",
    http: "",
    upstream: "sticky = \"place\"\nconnect_timeout = \"1s\"\n[[upstream.server]]\naddress = \"@SECOND@\"",
    tables: "",
};

fn ask(client: &mut Client, cookie: &str) -> Reply {
    client.send(format!(
        "GET /a HTTP/1.1\r\nHost: switch\r\nCookie: a=b; {cookie}\r\n\r\n"
    ));
    let reply = client.reply();
    assert_eq!((reply.status, &*reply.text()), (200, "ok"), "{}", reply.head);
    reply
}

/// Returns the name and value of the cookie that a reply sets.
fn cookie(reply: &Reply) -> Option<String> {
    let set = reply.field("Set-Cookie")?;
    assert!(set.starts_with("place="), "{set}");
    Some(set.split(';').next().unwrap().to_owned())
}

#[test]
fn a_client_stays_at_its_server_and_moves_when_that_is_gone() {
    let switch = Switch::with("sticky", Mode::Detached, MORE);
    let start = |n: usize| Backend::start(&switch.net.server, switch.server(n));
    let mut servers = [0, 1].map(|n| Some(start(n)));
    let counts = |servers: &[Option<Backend>; 2]| {
        servers
            .each_ref()
            .map(|s| s.as_ref().map_or(0, |s| s.take_seen().len()))
    };
    let mut client = switch.connect();
    let first = cookie(&ask(&mut client, "c=d")).expect("a new client gets a cookie");
    let at = counts(&servers).iter().position(|n| *n == 1).unwrap();
    for _ in 0..3 {
        assert_eq!(cookie(&ask(&mut client, &first)), None, "it has it");
        assert_eq!(cookie(&ask(&mut switch.connect(), &first)), None, "it has it");
    }
    let mut expected = [0, 0];
    expected[at] = 6;
    assert_eq!(counts(&servers), expected);
    // A forged cookie counts as none.
    assert!(cookie(&ask(&mut client, "place=0123456789abcdef")).is_some());
    counts(&servers);
    // Its server is gone: the client gets another server and another cookie, without an error.
    servers[at] = None;
    let second = cookie(&ask(&mut client, &first)).expect("another cookie");
    assert_ne!(first, second);
    assert_eq!(cookie(&ask(&mut client, &second)), None);
    assert_eq!(counts(&servers)[1 - at], 2);
    // A client with the second cookie stays there; one with the first cookie returns to its old server.
    servers[at] = Some(start(at));
    assert_eq!(cookie(&ask(&mut client, &second)), None);
    assert_eq!(counts(&servers)[1 - at], 1);
    assert_eq!(cookie(&ask(&mut client, &first)), None);
    assert_eq!(counts(&servers)[at], 1);
}
