use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

/// A request, as a test writes it: `GET host/path?query`.
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
    // What is not known is never true, whether something or its absence is asked for.
    assert!(matches!(condition, Condition::Client(_)) || !condition.holds(&Facts::of_client(facts.client)));
}

#[test]
fn hosts() {
    for (patterns, asked, holds) in [
        (&["img.example"][..], "img.example", true),
        (&["IMG.Example."], "img.example", true),
        (&["img.example"], "iMg.eXample.:8080", true),
        (&["img.example"], "img.example:", true),
        (&["img.example"], "ximg.example", false),
        (&["img.example"], "a.img.example", false),
        (&["*.example"], "a.example", true),
        (&["*.example"], "a.b.example", true),
        (&["*.example"], "A.B.EXAMPLE.:1", true),
        (&["*.example"], "example", false),
        (&["*.example"], ".example", false),
        (&["*.example"], "aexample", false),
        (&["b.test", "*.c.test", "a.test"], "a.test", true),
        (&["b.test", "*.c.test", "a.test"], "x.c.test", true),
        (&["b.test", "*.c.test", "a.test"], "c.test", false),
        (&["192.0.2.1"], "192.0.2.1:80", true),
        (&["[::1]"], "[::1]:8080", true),
        (&["[::1]"], "[::1]", true),
        (&["[2001:DB8::1]"], "[2001:db8::1]", true),
        (&["a.test"], "", false),
    ] {
        let mut request = get("/");
        request.host = Some(asked.into());
        check(&host(patterns), &request, holds);
        request.sni = Some(asked.into());
        assert_eq!(
            Condition::Sni(list(patterns)).holds(&request.facts()),
            holds,
            "{asked}"
        );
    }
    check(&host(&["a.test"]), &get("/"), false);
    for (bad, says) in [
        ("", "is no host"),
        ("*", "leave the condition out"),
        ("a.*.b", "at the beginning"),
        ("*a.example", "at the beginning"),
        ("*.", "is no host"),
        ("a..b", "is no host"),
        ("a b", "is no host"),
        ("::1", "in brackets, [::1]"),
        ("[::1]:80", "write [::1]"),
        ("*.[::1]", "is no host"),
        ("bücher.example", "xn--"),
        (&"a".repeat(64), "is no host"),
    ] {
        let error = bad.parse::<HostPattern>().unwrap_err().to_string();
        assert!(error.contains(says), "{bad}: {error}");
    }
}

#[test]
fn paths() {
    let path = |texts: &[&str]| Condition::Path(list(texts));
    let prefix = |texts: &[&str]| Condition::PathPrefix(list(texts));
    let regex = |texts: &[&str]| Condition::PathRegex(list(texts));
    let extension = |texts: &[&str]| Condition::Extension(list(texts));
    for (condition, asked, holds) in [
        (path(&["/a"]), "/a", true),
        (path(&["/a"]), "/a?b", true),
        (path(&["/a"]), "/A", false),
        (path(&["/a"]), "/a/", false),
        (path(&["/b", "/a"]), "/a", true),
        (prefix(&["/static"]), "/static", true),
        (prefix(&["/static"]), "/static/x", true),
        (prefix(&["/static"]), "/statically", true),
        (prefix(&["/static/"]), "/static", false),
        (prefix(&["/static/"]), "/static/", true),
        (prefix(&["/x", "/static/"]), "/static/a", true),
        (prefix(&["/"]), "/", true),
        (regex(&["^/v[0-9]+/"]), "/v12/x", true),
        (regex(&["^/v[0-9]+/"]), "/vx/", false),
        (regex(&["b"]), "/abc", true),
        (regex(&["(?i)^/ABC$"]), "/abc", true),
        (extension(&["gif"]), "/a/b.gif", true),
        (extension(&["gif"]), "/b.GIF?x", true),
        (extension(&["GIF"]), "/b.gif", true),
        (extension(&["gif"]), "/.gif", true),
        (extension(&["gif"]), "/gif", false),
        (extension(&["gif"]), "/a.gif/b", false),
        (extension(&["gif"]), "/a.xgif", false),
        (extension(&["gif"]), "/a.gif.txt", false),
        (extension(&["tar.gz", "jpg"]), "/a.tar.gz", true),
        (extension(&["tar.gz", "jpg"]), "/a.gz", false),
        (Condition::Query(true), "/a?b=c", true),
        (Condition::Query(true), "/a?", false),
        (Condition::Query(false), "/a?", true),
        (Condition::Query(false), "/a", true),
        (Condition::Cgi(true), "/a?b", true),
        (Condition::Cgi(true), "/cgi-bin/x", true),
        (Condition::Cgi(true), "/~a/cgi-bin/x", true),
        (Condition::Cgi(true), "/cgi-binary", false),
        (Condition::Cgi(false), "/a.html", true),
    ] {
        check(&condition, &get(asked), holds);
    }
    check(&Condition::Cgi(true), &get("/a").method("POST"), true);
    check(&Condition::Cgi(true), &get("/a").method("HEAD"), false);
    // `OPTIONS *` has no path.
    check(&prefix(&["/"]), &get("").method("OPTIONS"), false);
}

