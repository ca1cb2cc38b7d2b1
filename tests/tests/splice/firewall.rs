//! Firewall on the forwarder that tracks connections, and drops invalid packets and new ones other than SYNs: it has
//! not seen the segments that bypassed the sockets, and still lets those after a return through. `LONGSPLICE_RETURNS` sets the
//! number of returns.

use std::{fs, thread};

use longsplice_lab::{Line, LineOptions};
use longsplice_tests::{Bed, Config, Policy, nft, soon, times, veth_line};

const BYTES: u64 = 4 << 20;

const RULES: &str = "add table inet fw
add chain inet fw in { type filter hook input priority 0; policy drop; }
add rule inet fw in iif lo accept
add rule inet fw in meta l4proto { icmp, ipv6-icmp } accept
add rule inet fw in ct state established,related accept
add rule inet fw in ct state invalid counter drop
add rule inet fw in tcp flags & (fin|syn|rst|ack) == syn ct state new accept
add rule inet fw in counter drop";

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

const DEPTHS: [(Policy<'static>, &str); 2] = [(Policy::DETACHED, "detached"), (Policy::DORMANT, "dormant")];

/// Number of returns at each depth.
fn returns() -> usize {
    times("LONGSPLICE_RETURNS", 4)
}

/// Splices a pair of each depth and takes it back so many times, every other time amid a transfer; `before_each` may
/// change the tracked connections before the other returns.
fn comes_back_through(nodes: impl Fn() -> Line, returns: usize, before_each: impl Fn(&Bed)) {
    for (policy, state) in DEPTHS {
        let bed = Bed::on(nodes(), policy, |c| c);
        let mut pair = bed.connect_spliced(state);
        let port = pair.client_port();
        for n in 0..returns {
            let flow = bed.daemon.wait_state(port, &[state]);
            pair.exchange(BYTES);
            if n % 2 == 0 {
                before_each(&bed);
                bed.daemon.unsplice(flow.id).unwrap();
                pair.exchange(BYTES);
            } else {
                thread::scope(|scope| {
                    scope.spawn(|| pair.exchange(8 * BYTES));
                    bed.daemon.unsplice(flow.id).unwrap();
                });
            }
            bed.daemon.wait_state(port, &["relay"]);
            bed.daemon.splice(flow.id).unwrap();
        }
        bed.daemon.wait_state(port, &[state]);
        pair.exchange(BYTES);
        pair.close();
        eprintln!("{returns} returns of a {state} flow, 0 hung");
        eprintln!("{}", nft(&bed.net.forwarder, "list ruleset"));
    }
}

#[test]
fn what_was_not_seen_is_not_held_against_a_return() {
    comes_back_through(|| guarded("fw-back"), returns(), |_| {});
}

/// The recipe for a host with containers works as it is: all is dropped but what it lets in, and masqueraded.
#[test]
fn a_host_that_masquerades_has_the_rules_of_the_example() {
    let nodes = || {
        let net = veth_line("fw-nat", LineOptions::default());
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/firewall.nft");
        nft(&net.forwarder, &format!("include \"{example}\""));
        net
    };
    comes_back_through(nodes, returns(), |_| {});
}

/// Makes three nodes behind whose firewall entries expire soon.
fn forgetful(name: &str) -> Line {
    let net = guarded(name);
    // An entry is made of a SYN only, not of what a socket sends later.
    net.forwarder
        .sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")
        .unwrap();
    for state in ["established", "unacknowledged"] {
        net.forwarder
            .sysctl(&format!("net.netfilter.nf_conntrack_tcp_timeout_{state}"), "2")
            .unwrap();
    }
    net
}

fn wait_expired(bed: &Bed) {
    soon("the entries to expire", || tracked(&bed.net) == 0);
}

#[test]
fn an_entry_that_has_expired_is_made_anew() {
    // Each return waits for the clock of connection tracking.
    let returns = returns().div_ceil(4).max(2);
    comes_back_through(|| forgetful("fw-gone"), returns, wait_expired);
}

/// The segment that brings a dormant flow back is dropped by the firewall, and passes when it is sent again.
#[test]
fn so_it_is_for_what_meets_a_trap() {
    for (policy, state) in DEPTHS {
        let trap = |config: Config| config.with("unsplice = \"data=client\"");
        let bed = Bed::on(forgetful("fw-trap"), policy, trap);
        let mut pair = bed.connect_spliced(state);
        pair.exchange_unevenly(0, BYTES);
        wait_expired(&bed);
        pair.exchange(BYTES);
        assert!(bed.daemon.status().resumed_total > 0);
        pair.close();
    }
}
