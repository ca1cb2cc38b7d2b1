//! Makes requests for tests.

use std::net::IpAddr;

use super::*;

mod conditions;
mod random;
mod table;

/// Request, as a test writes it: `GET host/path?query`.
#[derive(Debug)]
struct Request {
    method: String,
    host: Option<String>,
    path: Option<String>,
    query: Option<String>,
    headers: Vec<(String, String)>,
    client: IpAddr,
    sni: Option<String>,
    alpn: Vec<Vec<u8>>,
}

fn get(url: &str) -> Request {
    let (host, rest) = url.split_at(url.find('/').unwrap_or(url.len()));
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (rest, None),
    };
    Request {
        method: "GET".into(),
        host: (!host.is_empty()).then(|| host.to_owned()),
        path: (!path.is_empty()).then(|| path.to_owned()),
        query,
        headers: Vec::new(),
        client: "198.18.0.7".parse().unwrap(),
        sni: None,
        alpn: Vec::new(),
    }
}

impl Request {
    fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.into(), value.into()));
        self
    }

    fn method(mut self, method: &str) -> Request {
        self.method = method.into();
        self
    }

    fn client(mut self, client: &str) -> Request {
        self.client = client.parse().unwrap();
        self
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            client: self.client,
            method: Some(&self.method),
            host: self.host.as_deref(),
            path: self.path.as_deref(),
            query: self.query.as_deref(),
            headers: &self.headers,
            sni: self.sni.as_deref(),
            alpn: &self.alpn,
            other_paths: &[],
        }
    }
}

fn list<T: std::str::FromStr<Err: std::fmt::Debug>, L: FromIterator<T>>(texts: &[&str]) -> L {
    texts.iter().map(|t| t.parse().unwrap()).collect()
}

fn host(texts: &[&str]) -> Condition {
    Condition::Host(list(texts))
}

fn header(name: &str, want: Want) -> Condition {
    Condition::Header(name.parse().unwrap(), want)
}

fn cookie(name: &str, want: Want) -> Condition {
    let name = (!name.is_empty()).then(|| name.parse().unwrap());
    Condition::Cookie(name, want)
}

fn is(text: &str) -> Want {
    Want::Value(vec![Text::Exact(text.into())])
}

fn route(name: &str, conditions: Vec<Condition>) -> Route {
    Route {
        name: name.into(),
        conditions,
        action: Action::Upstream(name.into()),
    }
}

#[track_caller]
fn check(condition: &Condition, request: &Request, holds: bool) {
    let facts = request.facts();
    assert_eq!(
        condition.holds(&facts),
        holds,
        "{condition}; {:?} {:?} {:?} {:?}",
        facts.host,
        facts.path,
        facts.query,
        request.headers
    );
    // A condition on something unknown is never true, even if it demands absence.
    assert!(matches!(condition, Condition::Client(_)) || !condition.holds(&Facts::of_client(facts.client)));
}