#[test]
fn bad_paths_are_explained() {
    for (bad, says) in [
        ("", "begins with /"),
        ("static", "write /static"),
        ("/a?b", "ends before `?`"),
        ("/a#b", "ends before `?`"),
        ("/a b", "written /a%20b"),
        ("/ä", "written /%C3%A4"),
        ("/%7Ea", "compared with /~a"),
        ("/%c3%a4", "compared with /%C3%A4"),
        ("/100%", "compared with /100%25"),
        ("/a/../b", "`..` are resolved"),
        ("/a/.", "`..` are resolved"),
    ] {
        let error = bad.parse::<PathText>().unwrap_err().to_string();
        assert!(error.contains(says), "{bad}: {error}");
    }
    for good in [
        "/",
        "/a//b",
        "/a%2Fb",
        "/%C3%A4",
        "/a/.hidden",
        "/...",
        "/a;b=c,d@e",
    ] {
        assert_eq!(good.parse::<PathText>().unwrap().as_str(), good);
    }
    for bad in ["", ".gif", "gif.", "a..b", "a/b", "a b", "a%20"] {
        assert!(bad.parse::<Extension>().is_err(), "{bad}");
    }
}

#[test]
fn header_fields() {
    let prefix = Want::Value(vec![Text::Prefix("a".into()), Text::Exact("zz".into())]);
    let regex = Want::Value(vec![Text::Regex("^[0-9]+$".parse().unwrap())]);
    let asked = || get("/").header("X-Tenant", " abc ").header("x-tenant", "2");
    for (condition, holds) in [
        (header("x-tenant", Want::Present), true),
        (header("X-TENANT", is("abc")), true),
        (header("x-tenant", is("2")), true),
        (header("x-tenant", is("ABC")), false),
        (header("x-tenant", prefix.clone()), true),
        (header("x-tenant", regex.clone()), true),
        (header("x-tenant", Want::Absent), false),
        (header("x-other", Want::Absent), true),
        (header("x-other", Want::Present), false),
        (header("x-other", regex), false),
    ] {
        check(&condition, &asked(), holds);
    }
    // Bytes that are not UTF-8 are values, too.
    let latin = vec![("x-tenant", &b"a\xff"[..])];
    let request = get("/");
    let facts = Facts {
        headers: &latin,
        ..request.facts()
    };
    assert!(header("x-tenant", prefix).holds(&facts));
}

#[test]
fn cookies() {
    for (lines, name, want, holds) in [
        (&["a=1; b=2"][..], "b", is("2"), true),
        (&["a=1; b=2"], "b", is("1"), false),
        (&["a=1;b=2"], "b", Want::Present, true),
        (&["a=1", "b=2"], "b", is("2"), true),
        (&["a=1; A=2"], "A", is("1"), false),
        (&["ab=1"], "a", Want::Present, false),
        (&["x=a=b"], "x", is("a=b"), true),
        (&["a = 1 ;"], "a", is("1"), true),
        (&["a="], "a", is(""), true),
        (&["a"], "a", Want::Present, false),
        (&["a"], "", Want::Present, true),
        (&["a=1; b=2"], "", is("2"), true),
        (&[], "", Want::Present, false),
        (&[], "", Want::Absent, true),
        (&["", " ; "], "", Want::Present, false),
        (&["a=1"], "b", Want::Absent, true),
    ] {
        let request = lines
            .iter()
            .fold(get("/"), |request, line| request.header("Cookie", line));
        check(&cookie(name, want), &request, holds);
    }
}

