use std::path::Path;

use longsplice_core::route::{Action, Condition, Want};

use crate::config::{Config, parse};

const UPSTREAMS: &str = "[[upstream]]\nname = \"images\"\nservers = \"127.0.0.1:9001\"\n\n\
                         [[upstream]]\nname = \"pages\"\nservers = \"127.0.0.1:9002\"\n\n";

/// Returns a file with a listener for HTTP with these lines, two upstreams before it and these routes behind it.
fn file(listener: &str, routes: &str) -> String {
    format!(
        "{UPSTREAMS}[[listener]]\nlisten = \"127.0.0.1:8081\"\nupstream = \"pages\"\n{listener}\n{routes}"
    )
}

fn config(text: &str) -> Config {
    parse(Path::new("x.toml"), text).unwrap_or_else(|wrong| panic!("{wrong:?}\n{text}"))
}

/// Returns the diagnostics without the drawn lines: `LINE: message = remedy`.
fn wrong(text: &str) -> Vec<String> {
    let Err(wrong) = parse(Path::new("x.toml"), text) else {
        panic!("taken: {text}");
    };
    let one = |text: String| {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default().to_owned();
        let first = first.trim_start_matches("x.toml:").to_owned();
        let help = lines.next_back().and_then(|line| line.split_once(" = "));
        match help {
            Some((blank, help)) if blank.trim().is_empty() => format!("{first} = {help}"),
            _ => first,
        }
    };
    wrong.iter().map(|d| one(d.to_string())).collect()
}

const HTTP: &str = "protocol = \"http\"";

#[test]
fn every_condition_and_every_action_arrives() {
    let text = file(
        "protocol = \"http\"\nintercept = { interface = \"eth0\" }",
        r#"
        [[listener.route]]
        name = "all of it"
        client = ["198.18.0.0/15", "2001:db8::/32"]
        method = "GET"
        query = true
        cgi = true
        host = "A.example"
        path = "/exact.gif"
        path_prefix = ["/e", "/f"]
        path_regex = "^/[a-z]+"
        extension = ["gif", "JPG"]
        header = [{ name = "X-Tenant", value = ["a", "b"] }, { name = "x-debug", present = false }]
        cookie = { regex = "^[0-9]+$" }
        upstream = "images"

        [[listener.route]]
        cookie = { name = "session" }
        original = true

        [[listener.route]]
        path = "/gone"
        status = 410

        [[listener.route]]
        redirect = "https://www.example/"
        "#,
    );
    let listener = &config(&text).listeners[0];
    let routes = listener.routes.routes();
    let keys: Vec<_> = routes[0].conditions.iter().map(Condition::key).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert_eq!(
        sorted,
        [
            "cgi",
            "client",
            "cookie",
            "extension",
            "header",
            "header",
            "host",
            "method",
            "path",
            "path_prefix",
            "path_regex",
            "query"
        ]
    );
    assert_eq!(keys.last(), Some(&"path_regex"), "the dearest comes last");
    assert_eq!(routes[0].name, "all of it");
    assert_eq!(routes[0].action, Action::Upstream("images".into()));
    assert_eq!(routes[1].name, "route 2");
    assert_eq!(routes[1].action, Action::Original);
    let [Condition::Cookie(Some(name), Want::Present)] = &routes[1].conditions[..] else {
        panic!("{:?}", routes[1]);
    };
    assert_eq!(name.as_str(), "session");
    assert_eq!(routes[2].action, Action::Status(410));
    let Action::Redirect(to) = &routes[3].action else {
        panic!("{:?}", routes[3]);
    };
    assert_eq!(to.to_string(), "https://www.example");
}

