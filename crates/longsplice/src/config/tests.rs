use std::{fs, path::Path, time::Duration};

use proptest::prelude::*;

use longsplice_core::policy::SplicePolicy;
use longsplice_engine::XdpMode;

use super::*;

const FULL: &str = r#"
instance = "edge"
admin = "/run/longsplice/edge.sock"
interfaces = ["eth0", "lo"]
xdp = ["eth0"]
xdp_mode = "generic"
source_ports = "20000-29999"
max_flows = 100
idle_timeout = "2h"
record_ttl = "30s"
shutdown = "end"
shutdown_timeout = "0s"

[log]
format = "json"
level = "debug"
lines_per_second = 0

[[listener]]
name = "web"
listen = ["0.0.0.0:8080", "[::]:8080"]
to = ["192.0.2.1:80", "web.example:80"]
splice = "after=1MiB"
detach = "never"
unsplice = "bytes=client:0, idle=1m"
rate_limit = "10MB/s, burst=256KiB"
connect_timeout = "500ms"
max_connections = 1000
on_full = "refuse"
congestion = "bbr"

[[listener]]
listen = ":9000"
to = "[2001:db8::1]:9000"
"#;

fn errors(text: &str) -> String {
    match parse(Path::new("x.toml"), text) {
        Ok(config) => panic!("taken: {config:?}"),
        Err(wrong) => join(&wrong),
    }
}

#[test]
fn a_full_file_is_understood() {
    let c = parse(Path::new("x.toml"), FULL).unwrap();
    let engine = c.splicer_config();
    assert_eq!(engine.instance, "edge");
    assert_eq!(engine.source_ports, Some(20_000..=29_999));
    assert_eq!(
        (engine.xdp, engine.xdp_mode),
        (vec!["eth0".into()], XdpMode::Generic)
    );
    assert_eq!((engine.max_flows, engine.max_dormant), (100, 100));
    assert_eq!(engine.idle_timeout, Duration::from_secs(7200));
    assert_eq!(
        (c.shutdown, c.shutdown_timeout),
        (OnShutdown::End, Duration::ZERO)
    );
    assert_eq!(
        c.log,
        LogConfig {
            format: LogFormat::Json,
            level: LogLevel::Debug,
            lines_per_second: 0,
        }
    );
    let web = &c.listeners[0];
    assert_eq!(
        web.listen,
        ["0.0.0.0:8080".parse().unwrap(), "[::]:8080".parse().unwrap()]
    );
    assert_eq!(web.splice, SplicePolicy::AfterBytes(1 << 20));
    assert_eq!(web.unsplice.to_string(), "data=client,idle=60s");
    assert_eq!(web.rate_limit.to_string(), "10000000B/s,burst=262144");
    assert!(c.listeners[1].unsplice.is_closed() && c.listeners[1].rate_limit.is_none());
    assert_eq!((web.max_connections, web.on_full), (Some(1000), OnFull::Refuse));
    assert_eq!(web.congestion.as_deref(), Some("bbr"));
    assert_eq!(c.listeners[1].congestion, None);
    assert_eq!(c.listeners[1].name, "0.0.0.0:9000");
    assert_eq!(c.listeners[1].connect_timeout, DEFAULT_CONNECT_TIMEOUT);
}

