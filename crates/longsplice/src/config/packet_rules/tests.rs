use std::{net::SocketAddr, path::Path};

use longsplice_engine::rules::{Action, Flags, Network, Rule};
use proptest::prelude::*;

use crate::config::{Config, Diagnostic, SourceAddress, parse, parse_rules};

/// Rules with every key and every action.
const RULES: &str = r#"
[[rule]]
name = "telnet"
interface = "eth0"
from = "198.18.0.0/15"
to = ["198.19.1.0/24", "198.19.2.1"]
from_ports = "1024-65535"
to_ports = ["23", "2323"]
action = "drop"
reason = "unwanted"

[[rule]]
flags = "rst"
action = "count"

[[rule]]
to = "2001:db8::/32"
action = "deliver"
listener = "[::1]:8081"

[[rule]]
interface = "eth1"
action = "follow"

[[rule]]
to = "198.18.0.9"
flags = "any"
action = "translate"
record = { from = "198.18.0.1:80", to = "198.18.0.2:8080", seq = -1, ack = 4294967295, tsval = 7 }

[[rule]]
from = "198.18.0.7"
spliced = true
action = "limit"
rate_limit = "client=1MB/s,server=10MB/s"

[[rule]]
to_ports = "443"
action = "ask"

[[rule]]
to_ports = "444"
action = "copy"

[[rule]]
action = "pass"
"#;

const INTERCEPT: &str = r#"
[[rule]]
to = "198.18.3.0/24"
action = "pass"

[[listener]]
name = "web"
listen = ["0.0.0.0:8080", "[::]:8080"]
intercept = { interface = ["eth0", "eth2"], from = "198.18.1.0/24", to = "198.18.0.0/16", ports = "80", source = "client", answers = "eth1" }
"#;

fn config(text: &str) -> Result<Config, String> {
    parse(Path::new("x.toml"), text).map_err(in_lines)
}

