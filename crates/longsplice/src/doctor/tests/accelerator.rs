//! Faults that only an accelerator has.

use super::*;

#[test]
fn each_fault_of_an_accelerator_is_found_alone_and_only_where_it_is_asked_for() {
    const BUFFERS: &str = "/proc/sys/net/ipv4/tcp_wmem";
    let good = examine_accelerator(&Fake::good());
    assert_eq!(good.accelerate_available, Some(true));
    assert_eq!(told(good), Vec::<String>::new());
    for (path, text, says) in [
        (
            "/proc/sys/net/ipv4/ip_forward",
            "0",
            "ip-forward Missing off: this host is no router",
        ),
        (
            "/proc/sys/net/ipv6/conf/all/forwarding",
            "0",
            "→ sysctl -w net.ipv6.conf.all.forwarding=1",
        ),
        (
            "/proc/sys/net/ipv4/tcp_available_congestion_control",
            "reno cubic",
            "→ modprobe tcp_bbr",
        ),
        (
            BUFFERS,
            "4096 16384 65536",
            "6.0 MiB to receive and 0.1 MiB to send, all sockets together 739 MiB",
        ),
        (BUFFERS, "4096 16384 65536", "→ sysctl -w net.ipv4.tcp_wmem="),
        (
            "/proc/sys/net/ipv4/tcp_mem",
            "1 2 3",
            "→ sysctl -w net.ipv4.tcp_mem='32768 49152 65536'",
        ),
        (
            BUFFERS,
            "?",
            "tcp-buffers Notice the limits cannot be read: /proc/sys/net/ipv4/tcp_wmem has no three numbers: \"?\"",
        ),
    ] {
        let fake = Fake::good().with(path, text);
        let report = examine_accelerator(&fake);
        let is_missing = report.accelerate_available == Some(false);
        assert_eq!(is_missing, says.contains("Missing"), "{says}");
        let found = told(report);
        assert_eq!(found.len(), 1, "{says}: {found:?}");
        assert!(found[0].contains(says), "{says}: {found:?}");
        assert_eq!(complaints(&fake), Vec::<String>::new(), "{says}");
    }
    let mut in_namespace = Fake::good();
    in_namespace.files.remove("/proc/sys/net/ipv4/tcp_mem");
    assert_eq!(told(examine_accelerator(&in_namespace)), Vec::<String>::new());
    let shown = examine_accelerator(&in_namespace).to_string();
    assert!(
        shown.contains(
            "tcp_mem is not shown in this network namespace: `sysctl net.ipv4.tcp_mem` on the host"
        ),
        "{shown}"
    );
    in_namespace.files.remove("/proc/sys/net/ipv4/tcp_rmem");
    let found = told(examine_accelerator(&in_namespace)).concat();
    assert!(
        found.contains("cannot be read: /proc/sys/net/ipv4/tcp_rmem: "),
        "{found}"
    );
    let tracked = Fake::good().with("/proc/sys/net/netfilter/nf_conntrack_max", "1");
    let of_it = |fake: &Fake| {
        let mut found = told(examine_accelerator(fake));
        found.retain(|finding| finding.starts_with("notrack "));
        found
    };
    assert_eq!(of_it(&tracked), Vec::<String>::new());
    let refused = Fake {
        nftables: Err("Operation not permitted".into()),
        ..tracked
    };
    let found = of_it(&refused);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("notrack Notice"), "{found:?}");
    assert!(found[0].contains("(Operation not permitted)"), "{found:?}");
}

/// Chains that drop by default are told, unless their table knows the mark, or another family or hook is theirs.
#[test]
fn a_firewall_that_drops_taken_over_connections_is_told() {
    let chain = |family: &str, hook: &str, policy: &str| {
        format!(
            r#"{{"chain": {{"family": "{family}", "table": "wall", "name": "its_{hook}", "hook": "{hook}", "policy": "{policy}"}}}}"#
        )
    };
    let found = |entries: &[String]| {
        let text = format!(r#"{{"nftables": [{}]}}"#, entries.join(","));
        let fake = Fake::good().with("nft -j list ruleset", &text);
        let report = examine_accelerator(&fake);
        assert_eq!(report.accelerate_available, Some(true));
        told(report)
    };
    for (family, hook) in [("inet", "input"), ("ip", "output"), ("ip6", "input")] {
        let closed = chain(family, hook, "drop");
        let complaints = found(&[chain(family, hook, "accept"), closed.clone()]);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        let remedy = format!(
            "→ nft insert rule {family} wall its_{hook} meta mark and 0xff000000 == 0x4c000000 accept"
        );
        let says = complaints[0].starts_with("firewall Notice") && complaints[0].ends_with(&remedy);
        assert!(says, "{complaints:?}");
        let rule = |table: &str| {
            format!(
                r#"{{"rule": {{"family": "{family}", "table": "{table}", "chain": "x", "expr": [{{"match": {{"op": "==", "left": {{"meta": {{"key": "mark"}}}}, "right": {{"prefix": {{"addr": 1275068416, "len": 8}}}}}}}}, {{"accept": null}}]}}}}"#
            )
        };
        assert_eq!(found(&[closed.clone(), rule("wall")]), Vec::<String>::new());
        assert_eq!(found(&[closed.clone(), rule("another")]).len(), 1);
        let accepting = |chain: &str, expressions: &str| {
            format!(
                r#"{{"rule": {{"family": "{family}", "table": "wall", "chain": "{chain}", "expr": [{expressions}]}}}}"#
            )
        };
        let all = r#"{"counter": {"packets": 0, "bytes": 0}}, {"accept": null}"#;
        let (own, some) = (format!("its_{hook}"), format!(r#"{{"match": {{}}}}, {all}"#));
        for (rule, complaints) in [
            (accepting(&own, all), 0),
            (accepting(&own, &some), 1),
            (accepting("x", all), 1),
        ] {
            assert_eq!(found(&[closed.clone(), rule]).len(), complaints);
        }
    }
    for (family, hook) in [("inet", "forward"), ("bridge", "input"), ("arp", "input")] {
        assert_eq!(found(&[chain(family, hook, "drop")]), Vec::<String>::new());
    }
    assert_eq!(found(&["7".to_owned()]), Vec::<String>::new());
}