/// Compares all that is reported about each route. The first line of the routes is line 13.
#[test]
fn messages_name_the_place_and_the_remedy() {
    for (route, says) in [
        (
            "path = \"/a\"\nupstream = \"image\"",
            &["15:12: there is no upstream `image` = did you mean `images`?"][..],
        ),
        (
            "path = \"/a\"\nupstream = \"nowhere\"",
            &[
                "15:12: there is no upstream `nowhere` = add an [[upstream]] of that name, or use one of: images, pages",
            ],
        ),
        (
            "path = \"/a\"",
            &[
                "13:1: the route does not say what becomes of what it takes = add upstream = \"NAME\", original = true, status = 403 or redirect = \"https://…\"",
            ],
        ),
        (
            "path = \"/a\"\nstatus = 403\nupstream = \"images\"",
            &["15:10: the route has `upstream` and `status` = leave one of them out: a route does one thing"],
        ),
        (
            "method = \"post\"\nstatus = 405",
            &["14:10: no request has the method `post`: case counts (RFC 9110 section 9.1) = write POST"],
        ),
        (
            "method = [\"GET\", \"Version-Control\"]\nstatus = 405",
            &[
                "14:18: no request has the method `Version-Control`: case counts (RFC 9110 section 9.1) = write VERSION-CONTROL",
            ],
        ),
        (
            "path = \"/a\"\nstatus = 301",
            &["15:10: 301 needs a place to go to = write redirect = \"https://…\", which is a 308"],
        ),
        (
            "path = \"/a\"\nstatus = 99999",
            &[
                "15:10: 99999 cannot be answered here = use 400 to 599: no server was asked, and the client should know",
            ],
        ),
        (
            "path = \"/a\"\noriginal = true",
            &[
                "15:12: connections to this listener have no other destination: it does not intercept = name an upstream, or add `intercept` to the listener",
            ],
        ),
        (
            "path_regex = \"^/(\"\nstatus = 403",
            &["14:14: the expression is wrong: unclosed group"],
        ),
        (
            "path_regex = \"(a{1000}){1000}\"\nstatus = 403",
            &["14:14: the expression takes more than 1048576 bytes: use smaller repetitions"],
        ),
        (
            "hosts = \"a\"\nstatus = 403",
            &["14:1: unknown key `hosts` = did you mean `host`?"],
        ),
        (
            "host = [\"a.example\", \"b.*\"]\nstatus = 403",
            &["14:8: `b.*`: a wildcard stands for whole names at the beginning, such as *.example"],
        ),
        (
            "host = \"a.example:80\"\nstatus = 403",
            &["14:8: `a.example:80`: ports are not compared, write a.example"],
        ),
        (
            "path = \"a\"\nstatus = 403",
            &["14:8: `a`: a path begins with /, write /a"],
        ),
        (
            "extension = \".gif\"\nstatus = 403",
            &["14:13: `.gif` is no extension: write what follows the dot, such as gif"],
        ),
        (
            "method = []\nstatus = 403",
            &[
                "14:10: the list is empty = any value of a list is enough, and there is none: leave the key out",
            ],
        ),
        (
            "sni = \"a.example\"\nstatus = 403",
            &[
                "14:7: `sni` is never known here: this listener does not speak TLS = add [listener.tls], or write protocol = \"tls\" to read SNI and ALPN without terminating TLS",
            ],
        ),
        (
            "header = { value = \"a\" }\nstatus = 403",
            &["14:10: the header has no name = add it, such as { name = \"x-tenant\", value = \"a\" }"],
        ),
        (
            "header = { name = \"a b\" }\nstatus = 403",
            &["14:19: `a b` is no name: write letters, digits and !#$%&'*+-.^_`|~ only"],
        ),
        (
            "cookie = { name = \"a\", value = \"1\", present = true }\nstatus = 403",
            &[
                "14:47: `value` and `present` say two things of one field = leave one of them out, or write two tables, if both must be true",
            ],
        ),
        (
            "cookie = { nam = \"a\" }\nstatus = 403",
            &["14:12: unknown key `nam` = did you mean `name`?"],
        ),
        (
            "path = \"/a\"\nextension = \"gif\"\nstatus = 403",
            &[
                "13:1: route `route 1` takes nothing: never both path is /a and extension gif = all conditions of a route must be true: leave one out, or make two routes",
            ],
        ),
        (
            "name = \"a\"\nstatus = 403\n[[listener.route]]\nname = \"a\"\npath = \"/\"\nstatus = 403",
            &[
                "17:8: another route of this listener is named `a` = logs and metrics tell routes by their names",
            ],
        ),
        (
            "name = \"route 2\"\npath = \"/a\"\nstatus = 403\n[[listener.route]]\nstatus = 404",
            &[
                "17:1: another route of this listener is named `route 2` = logs and metrics tell routes by their names",
            ],
        ),
        (
            "name = \"a\"\npath_prefix = \"/a\"\nstatus = 403\n[[listener.route]]\nname = \"b\"\npath = [\"/a/b\", \"/ac\"]\nstatus = 404",
            &[
                "17:1: route `b` never wins: all that it would take, route `a` before it takes = the first route that matches wins: put it before that one, or leave it out",
            ],
        ),
        (
            "redirect = \"www.example\"",
            &[
                "14:12: `www.example` does not begin with http:// or https://: write such as https://www.example",
            ],
        ),
    ] {
        let text = file(HTTP, &format!("[[listener.route]]\n{route}\n"));
        assert_eq!(wrong(&text), says, "{route}");
    }
}

