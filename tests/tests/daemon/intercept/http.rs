//! Intercepted HTTP: each request is routed, a request without a route goes to its original destination, and the
//! servers see their clients where that is configured.

use std::fs;

use longsplice_tests::{Config, Nginx, Policy, curl, soon, switch::content};
use tempfile::TempDir;

use crate::intercept::lab::{Lab, TABLE, ip, lab};

/// Size of each file, in bytes.
const SIZE: usize = 300_000;
/// Second address of the client.
const SECOND: &str = "198.18.1.3";
const SERVER: &str = "198.18.2.1:80";

/// A cache in front of an origin; both send their names and the addresses of their clients in headers.
const SERVERS: &str = "\
proxy_cache_path @DIR@/cache keys_zone=c:1m;
server { listen 198.18.2.1:80; add_header X-From origin always; add_header X-Peer $remote_addr always; }
server { listen 198.18.2.1:3128; proxy_cache c; proxy_cache_valid 200 1h; proxy_hide_header X-From;
  proxy_hide_header X-Peer; add_header X-From \"cache $upstream_cache_status\" always;
  location / { proxy_pass http://198.18.2.1:80; } }";

fn body() -> Vec<u8> {
    content(SIZE)
}

fn nginx(lab: &Lab, dir: &TempDir) -> Nginx {
    let dir = dir.path().join("nginx");
    let servers = SERVERS.replace("@DIR@", &dir.display().to_string());
    let nginx = Nginx::start(&lab.net.server, &dir, &servers, SERVER.parse().unwrap());
    for name in ["a.html", "a.bin"] {
        nginx.add(name, &body());
    }
    nginx
}

/// Runs curl with these words, checks that all bodies are right, and returns the value of a field of the last reply.
fn field(lab: &Lab, name: &str, words: &[&str]) -> String {
    let head = lab.daemon.dir().join("head");
    let head_path = head.display().to_string();
    let got = curl(&lab.net.client, &[&["-D", &head_path], words].concat());
    let said = fs::read_to_string(&head).unwrap();
    assert!(
        got == body() || !said.contains(" 200 OK"),
        "{words:?}: {} bytes",
        got.len()
    );
    let value = said
        .lines()
        .rev()
        .find_map(|l| l.strip_prefix(&format!("{name}: ")));
    value.unwrap_or_else(|| panic!("{words:?}: {said}")).to_owned()
}

#[test]
fn pages_come_from_the_cache_and_the_rest_from_its_origin() {
    let example = include_str!("../../../../examples/cache.toml")
        .replace("\"192.0.2.11:3128\", \"192.0.2.12:3128\"", "\"198.18.2.1:3128\"")
        .replace("interface = \"eth0\"", "interface = \"f0\"");
    assert!(
        example.contains("198.18.2.1:3128") && example.contains("\"f0\""),
        "the example has changed"
    );
    let mut lab = lab("intercept-cache", Config::new().set(&example));
    let dir = tempfile::tempdir().unwrap();
    let _nginx = nginx(&lab, &dir);
    lab.start();
    let from = |words: &[&str]| field(&lab, "X-From", words);
    let page = "http://198.18.2.1/a.html";
    assert_eq!(from(&[page]), "cache MISS");
    assert_eq!(from(&[page]), "cache HIT");
    for words in [
        // Requests meant for one client, …
        &["http://198.18.2.1/a.html?who=me"][..],
        &["-H", "Cookie: a=b", page],
        &["-u", "me:secret", page],
        &["-d", "x", page],
        // … and one that no route takes.
        &["http://198.18.2.1/a.bin"],
    ] {
        assert_eq!(from(words), "origin", "{words:?}");
    }
    assert_eq!(from(&[page]), "cache HIT");
    assert!(lab.daemon.status().accepted_total >= 8);
}

/// Pooled server connections are reused only for the client that they were opened for.
#[test]
fn a_server_sees_the_client_of_each_request() {
    let table = format!("{TABLE}, source = \"client\", answers = \"f1\"");
    for (policy, upstream) in [
        (Policy::DETACHED, "upstream = \"web\""),
        (Policy::ON_DEMAND, "upstream = \"web\""),
        (Policy::DETACHED, ""),
    ] {
        let config = Config::new()
            .set(&format!("[[upstream]]\nname = \"web\"\nservers = \"{SERVER}\""))
            .intercepting(&table, policy.splice, policy.detach)
            .with(&format!("protocol = \"http\"\nsplice_min = \"1\"\n{upstream}"));
        let mut lab = lab("intercept-whose", config);
        assert!(ip(&lab.net.client, &format!("address add {SECOND}/24 dev c0")).0);
        let dir = tempfile::tempdir().unwrap();
        let nginx = nginx(&lab, &dir);
        lab.start();
        let first = lab.net.client_addr.to_string();
        for _ in 0..3 {
            for client in [&*first, SECOND] {
                // Send two requests on one connection.
                let url = format!("http://198.18.2.1/a.bin?of={client}");
                let got = curl(&lab.net.client, &["--interface", client, &url, &url]);
                assert!(got == body().repeat(2), "{upstream}: {} bytes", got.len());
            }
        }
        soon("12 lines of its log", || nginx.log().lines().count() == 12);
        for line in nginx.log().lines() {
            let (peer, rest) = line.split_once(' ').unwrap();
            assert!(rest.ends_with(&format!("of={peer}")), "{upstream}: {line}");
        }
    }
}
