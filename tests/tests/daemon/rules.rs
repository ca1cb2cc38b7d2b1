//! Rules for incoming packets: set on the command line and by a program, at once or not at all.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    process::Output,
    time::Duration,
};

use longsplice_engine::rules::{Action, Match, Rule};
use longsplice_tests::{Bed, Policy, SOON, library::Library, veth_line};

/// Time to wait for a connection that must not come about: some retransmissions of a SYN fit in.
const LONG_ENOUGH: Duration = Duration::from_millis(2500);

fn connect(bed: &Bed, limit: Duration) -> std::io::Result<TcpStream> {
    let front = bed.front();
    bed.net
        .client
        .run(|| TcpStream::connect_timeout(&front, limit))
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    said(output)
}

const CLOSED: &str = r#"
[[rule]]
name = "seen"
action = "count"

[[rule]]
name = "closed"
interface = "f0"
to_ports = "8080"
action = "drop"
reason = "not today"
"#;

#[test]
fn rules_are_loaded_shown_and_cleared() {
    let bed = Bed::new("rules-cli", Policy::ON_DEMAND);
    assert_eq!(succeeds(&bed.daemon.cli(&["rules", "list"])), "no rules\n");
    let mut before = bed.connect();
    bed.splice(&before, "detached");
    let relayed = bed.connect();

    assert!(succeeds(&bed.daemon.load_rules(CLOSED)).starts_with("2 rules are in force"));
    let refused = connect(&bed, LONG_ENOUGH).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TimedOut);
    // A rule about new connections leaves existing ones alone, spliced or not.
    before.exchange(1 << 20);
    before.close();
    let mut relayed = relayed;
    relayed.exchange(1 << 20);

    // Spliced segments bypass the rules.
    let mut spliced = relayed;
    bed.splice(&spliced, "detached");
    succeeds(
        &bed.daemon
            .load_rules(&format!("{CLOSED}flags = \"any\"\n").replace("to_ports = \"8080\"\n", "")),
    );
    spliced.exchange(1 << 20);
    assert_eq!(bed.daemon.rules().rules[1].packets, 0);
    succeeds(&bed.daemon.load_rules(CLOSED));
    let refused = connect(&bed, LONG_ENOUGH).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TimedOut);

    let rules = bed.daemon.rules();
    let dropped = rules.drops["not today"];
    assert!(dropped >= 2, "{rules:?}");
    assert_eq!(
        rules.rules[0].packets, dropped,
        "counted, and asked of the next rule"
    );
    assert_eq!(rules.rules[1].packets, dropped);
    assert_eq!(rules.interfaces, ["f0", "f1"]);
    let text = succeeds(&bed.daemon.cli(&["rules", "list"]));
    assert!(text.contains(&format!("dropped: not today {dropped}")), "{text}");
    assert!(text.contains("on f0 port 8080"), "{text}");

    succeeds(&bed.daemon.cli(&["rules", "clear"]));
    assert_eq!(succeeds(&bed.daemon.cli(&["rules", "list"])), "no rules\n");
    let mut after = bed.connect();
    after.exchange(10_000);
}

#[test]
fn a_file_with_an_error_changes_nothing() {
    let bed = Bed::new("rules-wrong", Policy::DETACHED);
    succeeds(&bed.daemon.load_rules(CLOSED));
    let before = bed.daemon.rules();
    for (text, says) in [
        (
            "[[rule]]\naction = \"deliver\"\n",
            "rules.toml:2:10: missing key `listener`",
        ),
        (
            "[[rule]]\nto = \"198.18.0.1/15\"\naction = \"pass\"\n",
            "rules.toml:2:6: `198.18.0.1/15` is an address in a network",
        ),
        (
            "[[rule]]\naction = \"pass\"\n[[rule]]\nname = \"rule 1\"\naction = \"pass\"\n",
            "rules.toml:3:1: rule 2 (`rule 1`): another rule",
        ),
        ("\u{1}", "rules.toml:1:"),
    ] {
        let output = bed.daemon.load_rules(text);
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains(says), "{}", said(&output));
    }
    // The daemon also judges rules that another program sends.
    let rules = bed.daemon.rules();
    assert_eq!(
        (rules.rules.len(), rules.entries),
        (before.rules.len(), before.entries)
    );
    assert_eq!(
        connect(&bed, LONG_ENOUGH).unwrap_err().kind(),
        ErrorKind::TimedOut
    );
}

