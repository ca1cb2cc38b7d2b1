//! Tests what each condition takes and does not take, and which texts are refused.

use super::*;

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
        (&["[2001:db8::1]"], "[2001:DB8:0::1]:80", true),
        (&["[2001:db8:0:0::1]"], "[2001:db8::0:1]", true),
        (&["[::ffff:192.0.2.1]"], "[::ffff:c000:201]", true),
        (&["[2001:db8::1]"], "[2001:db8::1:0]", false),
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
        (extension(&["gif"]), "/.gif", false),
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
        ("/%7Ea", "written /~a"),
        ("/%c3%a4", "written /%C3%A4"),
        ("/100%", "written /100%25"),
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
