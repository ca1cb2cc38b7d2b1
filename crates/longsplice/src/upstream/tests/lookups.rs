//! Tests look-ups that fail in part, with name servers in the test.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
};

use hickory_resolver::proto::{
    op::ResponseCode,
    rr::RecordType::{self, AAAA, SRV},
};

use super::{
    dns::{NameServer, ip},
    *,
};
use crate::{config::ServerPlace, upstream::names::Found};

const BOTH: [RecordType; 2] = [RecordType::A, AAAA];

fn place(server: &str) -> ServerPlace {
    config(&format!("servers = [\"{server}\"]")).upstreams[0].servers[0]
        .place
        .clone()
}

fn found(result: &io::Result<Found>) -> Vec<String> {
    let sites = result.as_ref().unwrap().sites.iter();
    sites.map(|site| site.address.to_string()).collect()
}

/// Looks web.test up fifty times, and fails unless its one address is found. `code`: what the other server says.
async fn is_found_each_time(names: &Names, code: ResponseCode) {
    let place = place("web.test:80");
    for _ in 0..50 {
        assert_eq!(
            found(&names.look_up(&place, &[]).await),
            ["127.0.0.1:80"],
            "{code}"
        );
    }
}

#[tokio::test]
async fn name_servers_are_asked_in_their_order() {
    let (one, two) = (NameServer::new().await, NameServer::new().await);
    let place = place("web.test:80");
    one.set("web.test", &[ip(1)]);
    for code in [
        ResponseCode::NXDomain,
        ResponseCode::ServFail,
        ResponseCode::Refused,
    ] {
        two.zone.lock().otherwise = Some(code);
        let names = Names::fixed(&[one.address, two.address], b"");
        is_found_each_time(&names, code).await;
    }
    assert_eq!(two.asked("web.test", RecordType::A), 0, "the first one knew it");
    // The first answer holds, even if the second server knows more.
    let names = Names::fixed(&[two.address, one.address], b"");
    two.zone.lock().otherwise = None;
    let why = names.look_up(&place, &[]).await.unwrap_err().to_string();
    assert_eq!(why, "the name `web.test` does not exist");
}

#[tokio::test]
async fn another_name_server_is_asked_if_one_cannot_say() {
    let (bad, good) = (NameServer::new().await, NameServer::new().await);
    let place = place("web.test:80");
    good.set("web.test", &[ip(1)]);
    for code in [ResponseCode::ServFail, ResponseCode::Refused] {
        bad.zone.lock().otherwise = Some(code);
        let names = Names::fixed(&[bad.address, good.address], b"");
        is_found_each_time(&names, code).await;
    }
    good.zone.lock().otherwise = Some(ResponseCode::ServFail);
    good.zone.lock().records.clear();
    let names = Names::fixed(&[bad.address, good.address], b"");
    let why = names.look_up(&place, &[]).await.unwrap_err().to_string();
    let said =
        ["Query Refused", "Server Failure"].map(|code| format!("name server 127.0.0.1 answered: {code}"));
    assert!(why.contains(&said.join(", ")), "{why}");
}

#[tokio::test]
async fn a_name_server_that_is_silent_costs_little() {
    let (silent, good) = (NameServer::new().await, NameServer::new().await);
    let place = place("web.test:80");
    silent.zone.lock().mute = true;
    good.set("web.test", &[ip(1)]);
    let names = Names::fixed(&[silent.address, good.address], b"");
    // With the whole timeout for each, this would last twice as long as `PATIENCE`.
    let all = time::timeout(PATIENCE, async {
        for _ in 0..40 {
            assert_eq!(found(&names.look_up(&place, &[]).await), ["127.0.0.1:80"]);
        }
    });
    all.await.unwrap();
    assert!(
        silent.asked("web.test", RecordType::A) >= 40,
        "it stays the first one"
    );
}

#[tokio::test]
async fn a_name_server_with_other_zones_proves_nothing_when_the_first_one_fails() {
    let (one, other) = (NameServer::new().await, NameServer::new().await);
    one.set("web.test", &[ip(1), "::1".parse().unwrap()]);
    one.spoil("dead.test", &BOTH, None);
    let names = Names::fixed(&[one.address, other.address], b"");
    // A name without an answer does not cost the first server its place.
    let why = names.look_up(&place("dead.test:80"), &[]).await.unwrap_err();
    assert_ne!(why.kind(), io::ErrorKind::NotFound);
    let place = place("web.test:80");
    let before = names.look_up(&place, &[]).await.unwrap();
    assert_eq!(before.sites.len(), 2);
    one.spoil("web.test", &[RecordType::A], Some(ResponseCode::ServFail));
    let after = names.look_up(&place, &before.sites).await.unwrap();
    assert_eq!(after.sites, before.sites);
    let why = after.wrong.unwrap().to_string();
    assert!(why.contains("answered: the name does not exist"), "{why}");
}