#[test]
fn methods_clients_and_protocols() {
    let methods = Condition::Method(list(&["GET", "HEAD"]));
    check(&methods, &get("/"), true);
    check(&methods, &get("/").method("get"), false);
    check(&methods, &get("/").method("GETS"), false);
    let networks = Condition::Client(list(&["198.18.0.0/15", "2001:db8::/32"]));
    for (client, holds) in [
        ("198.19.255.255", true),
        ("198.20.0.0", false),
        ("::ffff:198.18.0.1", true),
        ("2001:db8::1", true),
        ("::1", false),
    ] {
        check(&networks, &get("/").client(client), holds);
    }
    let every = Condition::Client(list(&["0.0.0.0/0"]));
    check(&every, &get("/").client("2001:db8::1"), false);
    let alpn = Condition::Alpn(vec!["h2".into(), "http/1.1".into()]);
    let mut request = get("/");
    for (offered, holds) in [(&["x", "h2"][..], true), (&["h3"], false), (&[], false)] {
        request.alpn = offered.iter().map(|p| p.as_bytes().to_vec()).collect();
        check(&alpn, &request, holds);
    }
}

/// The paper's: images, pages, CGI and cookies to three servers.
fn paper() -> Table {
    Table::new(vec![
        route("cgi", vec![Condition::Cgi(true)]),
        route("cookie", vec![cookie("", Want::Present)]),
        route("images", vec![Condition::Extension(list(&["gif", "jpg"]))]),
        route(
            "pages",
            vec![Condition::Extension(list(&["html"])), host(&["*.example"])],
        ),
    ])
}

#[test]
fn the_first_route_that_matches_wins() {
    let table = paper();
    for (request, winner) in [
        (get("a.example/x.gif"), Some("images")),
        (get("a.example/x.gif?y"), Some("cgi")),
        (get("a.example/x.gif").header("cookie", "a=b"), Some("cookie")),
        (get("a.example/x.html"), Some("pages")),
        (get("a.test/x.html"), None),
        (get("a.example/"), None),
        (get("a.example/x.html").method("PUT"), Some("cgi")),
    ] {
        let decided = table.decide(&request.facts());
        assert_eq!(decided.map(|(_, route)| route.name.as_str()), winner);
        let explained = table.explain(&request.facts());
        assert_eq!(explained.winner, decided.map(|(n, _)| n));
        let wins = explained.routes.iter().filter(|r| r.outcome == Outcome::Wins);
        assert_eq!(wins.map(|r| r.name.as_str()).next(), winner);
    }
}

#[test]
fn an_explanation_says_what_failed_and_with_what_values() {
    let request = get("b.test/x.html?").header("Cookie", "id=7; lang=\"de\"");
    let explained = paper().explain(&request.facts());
    let told: Vec<_> = explained
        .routes
        .iter()
        .flat_map(|r| r.checks.iter().map(|c| (r.name.as_str(), r.outcome, c)))
        .map(|(name, outcome, c)| format!("{name} {outcome:?}: {} {}; {}", c.condition, c.holds, c.seen))
        .collect();
    assert_eq!(
        told,
        [
            "cgi Fails: is CGI-like false; method is \"GET\", path is \"/x.html\", there is no query",
            "cookie Wins: any cookie is there true; cookie is \"7\", \"\\\"de\\\"\"",
            "images Fails: extension gif or jpg false; path is \"/x.html\"",
            "pages Fails: extension html true; path is \"/x.html\"",
            "pages Fails: host *.example false; host is \"b.test\"",
        ]
    );
    let late = paper().explain(&get("a.example/x.gif?y").facts());
    assert_eq!(late.routes[2].outcome, Outcome::TooLate);
}