/// Compares the whole message that `check` prints for each text.
#[test]
fn messages_name_the_place_and_the_remedy() {
    let listener = "[[listener]]\nlisten = \":80\"\nto = \"a:1\"\n";
    for (text, expected) in [
        (
            "[[listener]]\nlisen = \":80\"\n".to_owned(),
            "x.toml:2:1: unknown key `lisen`\n   2 | lisen = \":80\"\n     | ^^^^^\n     = did you mean `listen`?",
        ),
        (
            "[[listener]]\nlisten = \":80\"\nto = \"a:1\"\non_full = \"refus\"\n".to_owned(),
            "x.toml:4:11: `refus` is not possible here\n   4 | on_full = \"refus\"\n     |           ^^^^^^^\n     = did you mean `refuse`?",
        ),
        (
            "[[listener]]\nlisten = \":80\"\n".to_owned(),
            "x.toml:1:1: missing key `to`\n   1 | [[listener]]\n     | ^^^^^^^^^^^^\n     = add where its connections go, such as to = \"192.0.2.1:80\"",
        ),
        (
            format!("source_ports = \"9-3\"\n{listener}"),
            "x.toml:1:16: the range 9-3 runs backwards: write 3-9\n   1 | source_ports = \"9-3\"\n     |                ^^^^^",
        ),
        (
            format!("idle_timeout = 5\n{listener}"),
            "x.toml:1:16: invalid type: integer `5`, expected a duration in quotes, such as \"30s\" (us, ms, s, m, h or d)\n   1 | idle_timeout = 5\n     |                ^",
        ),
        (
            format!("interfaces = [\"eth0\"]\nxdp = [\"eth0\", \"eth1\"]\n{listener}"),
            "x.toml:2:16: `eth1` is not among `interfaces`, so nothing is spliced over it\n   2 | xdp = [\"eth0\", \"eth1\"]\n     |                ^^^^^^\n     = add it there, or leave it out here",
        ),
        (
            "interfaces = [\"eth0\", \"lo\"]\n[accelerate]\ninside = \"eth1\"\noutside = \"eth0\"\n"
                .to_owned(),
            "x.toml:2:1: `eth1` is not among `interfaces`, so nothing is spliced over it\n   2 | [accelerate]\n     | ^^^^^^^^^^^^\n     = add it there, or leave `interfaces` out: connections that are taken over could not be released",
        ),
        (
            format!("xdp = [\"lo\"]\n{listener}"),
            "x.toml:1:8: `lo` has no driver that XDP could run in\n   1 | xdp = [\"lo\"]\n     |        ^^^^\n     = leave it out: what goes over the loopback is translated at tc",
        ),
        (
            format!("xdp = [\"eth0\"]\nxdp_mode = \"fast\"\n{listener}"),
            "x.toml:2:12: `fast` is no mode of XDP: use native or generic\n   2 | xdp_mode = \"fast\"\n     |            ^^^^^^\n     = native is in the driver",
        ),
        (
            format!("xdp_mode = \"native\"\n{listener}"),
            "x.toml:1:12: xdp_mode without xdp: no interface is named\n   1 | xdp_mode = \"native\"\n     |            ^^^^^^^^\n     = name them, such as xdp = [\"eth0\", \"eth1\"]",
        ),
        (
            format!("{listener}[access_log]\npath = \"a\"\nformat = \"common\"\nflow_interval = \"1m\"\n"),
            "x.toml:7:17: format = \"common\" has no line for a flow\n   7 | flow_interval = \"1m\"\n     |                 ^^^^\n     = use format = \"json\", or leave flow_interval out",
        ),
        (
            format!("{listener}[access_log]\npath = \"a\"\nflow_interval = \"10ms\"\n"),
            "x.toml:6:17: flow_interval is out of range: 10ms\n   6 | flow_interval = \"10ms\"\n     |                 ^^^^^^\n     = use 1s to 1d",
        ),
        (
            format!("{listener}[log]\nlines_per_second = -1\n"),
            "x.toml:5:20: log.lines_per_second is out of range: -1\n   5 | lines_per_second = -1\n     |                    ^^\n     = use 0 to 1000000",
        ),
        (
            format!("max_flows = -1\n{listener}"),
            "x.toml:1:13: max_flows is out of range: -1\n   1 | max_flows = -1\n     |             ^^\n     = use 1 to 67108864",
        ),
        (
            format!("{listener}[[listener]]\nlisten = [\":81\", \"127.0.0.1:80\"]\nto = \"a:1\"\n"),
            "x.toml:5:18: 127.0.0.1:80 includes or is included in 0.0.0.0:80, which is listened on already\n   5 | listen = [\":81\", \"127.0.0.1:80\"]\n     |                  ^^^^^^^^^^^^^^\n     = give each address to one listener",
        ),
        (
            "[[listener]]\nname = \"0.0.0.0:81\"\nlisten = \":80\"\nto = \"a:1\"\n\n[[listener]]\nlisten = \":81\"\nto = \"a:2\"\n"
                .to_owned(),
            "x.toml:6:1: another listener is named `0.0.0.0:81`, as this one is by its first address\n   6 | [[listener]]\n     | ^^^^^^^^^^^^\n     = logs and `status` tell listeners apart by their names: give this one a name",
        ),
        (
            format!("{listener}[[listener]]\nname = \"0.0.0.0:80\"\nlisten = \":81\"\nto = \"a:2\"\n"),
            "x.toml:5:8: another listener is named `0.0.0.0:80`\n   5 | name = \"0.0.0.0:80\"\n     |        ^^^^^^^^^^^^\n     = logs and `status` tell listeners apart by their names",
        ),
        (
            format!("{listener}{listener}"),
            "x.toml:5:10: 0.0.0.0:80 is listened on twice\n   5 | listen = \":80\"\n     |          ^^^^^\n     = give each address to one listener",
        ),
        (
            "[[listener]]\nlisten = \":80\"\nto = []\n".to_owned(),
            "x.toml:3:6: the listener has no target\n   3 | to = []\n     |      ^^\n     = name one, such as \"192.0.2.1:80\"",
        ),
        (
            "[[listener]]\nlisten = \":80\"\nto = [\"127.0.0.1:80\"]\n".to_owned(),
            "x.toml:3:7: 0.0.0.0:80 would forward to itself (127.0.0.1:80)\n   3 | to = [\"127.0.0.1:80\"]\n     |       ^^^^^^^^^^^^^^\n     = name the server that is to be reached",
        ),
        (
            "[[listener]]\nlisten = \"127.0.0.1:80\"\nto = \"0.0.0.0:80\"\n".to_owned(),
            "x.toml:3:6: 127.0.0.1:80 would forward to itself (0.0.0.0:80)\n   3 | to = \"0.0.0.0:80\"\n     |      ^^^^^^^^^^^^\n     = name the server that is to be reached",
        ),
        (
            "[[listener]]\nlisten = \":80\"\nupstream = \"u\"\n\n[[upstream]]\nname = \"u\"\nservers = [\"a:80\", \"127.0.0.1:80\"]\n".to_owned(),
            "x.toml:7:20: 0.0.0.0:80 would forward to itself (127.0.0.1:80)\n   7 | servers = [\"a:80\", \"127.0.0.1:80\"]\n     |                    ^^^^^^^^^^^^^^\n     = name the server that is to be reached",
        ),
        (
            "[[listener]]\nlisten = [\":81\", \"127.0.0.1:80\"]\nto = \"a:1\"\nprotocol = \"http\"\n[[listener.route]]\npath = \"/\"\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\n[[upstream.server]]\naddress = \"0.0.0.0:80\"\n".to_owned(),
            "x.toml:11:11: 127.0.0.1:80 would forward to itself (0.0.0.0:80)\n  11 | address = \"0.0.0.0:80\"\n     |           ^^^^^^^^^^^^\n     = name the server that is to be reached",
        ),
        (
            format!("{listener}name = \"r\\\"\\n\"\n"),
            "x.toml:4:8: the name has a control character: \\n\n   4 | name = \"r\\\"\\n\"\n     |        ^^^^^^^\n     = take it out: lines of the log show the name",
        ),
        (
            format!("{listener}name = \"\"\n"),
            "x.toml:4:8: the name is empty\n   4 | name = \"\"\n     |        ^^\n     = use any text, or leave the key out",
        ),
        (
            "[[listener]]\nlisten = \":0\"\nto = \"a:0\"\n".to_owned(),
            "x.toml:3:6: port 0 in `a:0`: a target needs a port from 1 to 65535\n   3 | to = \"a:0\"\n     |      ^^^^^",
        ),
        (
            "[[listener]]\nlisten = \":0\"\nto = \"a:1\"\n".to_owned(),
            "x.toml:2:10: port 0 in `0.0.0.0:0`: clients could not know where to connect\n   2 | listen = \":0\"\n     |          ^^^^\n     = use 1 to 65535",
        ),
        (
            format!("{listener}unsplice = \"data=me\"\n"),
            "x.toml:4:12: `data=me` is no condition: use data, data=SIDE, data=SIDE:BYTES, bytes=SIDE:BYTES (such as bytes=server:1MiB; B, kB, KiB, MB, MiB, GB or GiB), after=DURATION or idle=DURATION (such as idle=10s), joined by commas; SIDE is client or server\n   4 | unsplice = \"data=me\"\n     |            ^^^^^^^^^",
        ),
        (
            format!("{listener}rate_limit = \"up=1MB/s\"\n"),
            "x.toml:4:14: `up=1MB/s` is no rate limit: use RATE for each direction, or client=RATE and server=RATE for what they send, and burst=BYTES, joined by commas; a RATE is 1kB/s to 4294967295B/s (such as 10MB/s), a burst 1B to 4294967295B, each in B, kB, KiB, MB, MiB, GB or GiB\n   4 | rate_limit = \"up=1MB/s\"\n     |              ^^^^^^^^^^",
        ),
        (
            format!("{listener}splice = \"never\"\nunsplice = \"data=client\"\n"),
            "x.toml:5:12: unsplice data=client is useless: with splice never there is nothing to come back from\n   5 | unsplice = \"data=client\"\n     |            ^^^^^^^^^^^^^\n     = leave unsplice out, or splice: auto, now or after=…",
        ),
        (
            format!("{listener}splice = \"after=5s\"\nunsplice = \"after=5s\"\n"),
            "x.toml:5:12: unsplice after=5s comes before splice after=5s: the connection would never be spliced\n   5 | unsplice = \"after=5s\"\n     |            ^^^^^^^^^^\n     = both count from the beginning, and again from each return: let unsplice come later",
        ),
        (
            format!("{listener}unsplice = \"data, idle=0s\"\n"),
            "x.toml:4:12: unsplice idle=0s is too short\n   4 | unsplice = \"data, idle=0s\"\n     |            ^^^^^^^^^^^^^^^\n     = use 1ms or more",
        ),
        (
            String::new(),
            "x.toml:1:1: there is no listener, so nothing would be forwarded\n   1 | \n     | ^\n     = add a [[listener]] with listen = \"0.0.0.0:8080\" and to = \"192.0.2.1:80\", or a section [accelerate]",
        ),
    ] {
        assert_eq!(errors(&text), expected, "{text}");
    }
}