#[test]
fn conditions_must_be_known_to_the_protocol() {
    for (protocol, condition, says) in [
        ("tls", "host = \"a\"", "what TLS encrypts is not read"),
        ("tcp", "path = \"/\"", "add protocol = \"http\""),
        ("tcp", "sni = \"a\"", "add protocol = \"tls\""),
    ] {
        let listener = format!("protocol = \"{protocol}\"");
        let routes = format!("[[listener.route]]\n{condition}\nupstream = \"images\"\n");
        let wrong = wrong(&file(&listener, &routes));
        assert!(wrong.len() == 1 && wrong[0].contains(says), "{wrong:?}");
    }
    for (protocol, condition) in [
        ("tls", "sni = \"a\"\nalpn = \"h2\"\nclient = \"127.0.0.0/8\""),
        ("tcp", "client = \"127.0.0.0/8\""),
    ] {
        let listener = format!("protocol = \"{protocol}\"");
        config(&file(
            &listener,
            &format!("[[listener.route]]\n{condition}\nupstream = \"images\"\n"),
        ));
        let status = file(
            &listener,
            &format!("[[listener.route]]\n{condition}\nstatus = 403\n"),
        );
        let wrong = wrong(&status);
        assert!(
            wrong.len() == 1 && wrong[0].contains("answers requests"),
            "{wrong:?}"
        );
    }
}

#[test]
fn what_no_route_takes_goes_somewhere() {
    let with = |end: &str, route: &str| {
        format!(
            "{UPSTREAMS}[[listener]]\nlisten = \":8081\"\nprotocol = \"http\"\n{end}\n[[listener.route]]\n{route}\n"
        )
    };
    let nowhere = wrong(&with("", "path = \"/\"\nstatus = 403"));
    assert_eq!(
        nowhere,
        [
            "9:1: nothing is said of what no route takes = add upstream = \"NAME\" to the listener, or a last route without conditions"
        ]
    );
    config(&with("", "status = 403"));
    config(&with("to = \"127.0.0.1:1\"", "path = \"/\"\nstatus = 403"));
    config(&with(
        "intercept = { interface = \"eth0\" }",
        "path = \"/\"\nstatus = 403",
    ));
    let both = wrong(&with(
        "to = \"127.0.0.1:1\"\nupstream = \"pages\"",
        "path = \"/\"\nstatus = 403",
    ));
    assert!(
        both.len() == 1 && both[0].contains("`to` and `upstream`"),
        "{both:?}"
    );
}