#[test]
fn routes_that_never_win_are_found() {
    let prefix = |texts: &[&str]| Condition::PathPrefix(list(texts));
    let path = |texts: &[&str]| Condition::Path(list(texts));
    let extension = |texts: &[&str]| Condition::Extension(list(texts));
    let method = |texts: &[&str]| Condition::Method(list(texts));
    let client = |texts: &[&str]| Condition::Client(list(texts));
    for (earlier, later, hidden) in [
        (vec![], vec![path(&["/a"])], true),
        (vec![path(&["/a"])], vec![], false),
        (vec![prefix(&["/a"])], vec![path(&["/ab"])], true),
        (vec![prefix(&["/a"])], vec![path(&["/ab", "/b"])], false),
        (vec![prefix(&["/a", "/b"])], vec![prefix(&["/ab", "/b/"])], true),
        (
            vec![prefix(&["/a"]), method(&["GET"])],
            vec![prefix(&["/a"])],
            false,
        ),
        (
            vec![prefix(&["/a"])],
            vec![prefix(&["/a"]), method(&["GET"])],
            true,
        ),
        (vec![host(&["*.a.b"])], vec![host(&["c.a.b", "*.d.a.b"])], true),
        (vec![host(&["*.a.b"])], vec![host(&["a.b"])], false),
        (vec![host(&["*.a.b"])], vec![host(&["*.a.b"])], true),
        (vec![host(&["c.a.b"])], vec![host(&["*.a.b"])], false),
        (
            vec![client(&["10.0.0.0/8"])],
            vec![client(&["10.1.0.0/16", "10.2.3.4"])],
            true,
        ),
        (
            vec![client(&["10.1.0.0/16"])],
            vec![client(&["10.0.0.0/8"])],
            false,
        ),
        (vec![extension(&["gz"])], vec![extension(&["tar.gz"])], true),
        (vec![extension(&["gz"])], vec![path(&["/a.GZ"])], true),
        (vec![Condition::Cgi(true)], vec![Condition::Query(true)], true),
        (vec![Condition::Query(true)], vec![Condition::Cgi(true)], false),
        (vec![Condition::Cgi(true)], vec![method(&["POST"])], true),
        (vec![Condition::Cgi(true)], vec![method(&["POST", "GET"])], false),
        (vec![cookie("", Want::Present)], vec![cookie("a", is("1"))], true),
        (
            vec![cookie("a", Want::Present)],
            vec![cookie("", Want::Present)],
            false,
        ),
        (
            vec![cookie("", Want::Absent)],
            vec![cookie("a", Want::Absent)],
            false,
        ),
        (
            vec![cookie("a", Want::Absent)],
            vec![cookie("", Want::Absent)],
            true,
        ),
        (vec![header("x", Want::Present)], vec![header("X", is("1"))], true),
        (vec![header("x", is("1"))], vec![header("x", is("2"))], false),
        (vec![header("x", Want::Absent)], vec![header("x", is("2"))], false),
    ] {
        let table = Table::new(vec![route("earlier", earlier), route("later", later)]);
        let found = table.hidden().next();
        assert_eq!(found, hidden.then_some((1, 0)), "{table:?}");
    }
}

#[test]
fn contradictions_are_found() {
    for (conditions, impossible) in [
        (
            vec![
                Condition::Path(list(&["/a"])),
                Condition::PathPrefix(list(&["/b"])),
            ],
            true,
        ),
        (
            vec![
                Condition::Path(list(&["/a", "/b"])),
                Condition::PathPrefix(list(&["/b"])),
            ],
            false,
        ),
        (vec![Condition::Query(true), Condition::Cgi(false)], true),
        (
            vec![Condition::Method(list(&["PUT"])), Condition::Cgi(false)],
            true,
        ),
        (vec![cookie("", Want::Absent), cookie("a", Want::Present)], true),
        (vec![cookie("b", Want::Absent), cookie("a", Want::Present)], false),
        (vec![header("x", Want::Absent), header("X", is("1"))], true),
    ] {
        let route = route("one", conditions);
        assert_eq!(route.contradiction().is_some(), impossible, "{route:?}");
    }
}

#[test]
fn redirects() {
    let to: Redirect = "https://www.example/base/".parse().unwrap();
    assert_eq!(to.location("/a?b"), "https://www.example/base/a?b");
    for (bad, says) in [
        ("www.example", "http:// or https://"),
        ("ftp://www.example", "http:// or https://"),
        ("https://", "names no host"),
        ("https:///a", "names no host"),
        ("https://:80", "names no host"),
        ("https://a?b", "appended"),
        ("https://a b", "percent-encoded"),
        ("https://a\r\nSet-Cookie: x", "percent-encoded"),
    ] {
        let error = bad.parse::<Redirect>().unwrap_err().to_string();
        assert!(error.contains(says), "{bad}: {error}");
    }
}