#[test]
fn everything_that_is_wrong_is_shown_at_once() {
    let text = "max_flows = 0\nmax_dormant = 0\nrecord_ttl = \"2h\"\ninterfaces = []\n\
                [[listener]]\nname = \"\"\nlisten = \":80\"\nto = \"a:1\"\n";
    let wrong = parse(Path::new("x.toml"), text).unwrap_err();
    assert_eq!(
        wrong.iter().map(Diagnostic::line).collect::<Vec<_>>(),
        [1, 2, 3, 4, 6]
    );
}

#[test]
fn a_file_that_is_not_utf8_is_named_with_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.toml");
    fs::write(&path, b"instance = \"a\"\n# \xff\n").unwrap();
    let e = load(&path).unwrap_err().to_string();
    assert!(e.contains("bad.toml:2:3: this byte is not UTF-8"), "{e}");
    assert!(
        load(Path::new("/nonexistent"))
            .unwrap_err()
            .to_string()
            .contains("cannot read /nonexistent")
    );
}

#[test]
fn a_file_without_an_end_is_given_up() {
    let e = load(Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(e, "/dev/zero is longer than 16777216 bytes");
}

#[test]
fn an_admin_socket_has_a_path_that_a_socket_can_have() {
    let with = |path: &str| format!("admin = \"{path}\"\n[[listener]]\nlisten = \":80\"\nto = \"a:1\"\n");
    let longest = format!("/{}", "a".repeat(105));
    assert!(parse(Path::new("x.toml"), &with(&longest)).is_ok());
    for path in [format!("{longest}a"), "/run/a\\u0000b".to_owned()] {
        let e = errors(&with(&path));
        assert!(e.starts_with("x.toml:1:9: no socket can have this path"), "{e}");
    }
    let e = errors(&with("run/a"));
    assert!(
        e.starts_with("x.toml:1:9: the path of the admin socket is not absolute"),
        "{e}"
    );
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC*") {
        let _ = parse(Path::new("x"), &text).map_err(|w| join(&w));
    }

    /// Mutates a valid file: such text reaches deeper into the parser than noise.
    #[test]
    fn no_near_miss_makes_it_panic(at in 0..FULL.len(), len in 0usize..20, by in "[\\PC\n\t\"'=\\[\\]0-9:-]{0,8}") {
        let (from, to) = (FULL.floor_char_boundary(at), FULL.floor_char_boundary(at + len));
        let text = format!("{}{by}{}", &FULL[..from], &FULL[to..]);
        let _ = parse(Path::new("x"), &text).map_err(|w| join(&w));
    }
}
