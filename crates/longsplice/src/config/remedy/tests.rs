use std::path::Path;

use crate::config::parse;

/// A listener of four lines.
const LISTENER: &str = "[[listener]]\nname = \"w\"\nlisten = \":80\"\nto = \"a:1\"\n";
/// An upstream of three lines, and a listener for HTTP of four.
const HTTP: &str = "[[upstream]]\nname = \"u\"\nservers = \"a:1\"\n\
                    [[listener]]\nlisten = \":80\"\nprotocol = \"http\"\nupstream = \"u\"\n";

/// Returns the first diagnostic without the drawn lines: `LINE:COLUMN: message = remedy`.
fn told(text: &str) -> String {
    let Err(wrong) = parse(Path::new("x.toml"), text) else {
        panic!("taken: {text}");
    };
    let shown = wrong[0].to_string();
    let mut lines = shown.lines();
    let first = lines.next().unwrap_or_default().trim_start_matches("x.toml:");
    match lines
        .next_back()
        .and_then(|line| line.trim_start().strip_prefix("= "))
    {
        Some(help) => format!("{first} = {help}"),
        None => first.to_owned(),
    }
}

#[test]
fn every_common_slip_has_its_remedy() {
    let before = |head: &str| format!("{head}\n{LISTENER}");
    let behind = |tail: &str| format!("{LISTENER}{tail}\n");
    let http = |tail: &str| format!("{HTTP}{tail}\n");
    let upstream = |tail: &str| HTTP.replacen("\n[[listener]]", &format!("\n{tail}\n[[listener]]"), 1);
    let accelerate = |tail: &str| format!("[accelerate]\ninside = \"eth1\"\n{tail}\n");
    let intercept = |table: &str| format!("[[listener]]\nlisten = \":80\"\nintercept = {{ {table} }}\n");
    for (text, says) in [
        // Try lists of tables.
        (
            LISTENER.replace("[[listener]]", "[listener]"),
            "1:1: invalid type: table, expected a list = write [[listener]]",
        ),
        (
            "listener = { listen = \":80\", to = \"a:1\" }\n".to_owned(),
            "1:12: invalid type: table, expected a list = write listener = [{ listen = \":80\", to = \"a:1\" }]",
        ),
        (
            "[listener.http]\nvia = \"x\"\n".to_owned(),
            "1:2: invalid type: table, expected a list = begin with [[listener]], and write it below that",
        ),
        (
            before("[[listener.route]]\nhost = \"a\"\nstatus = 404"),
            "1:1: [[listener.route]] comes before any [[listener]] = write it below the [[listener]] that it belongs to",
        ),
        (
            before("[listener.http]\nvia = \"x\""),
            "1:1: [listener.http] comes before any [[listener]] = write it below the [[listener]] that it belongs to",
        ),
        (
            before("[listener]\nlisten = \":81\""),
            "1:1: [listener] comes before any [[listener]] = write [[listener]]",
        ),
        (
            behind("to = \"b:1\""),
            "5:1: duplicate key `to` = leave one of the two out",
        ),
        (
            behind("max_flows = 10"),
            "5:1: unknown key `max_flows` = `max_flows` is for the file as a whole: write it above the first [table]",
        ),
        (
            behind("splise = \"now\""),
            "5:1: unknown key `splise` = did you mean `splice`?",
        ),
        // Try values of another type.
        (
            before("max_flows = \"100\""),
            "1:13: invalid type: text \"100\", expected a whole number = write max_flows = 100",
        ),
        (
            before("max_flows = \"many\""),
            "1:13: invalid type: text \"many\", expected a whole number = write a whole number, without quotes",
        ),
        (
            behind("max_connections = 1e3"),
            "5:19: invalid type: number `1000.0`, expected a whole number = write a whole number, without quotes",
        ),
        (
            http("[[listener.route]]\nhost = \"a\"\nstatus = \"404\""),
            "10:10: invalid type: text \"404\", expected a whole number = write status = 404",
        ),
        (
            accelerate("outside = \"eth0\"\nmin_gain = \"1.5\""),
            "4:12: invalid type: text \"1.5\", expected a number = write min_gain = 1.5",
        ),
        (
            before("require_splice = \"true\""),
            "1:18: invalid type: text \"true\", expected true or false = write require_splice = true",
        ),
        (
            http("[[listener.route]]\nquery = \"a=b, expected c\"\nstatus = 404"),
            "9:9: invalid type: text \"a=b, expected c\", expected true or false = write true or false, without quotes",
        ),
        (
            upstream("health = true"),
            "4:10: invalid type: boolean `true`, expected a table = health does not say how: add tcp = true, or http = \"/PATH\"",
        ),
        (
            upstream("health = { http = \"/\", status = 200 }"),
            "4:33: invalid type: integer `200`, expected text in quotes = write status = \"200\"",
        ),
        (
            upstream("send_proxy = true"),
            "4:14: invalid type: boolean `true`, expected text in quotes = `true` is no version of the PROXY protocol: use v1 or v2",
        ),
        (
            accelerate("outside = \"eth0\"\nearly_accept = true"),
            "4:16: text in quotes is expected here = `true` is not possible here: use one of: never, known, always",
        ),
        (
            behind("accept_proxy = true"),
            "5:16: invalid type: boolean `true`, expected text in quotes, or a list of it = `true` is no network: write ADDRESS/BITS, such as 198.18.0.0/15 or 2001:db8::/32, or one address",
        ),
        (
            upstream("outlier_detection = true"),
            "4:21: invalid type: boolean `true`, expected a table = write outlier_detection = {}",
        ),
        (
            behind("congestion = true"),
            "5:14: invalid type: boolean `true`, expected text in quotes = write one text in quotes",
        ),
        (
            before("interfaces = \"eth0\""),
            "1:14: invalid type: text \"eth0\", expected a list = write interfaces = [\"eth0\"]",
        ),
        (
            http("[listener.http]\nforwarded = \"x-forwarded-for\""),
            "9:13: invalid type: text \"x-forwarded-for\", expected a list = write forwarded = [\"x-forwarded-for\"]",
        ),
        (
            behind("splice_min = 65536"),
            "5:14: invalid type: integer `65536`, expected text in quotes = write splice_min = \"65536\"",
        ),
        (
            http("[listener.http]\nmax_head = 32768"),
            "9:12: invalid type: integer `32768`, expected text in quotes = write max_head = \"32768\"",
        ),
        (
            before("memory = 536870912"),
            "1:10: invalid type: integer `536870912`, expected text in quotes = write memory = \"536870912\"",
        ),
        (
            before("memory = 512"),
            "1:10: invalid type: integer `512`, expected text in quotes = `512` is too little memory for a daemon: use 16MiB or more",
        ),
        (
            LISTENER.replace("\":80\"", "[\":80\", 8081]"),
            "3:18: invalid type: integer `8081`, expected text in quotes = write \"8081\"",
        ),
        (
            LISTENER.replace("\":80\"", "8080"),
            "3:10: invalid type: integer `8080`, expected text in quotes, or a list of it = write listen = \"8080\"",
        ),
        (
            behind("[metrics]\nlisten = [\":90\", \":91\"]"),
            "6:10: invalid type: list, expected text in quotes = write one text in quotes",
        ),
        // Leave out keys that a table must have.
        (
            behind("[access_log]"),
            "5:1: missing key `path` = add the file, or \"stdout\", such as path = \"/var/log/longsplice/access.log\"",
        ),
        (
            accelerate(""),
            "1:1: missing key `outside` = add the interface toward the other side, such as outside = \"eth0\"",
        ),
        (
            accelerate("outside = \"eth0\"\n[[accelerate.class]]\nname = \"a\""),
            "4:1: missing key `networks` = add the networks that are in it, such as networks = \"198.18.1.0/24\"",
        ),
        (
            upstream("[[upstream.server]]\nname = \"x\""),
            "4:1: missing key `address` = add where the server is, such as address = \"192.0.2.1:80\"",
        ),
        (
            HTTP.replacen("name = \"u\"\n", "", 1),
            "1:1: missing key `name` = add a name for the others to refer to, such as name = \"web\"",
        ),
        (
            intercept("to = \"198.18.0.0/15\""),
            "3:13: missing key `interface` = add the interface on which clients' packets come in, such as interface = \"eth0\"",
        ),
        // Try a URL.
        (
            LISTENER.replace("a:1", "http://a:1"),
            "4:6: `http://a:1` is a URL: leave the scheme out, and any path, such as 127.0.0.1:8000",
        ),
        // Break rules that follow from other sections.
        (
            intercept("interface = \"lo\", to = \"198.18.0.0/15\""),
            "3:13: this is for packets that come from outside, not for those on `lo`: name another interface",
        ),
        (
            accelerate("outside = \"lo\""),
            "1:1: this is for packets that come from outside, not for those on `lo`: name another interface",
        ),
    ] {
        assert_eq!(told(&text), says, "{text}");
    }
}

#[test]
fn a_missing_action_names_all_that_there_are() {
    let missing = told(&format!("[[rule]]\nto_ports = \"23\"\n{LISTENER}"));
    let unknown = told(&format!("[[rule]]\naction = \"x\"\n{LISTENER}"));
    let (_, known) = unknown.split_once("use one of: ").unwrap();
    let (others, last) = known.rsplit_once(", ").unwrap();
    assert!(
        missing.contains(&format!("({others} or {last}), such as action = \"count\"")),
        "{missing}"
    );
}