fn in_lines(wrong: Vec<Diagnostic>) -> String {
    let lines: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[test]
fn every_key_is_understood() {
    let rules = parse_rules(Path::new("x.toml"), RULES).unwrap();
    let actions: Vec<_> = rules.iter().map(|r| r.action.as_str()).collect();
    assert_eq!(
        actions,
        [
            "drop",
            "count",
            "deliver",
            "follow",
            "translate",
            "limit",
            "ask",
            "copy",
            "pass"
        ]
    );
    let telnet = &rules[0];
    assert_eq!(
        (telnet.name.as_str(), rules[1].name.as_str()),
        ("telnet", "rule 2")
    );
    assert_eq!(telnet.matching.interface.as_deref(), Some("eth0"));
    assert_eq!(telnet.matching.flags, Flags::NEW);
    let lens = [
        telnet.matching.from.len(),
        telnet.matching.to.len(),
        telnet.matching.from_ports.len(),
        telnet.matching.to_ports.len(),
    ];
    assert_eq!(lens, [1, 2, 1, 2]);
    match &rules[4].action {
        Action::Translate(t) => assert_eq!((t.seq, t.ack, t.tsval, t.tsecr), (u32::MAX, u32::MAX, 7, 0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_listener_that_intercepts_has_rules() {
    let config = config(INTERCEPT).unwrap();
    let web = &config.listeners[0];
    assert!(web.to.is_empty());
    let intercept = web.intercept.as_ref().unwrap();
    assert_eq!(intercept.source, SourceAddress::Client);
    assert_eq!(intercept.all_interfaces(), ["eth0", "eth2", "eth1"]);
    let rules = web.rules();
    let names: Vec<_> = rules.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "eth0 to listener web",
            "eth2 to listener web",
            "eth1 back to listener web"
        ]
    );
    let listen: Vec<SocketAddr> = web.listen.clone();
    assert_eq!(rules[1].action, Action::Deliver { to: listen });
    let back = &rules[2].matching;
    assert_eq!((&back.from, &back.to), (&intercept.to, &intercept.from));
    assert_eq!((back.from_ports.len(), back.to_ports.len()), (1, 0));
}

#[test]
fn metadata_services_are_left_out_unless_they_are_named() {
    let listener = |listen: &str, more: &str| {
        let text = format!(
            "[[listener]]\nname = \"web\"\nlisten = {listen}\nintercept = {{ interface = \"eth0\"{more} }}\n"
        );
        config(&text).unwrap()
    };
    let both = "[\"0.0.0.0:8080\", \"[::]:8080\"]";
    let shown = |config: &Config| -> Vec<String> {
        let rules = config.listeners[0].rules();
        let text = |n: &Network| n.to_string();
        let to = |r: &Rule| r.matching.to.iter().map(text).collect::<Vec<_>>().join(" ");
        rules
            .iter()
            .map(|r| format!("{} {}", r.action.as_str(), to(r)).trim().to_owned())
            .collect()
    };
    let open = listener(both, "");
    assert_eq!(
        shown(&open),
        [
            "pass 169.254.0.0/16 100.100.100.200 168.63.129.16 192.0.0.192 fe80::/10 fd00:ec2::/32 fd20:ce::254",
            "deliver"
        ]
    );
    assert!(
        open.warnings[0]
            .to_string()
            .contains("name the servers' networks"),
        "{:?}",
        open.warnings
    );
    assert_eq!(open.warnings[0].line(), 4);
    let ipv6 = listener("\"[::]:8080\"", "");
    assert_eq!(
        shown(&ipv6),
        ["pass fe80::/10 fd00:ec2::/32 fd20:ce::254", "deliver"]
    );
    let one = listener("\"0.0.0.0:8080\"", ", to = [\"0.0.0.0/0\", \"169.254.169.254\"]");
    assert_eq!(
        shown(&one),
        [
            "deliver 169.254.169.254",
            "pass 169.254.0.0/16 100.100.100.200 168.63.129.16 192.0.0.192",
            "deliver 0.0.0.0/0 169.254.169.254"
        ]
    );
    assert!(one.warnings.is_empty());
    for (listen, more) in [
        (both, ", to = [\"198.18.0.0/15\", \"2001:db8::/32\"]"),
        ("\"0.0.0.0:1\"", ", to = \"169.254.0.0/16\""),
    ] {
        let narrow = listener(listen, more);
        assert_eq!(shown(&narrow).len(), 1, "{more}");
        assert!(narrow.warnings.is_empty());
    }
    // A listener with a target of its own reaches no other address.
    let text = "[[listener]]\nlisten = \"0.0.0.0:8080\"\nto = \"198.18.0.1:80\"\nintercept = { interface = \"eth0\" }\n";
    let own = config(text).unwrap();
    assert!(shown(&own).len() == 1 && own.warnings.is_empty());
}

#[test]
fn what_cannot_be_meant_is_refused_at_its_place() {
    for (text, says) in [
        ("[[rule]]\n", "x.toml:1:1: missing key `action`"),
        (
            "[[rule]]\naction = \"dorp\"\n",
            "x.toml:2:10: `dorp` is not possible here",
        ),
        ("[[rule]]\nacton = \"drop\"\n", "did you mean `action`?"),
        (
            "[[rule]]\naction = \"drop\"\n",
            "x.toml:2:10: missing key `reason`",
        ),
        ("[[rule]]\naction = \"translate\"\n", "missing key `record`"),
        (
            "[[rule]]\naction = \"pass\"\nreason = \"x\"\n",
            "x.toml:3:10: this action has no `reason`",
        ),
        (
            "[[rule]]\naction = \"pass\"\nfrom = \"198.18.0.1/15\"\n",
            "x.toml:3:8: `198.18.0.1/15` is an address in a network",
        ),
        (
            "[[rule]]\naction = \"pass\"\nto = [\"198.18.0.0/15\", \"x\"]\n",
            "x.toml:3:6: `x` is no network",
        ),
        (
            "[[rule]]\naction = \"pass\"\nto_ports = \"80-\"\n",
            "x.toml:3:12: `80-` is no port",
        ),
        (
            "[[rule]]\naction = \"pass\"\nflags = \"SYN\"\n",
            "x.toml:3:9: `SYN` is no TCP flag",
        ),
        (
            "[[rule]]\naction = \"translate\"\nrecord = { from = \"1.2.3.4:5\", to = \"1.2.3.4:5\", seq = 4294967296 }\n",
            "is out of range: use -2147483648 to 4294967295",
        ),
        (
            "\n[[rule]]\naction = \"pass\"\ninterface = \"lo\"\n",
            "x.toml:2:1: rule 1 (`rule 1`): this is for packets that come from outside",
        ),
        ("listener = 3\n", "unknown key `listener`"),
    ] {
        let e = in_lines(parse_rules(Path::new("x.toml"), text).unwrap_err());
        assert!(e.contains(says), "{text}: {e}");
    }
    let listener = |table: &str| format!("[[listener]]\nlisten = \":8080\"\nintercept = {{ {table} }}\n");
    for (text, says) in [
        (listener(""), "x.toml:3:13: missing key `interface`"),
        (listener("interface = []"), "x.toml:3:13: no interface is named"),
        (listener("interface = \"lo\""), "x.toml:3:13: this is for packets that come from outside, not for those on `lo`"),
        (listener("interface = \"eth0\", source = \"client\""), "x.toml:3:13: source = \"client\" needs to know"),
        (listener("interface = \"eth0\", source = \"client_and_port\""), "x.toml:3:13: source = \"client_and_port\" needs to know"),
        (listener("interface = \"eth0\", answers = \"eth1\""), "`answers` is of no use"),
        (listener("interface = \"eth0\", to = \"2001:db8::/32\""), "x.toml:3:13: 2001:db8::/32 is of another family"),
        (
            "[[listener]]\nlisten = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\nintercept = { interface = \"eth0\" }\n".to_owned(),
            "two listeners of one family",
        ),
    ] {
        let e = config(&text).unwrap_err();
        assert!(e.contains(says), "{text}: {e}");
    }
}

#[test]
fn the_rules_of_listeners_count_in_the_bound() {
    let ports: Vec<String> = (1..=256).map(|p| format!("\"{p}\"")).collect();
    let full = format!("[[rule]]\naction = \"pass\"\nto_ports = [{}]\n", ports.join(", "));
    assert!(parse_rules(Path::new("x"), &full).is_ok());
    let e = config(&format!("{full}{INTERCEPT}")).unwrap_err();
    assert!(e.contains("256 is the most"), "{e}");
}

proptest! {
    /// Mutates a valid file: such text reaches deeper into the parser than noise.
    #[test]
    fn no_near_miss_makes_it_panic(at in 0..RULES.len(), len in 0usize..20, by in "[\\PC\n\t\"'=\\[\\]{}0-9:./!,-]{0,8}") {
        for text in [RULES, INTERCEPT] {
            let (from, to) = (text.floor_char_boundary(at), text.floor_char_boundary(at + len));
            let text = format!("{}{by}{}", &text[..from], &text[to..]);
            let _ = parse_rules(Path::new("x"), &text).map_err(in_lines);
            let _ = config(&text);
        }
    }
}