proptest! {
    /// Whatever a route that is said to be hidden takes, the one that hides it takes, too.
    #[test]
    fn what_is_hidden_never_wins(
        conditions in prop::collection::vec(prop::collection::vec(any_condition(), 0..3), 2..5),
        requests in prop::collection::vec(any_request(), 1..20),
    ) {
        let routes = conditions.into_iter().enumerate().map(|(n, c)| route(&n.to_string(), c));
        let table = Table::new(routes.collect());
        let hidden: Vec<usize> = table.hidden().map(|(later, _)| later).collect();
        for request in &requests {
            let winner = table.decide(&request.facts()).map(|(n, _)| n);
            prop_assert!(winner.is_none_or(|n| !hidden.contains(&n)), "{winner:?} {hidden:?}");
            if let Some((_, route)) = table.decide(&request.facts()) {
                prop_assert!(route.contradiction().is_none());
            }
            prop_assert_eq!(table.explain(&request.facts()).winner, winner);
        }
    }

    /// No text makes a reader panic, and what is read is written as the same.
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,12}|[*.a-z:\\[\\]0-9/%?-]{0,12}") {
        fn check<T: std::str::FromStr + std::fmt::Display>(text: &str) -> Result<(), TestCaseError> {
            let Ok(value) = text.parse::<T>() else { return Ok(()) };
            let written = value.to_string();
            let again = written.parse::<T>().map(|v| v.to_string()).ok();
            prop_assert_eq!(again, Some(written));
            Ok(())
        }
        check::<HostPattern>(&text)?;
        check::<PathText>(&text)?;
        check::<Extension>(&text)?;
        check::<Token>(&text)?;
        check::<Redirect>(&text)?;
        check::<Pattern>(&text)?;
        let _ = bare(&text);
    }
}

fn any_condition() -> impl Strategy<Value = Condition> {
    let hosts = prop::sample::subsequence(vec!["a.test", "b.test", "*.test", "*.a.test"], 1..3);
    let paths = prop::sample::subsequence(vec!["/", "/a", "/a.gif", "/a/b.tar.gz", "/cgi-bin/x"], 1..3);
    let prefixes = prop::sample::subsequence(vec!["/", "/a", "/a/", "/cgi"], 1..3);
    let extensions = prop::sample::subsequence(vec!["gif", "gz", "tar.gz"], 1..3);
    let methods = prop::sample::subsequence(vec!["GET", "HEAD", "POST"], 1..3);
    let want = prop_oneof![
        Just(Want::Present),
        Just(Want::Absent),
        Just(is("1")),
        Just(Want::Value(vec![
            Text::Prefix("1".into()),
            Text::Exact("2".into())
        ])),
    ];
    prop_oneof![
        hosts.prop_map(|l| host(&l)),
        paths.prop_map(|l| Condition::Path(list(&l))),
        prefixes.prop_map(|l| Condition::PathPrefix(list(&l))),
        extensions.prop_map(|l| Condition::Extension(list(&l))),
        methods.prop_map(|l| Condition::Method(list(&l))),
        any::<bool>().prop_map(Condition::Query),
        any::<bool>().prop_map(Condition::Cgi),
        want.clone().prop_map(|w| header("x", w)),
        (prop::sample::select(vec!["", "a"]), want).prop_map(|(name, w)| cookie(name, w)),
    ]
}

fn any_request() -> impl Strategy<Value = Request> {
    (
        prop::sample::select(vec!["a.test", "b.test", "c.a.test", ""]),
        prop::sample::select(vec!["/", "/a", "/a.gif", "/a/b.tar.gz", "/cgi-bin/x", "/a?b"]),
        prop::sample::select(vec!["GET", "HEAD", "POST"]),
        prop::sample::select(vec!["", "1", "12", "2"]),
        prop::sample::select(vec!["", "a=1", "b=1", "a=12; b=2"]),
    )
        .prop_map(|(host, path, method, x, cookies)| {
            let request = get(&format!("{host}{path}")).method(method);
            let request = match x {
                "" => request,
                x => request.header("X", x),
            };
            match cookies {
                "" => request,
                cookies => request.header("cookie", cookies),
            }
        })
}