#[test]
fn rules_of_the_configuration_end_with_a_killed_daemon() {
    let mut bed = Bed::with("rules-kill", Default::default(), Policy::DETACHED, |c| {
        c.with(CLOSED)
    });
    assert_eq!(
        connect(&bed, LONG_ENOUGH).unwrap_err().kind(),
        ErrorKind::TimedOut
    );
    bed.daemon.kill();
    // Without a daemon there is neither a listener nor a rule.
    assert_eq!(
        connect(&bed, SOON).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    bed.daemon.start(&bed.net.forwarder);
    assert_eq!(
        connect(&bed, LONG_ENOUGH).unwrap_err().kind(),
        ErrorKind::TimedOut
    );
}

/// A device that is made anew has another number each time.
#[test]
fn an_interface_is_followed_by_its_name() {
    let bed = Bed::new("rules-follow", Policy::DETACHED);
    let forwarder = bed.net.forwarder.name();
    let ip = |words: &str| {
        let status = std::process::Command::new("ip")
            .args(["-n", forwarder])
            .args(words.split(' '))
            .status();
        assert!(status.unwrap().success(), "{words}");
    };
    succeeds(
        &bed.daemon
            .load_rules("[[rule]]\ninterface = \"late\"\naction = \"count\"\n"),
    );
    assert_eq!(bed.daemon.rules().interfaces, Vec::<String>::new());
    for _ in 0..2 {
        ip("link add late type veth peer name peer");
        ip("link set late up");
        longsplice_tests::soon("the interface", || bed.daemon.rules().interfaces == ["late"]);
        ip("link del late");
        longsplice_tests::soon("its end", || bed.daemon.rules().interfaces.is_empty());
    }
}

/// A program decides about each new connection (the slow path), and lets in the ones that it accepts.
#[test]
fn a_program_decides() {
    let net = veth_line("rules-ask", Default::default());
    let library = Library::open(&net.forwarder);
    let splicer = library.splicer().clone();
    let rules = vec![Rule {
        name: "ask".into(),
        matching: Match {
            interface: Some("f0".into()),
            to_ports: vec![8080.into()],
            ..Match::default()
        },
        action: Action::Ask,
    }];
    let front = SocketAddr::from((net.forwarder_client_addr, 8080));
    // Use a task, so that the threads that wait for the kernel are in the namespace, too.
    let decide = library.spawn(async move {
        splicer.set_rules(rules).await.unwrap();
        let mut packets = splicer.rule_packets().unwrap();
        let mut asked = 0;
        // Refuse the first SYN and accept its retransmission.
        loop {
            for packet in packets.next().await.unwrap() {
                assert_eq!((packet.rule, packet.copy), (0, false));
                assert_eq!(packet.packet[12..14], [8, 0]);
                asked += 1;
                if asked == 2 {
                    splicer.let_in(&packet).unwrap();
                    return splicer.rules();
                }
            }
        }
    });
    longsplice_tests::soon("the rule", || !library.splicer().rules().rules.is_empty());
    let client = net
        .client
        .run(|| TcpStream::connect_timeout(&front, SOON))
        .unwrap();
    let client = client.unwrap();
    let near = library.accept();
    assert_eq!(near.peer_addr().unwrap(), client.local_addr().unwrap());
    let rules = library.run(decide).unwrap();
    assert_eq!(rules.verdicts["asked"], 2, "{rules:?}");
}