/// Checks that both servers stay while the first one's name cannot be looked up, and that it is asked for again within
/// seconds, not after the TTL.
async fn stays(dns: &NameServer, u: &Upstream, spoilt: &str, kinds: &[RecordType]) {
    until("there are two", || addresses(u).len() == 2).await;
    let all = addresses(u);
    dns.zone.lock().ttl = 120;
    dns.spoil(spoilt, kinds, Some(ResponseCode::ServFail));
    until("it is told", || !u.status().unresolved.is_empty()).await;
    assert_eq!(addresses(u), all);
    let why = &u.status().unresolved[0].why;
    assert!(
        why.contains(spoilt) && why.contains("answered: Server Failure"),
        "{why}"
    );
    dns.zone.lock().faults.clear();
    until("it is looked up", || u.status().unresolved.is_empty()).await;
    assert_eq!(addresses(u), all);
}

#[tokio::test]
async fn a_family_that_cannot_be_looked_up_keeps_its_addresses() {
    let dns = NameServer::new().await;
    dns.set("web.test", &[ip(1), "::1".parse().unwrap()]);
    let u = with_names("servers = [\"web.test:80\"]", dns.address);
    stays(&dns, &u, "web.test", &[RecordType::A]).await;
    // A family without an address is no failure.
    dns.set("other.test", &[ip(1)]);
    let u = with_names("servers = [\"other.test:80\"]", dns.address);
    until("there is one", || addresses(&u).len() == 1).await;
    assert_eq!(u.status().unresolved, []);
}

#[tokio::test]
async fn an_srv_target_that_cannot_be_looked_up_keeps_its_addresses() {
    let dns = NameServer::new().await;
    dns.set("one.test", &[ip(1)]);
    dns.set("two.test", &[ip(2)]);
    dns.set_service(
        "_http._tcp.test",
        &[(1, 1, 80, "one.test."), (1, 1, 80, "two.test.")],
    );
    let u = with_names("servers = [\"srv:_http._tcp.test\"]", dns.address);
    stays(&dns, &u, "one.test", &BOTH).await;
    // A target that a name server does not know is gone.
    dns.zone.lock().ttl = 1;
    let names = Names::fixed(&[dns.address], b"");
    let place = place("srv:_http._tcp.test");
    let before = names.look_up(&place, &[]).await.unwrap();
    dns.spoil("one.test", &BOTH, Some(ResponseCode::NXDomain));
    let after = names.look_up(&place, &before.sites).await;
    assert_eq!(found(&after), ["127.0.0.2:80"]);
    assert!(after.unwrap().wrong.is_none());
}

#[tokio::test]
async fn targets_without_an_answer_hold_up_no_other() {
    let dns = NameServer::new().await;
    let silent: Vec<_> = (0..24).map(|n| format!("silent{n}.test")).collect();
    for name in &silent {
        dns.spoil(name, &BOTH, None);
    }
    dns.set("good.test", &[ip(1)]);
    let targets: Vec<_> = silent.iter().map(|name| format!("{name}.")).collect();
    let mut records: Vec<_> = targets.iter().map(|target| (1, 1, 80, target.as_str())).collect();
    records.push((2, 1, 80, "good.test."));
    dns.set_service("_http._tcp.test", &records);
    let u = with_names("servers = [\"srv:_http._tcp.test\"]", dns.address);
    until("one is found", || addresses(&u) == ["127.0.0.1:80"]).await;
    let why = &u.status().unresolved[0].why;
    assert!(why.contains("silent") && why.contains("no answer"), "{why}");
    assert!(dns.asked("_http._tcp.test", SRV) > 0);
}

#[tokio::test]
async fn of_too_many_addresses_those_that_are_known_stay() {
    let dns = NameServer::new().await;
    let v4 = |n: u16| IpAddr::from(Ipv4Addr::from(0x0a00_0100 + u32::from(n)));
    let mut all: Vec<_> = (0..300).map(v4).collect();
    all.push("::1".parse().unwrap());
    dns.set("big.test", &all);
    let names = Names::fixed(&[dns.address], b"");
    let place = place("big.test:80");
    let first = names.look_up(&place, &[]).await;
    assert_eq!(found(&first).len(), 256);
    assert!(found(&first).contains(&"[::1]:80".to_owned()));
    let first = first.unwrap();
    assert_eq!(first.left_out, 45);
    // A lower address would be among the first ones.
    all.push(ip(1));
    all.push(Ipv4Addr::new(1, 1, 1, 1).into());
    dns.set("big.test", &all);
    for _ in 0..3 {
        let next = names.look_up(&place, &first.sites).await.unwrap();
        assert_eq!(next.sites, first.sites);
        assert_eq!(next.left_out, 47);
    }
}

#[tokio::test]
async fn a_foreign_byte_does_not_spoil_the_hosts_file() {
    let hosts = b"# caf\xe9\n127.0.0.9 web.test\n127.0.0.8 caf\xe9.test other.test\n";
    let names = Names::fixed(&[], hosts);
    assert_eq!(
        found(&names.look_up(&place("web.test:80"), &[]).await),
        ["127.0.0.9:80"]
    );
    assert_eq!(
        found(&names.look_up(&place("other.test:80"), &[]).await),
        ["127.0.0.8:80"]
    );
}
