//! Firewall on the forwarder that tracks connections, and drops invalid packets and new ones other than SYNs: it has
//! not seen the segments that bypassed the sockets, and still lets those after a return through.

use std::fs;

use longsplice_lab::{Line, LineOptions, Namespace};
use longsplice_tests::{Bed, Policy, soon, veth_line};

const BYTES: u64 = 4 << 20;

const RULES: &str = "add table inet fw
add chain inet fw in { type filter hook input priority 0; policy drop; }
add rule inet fw in iif lo accept
add rule inet fw in meta l4proto { icmp, ipv6-icmp } accept
add rule inet fw in ct state established,related accept
add rule inet fw in ct state invalid counter drop
add rule inet fw in tcp flags & (fin|syn|rst|ack) == syn ct state new accept
add rule inet fw in counter drop";

fn nft(node: &Namespace, words: &str) -> String {
    let done = node.command("nft").args([words]).output().unwrap();
    assert!(done.status.success(), "nft {words}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Makes three nodes whose forwarder has these rules.
pub(crate) fn guarded(name: &str) -> Line {
    let net = veth_line(name, LineOptions::default());
    nft(&net.forwarder, RULES);
    net
}

/// Returns the number of tracked connections; listing them removes expired ones.
fn tracked(net: &Line) -> usize {
    let list = || fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    net.forwarder.run(list).unwrap().lines().count()
}

/// Splices a pair and takes it back three times; `before_each` may change the tracked connections before each
/// return.
fn comes_back_through(net: Line, before_each: impl Fn(&Bed)) {
    let bed = Bed::on(net, Policy::DETACHED, |c| c);
    let mut pair = bed.connect_spliced("detached");
    for _ in 0..3 {
        pair.exchange(BYTES);
        before_each(&bed);
        let flow = bed.daemon.wait_state(pair.client_port(), &["detached"]);
        bed.daemon.unsplice(flow.id).unwrap();
        pair.exchange(BYTES);
        bed.daemon.wait_state(pair.client_port(), &["relay"]);
        bed.daemon.splice(flow.id).unwrap();
        bed.daemon.wait_state(pair.client_port(), &["detached"]);
    }
    pair.exchange(BYTES);
    pair.close();
    let rules = nft(&bed.net.forwarder, "list chain inet fw in");
    eprintln!("{rules}");
}

#[test]
fn what_was_not_seen_is_not_held_against_a_return() {
    comes_back_through(guarded("fw-back"), |_| {});
}

/// The recipe for a host with containers works as it is: all is dropped but what it lets in, and masqueraded.
#[test]
fn a_host_that_masquerades_has_the_rules_of_the_example() {
    let net = veth_line("fw-nat", LineOptions::default());
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/firewall.nft");
    let loaded = net
        .forwarder
        .command("nft")
        .args(["-f", example])
        .output()
        .unwrap();
    assert!(loaded.status.success(), "{loaded:?}");
    comes_back_through(net, |_| {});
}

#[test]
fn an_entry_that_has_expired_is_made_anew() {
    let net = guarded("fw-gone");
    for state in ["established", "unacknowledged"] {
        net.forwarder
            .sysctl(&format!("net.netfilter.nf_conntrack_tcp_timeout_{state}"), "2")
            .unwrap();
    }
    comes_back_through(net, |bed| {
        soon("the entries to expire", || tracked(&bed.net) == 0)
    });
}
